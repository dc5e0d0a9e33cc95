"""Placement when shards come and go: level, few moves, the same everywhere."""

import subprocess
import sys
from collections import Counter
from functools import lru_cache
from hashlib import blake2b

from hypothesis import given, settings
from hypothesis import strategies as st

from timerd.engine.ring import SLOTS, RingTable, build_table, next_table

counts = st.sampled_from([*range(1, 13), 16, 17, 24, 32, 48, 64])


@lru_cache(256)
def table(shards: int) -> RingTable:
    return build_table(range(shards))


@given(counts, counts)
@settings(max_examples=60, deadline=None)
def test_growth_moves_little_more_than_it_must(one: int, other: int) -> None:
    few, many = sorted((one, other))
    moved = sum(a != b for a, b in zip(table(few).shards, table(many).shards, strict=True))
    assert moved <= (1 - few / many + 0.05) * SLOTS
    assert max(Counter(table(many).shards).values()) <= max(1.1 * SLOTS / many, -(-SLOTS // many))
    assert table(many).shard_ids == tuple(range(many))


@given(st.sets(st.integers(0, 1_000), min_size=1, max_size=40), st.randoms())
@settings(max_examples=30, deadline=None)
def test_the_order_of_shards_means_nothing(shards: set[int], random: object) -> None:
    shuffled = list(shards)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert build_table(shuffled) == build_table(shards)
    assert max(Counter(build_table(shards).shards).values()) <= 1.1 * SLOTS / len(shards)


def test_it_is_the_same_in_every_process_and_for_ever() -> None:
    """A hash that differed between machines or Python's hash seeds would send callers to shards that know nothing."""
    program = "from timerd.engine.ring import build_table as b; import sys; sys.stdout.write(repr(b(range(16)).shards))"
    path = ":".join(sys.path)
    digests = set()
    for seed in ("0", "4711"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
        said = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True).stdout
        digests.add(blake2b(said, digest_size=8).hexdigest())
    assert digests == {DIGEST}


DIGEST = "32b71e6f0ae5b9d8"


def test_a_table_names_where_a_slot_comes_from() -> None:
    after = next_table(table(4), range(16))
    assert (after.version, after.previous, after.known) == (2, table(4).shards, 16)
    moved = [slot for slot in range(SLOTS) if after.source_of(slot) is not None]
    assert all(after.owners_of(slot) == [after.shards[slot], table(4).shards[slot]] for slot in moved)
    fewer = next_table(after, range(2))
    assert (fewer.known, fewer.known_ids, fewer.shard_ids) == (16, tuple(range(16)), (0, 1))
