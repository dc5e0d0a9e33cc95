"""Placement: the same everywhere, level within the bound, and few moves."""

from collections import Counter

import msgspec
import pytest

from timerd.engine.ring import LOAD_FACTOR, SLOTS, build_table, slot_of, slots_of


def test_a_slot_is_for_ever() -> None:
    assert [slot_of(id) for id in ("", "a", "é", "trigger:0000001", "😀" * 64)] == [5314, 3615, 3251, 13027, 2384]
    assert slots_of(["a", "é"]) == [slot_of("a"), slot_of("é")]


@pytest.mark.parametrize("shards", [1, 2, 3, 8, 50, 200])
def test_no_shard_has_more_than_its_share_and_a_tenth(shards: int) -> None:
    table = build_table(range(shards))
    loads = Counter(table.shards)
    assert len(loads) == shards
    assert max(loads.values()) <= SLOTS * LOAD_FACTOR / shards + 1
    assert table.shard_ids == tuple(range(shards))
    assert sum(len(table.slots_of(shard)) for shard in table.shard_ids) == SLOTS


def test_what_follows_from_all_slots_is_made_once_and_is_no_part_of_the_table() -> None:
    table = build_table(range(8))
    before = msgspec.json.encode(table)
    assert table.shard_ids is table.shard_ids
    assert table.known_ids is table.known_ids
    assert msgspec.json.encode(table) == before
    assert table == build_table(range(8))
    assert msgspec.structs.replace(table, shards=(3,) * SLOTS).shard_ids == (3,)


def test_it_depends_on_the_set_of_shards_alone() -> None:
    assert build_table([3, 1, 2, 3]) == build_table([1, 2, 3])


def test_one_more_shard_moves_little_more_than_its_share() -> None:
    before, after = build_table(range(8)), build_table(range(9))
    moved = sum(a != b for a, b in zip(before.shards, after.shards, strict=True))
    assert moved < 2 * SLOTS / 9
