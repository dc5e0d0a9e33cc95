"""Slots are ceded share by share, and adopted share by share, so that nobody's turn is long."""

from collections.abc import Iterator

import msgspec
import pytest

from tests.engine.moves_rig import IDS, SLOTS, few_slots
from tests.engine.test_moves import FAR, Pair
from timerd.engine.message import Close, SetReserve
from timerd.engine.move_message import Cede, MayCede, SetTable
from timerd.engine.ring import RingTable

SHARE = 3


@pytest.fixture(autouse=True)
def _few_slots() -> Iterator[None]:
    with few_slots(SHARE):
        yield


def told(pair: Pair, shards: tuple[int, ...]) -> None:
    """Everybody knows of the next table, and nobody may act on it yet."""
    pair.table = RingTable(pair.table.version + 1, shards, pair.table.shards, 2)
    for host in pair.hosts:
        host.inbox.append(SetTable(pair.table, waits=True))
        host.turn()


def cedes(pair: Pair) -> list[int]:
    """The slots in each announcement that is under way."""
    return [len(msgspec.msgpack.decode(data, type=Cede).slots) for _, kind, data in pair.net if kind is Cede]


def test_a_share_goes_each_time_that_it_may() -> None:
    pair = Pair()
    for id in IDS:
        pair.armed(pair.old, id, FAR)
    told(pair, (1,) * SLOTS)
    left = SLOTS
    while left:
        pair.old.inbox.append(MayCede())
        pair.old.turn()
        assert pair.old.shard.to_cede == max(0, left - SHARE)
        left = pair.old.shard.to_cede
        for _ in range(3):
            pair.old.turn()
        assert pair.old.shard.to_cede == left, "and no more"
        pair.carry(Cede)
    pair.rest()
    assert all(pair.generation(pair.new, id) for id in IDS)


def test_time_alone_cedes_nothing_or_what_is_due_would_wait_for_it() -> None:
    pair = Pair()
    told(pair, (1,) * SLOTS)
    pair.old.inbox.append(MayCede())
    pair.old.turn()
    pair.ms += 10_000
    pair.old.shard.tick(pair.old.now)
    assert pair.old.shard.clean


def test_all_old_owners_together_cede_no_more_than_one_would() -> None:
    pair = Pair()
    pair.publish(1)
    pair.rest()
    half = SLOTS // 2
    told(pair, (0,) * half + (1,) * half)
    pair.new.inbox.append(MayCede())
    pair.new.turn()
    assert pair.new.shard.to_cede == half - SHARE
    pair.table = RingTable(pair.table.version + 1, (1,) * half + (0,) * half, (0,) * half + (1,) * half, 2)
    pair.new.shard._ceding.know(pair.table, waits=True)
    assert pair.new.shard._ceding._share == SHARE // 2


def test_on_the_reserve_nothing_is_ceded() -> None:
    pair = Pair()
    told(pair, (1,) * SLOTS)
    pair.old.inbox += [SetReserve(True), MayCede()]
    pair.old.turn()
    assert pair.old.shard.to_cede == SLOTS
    pair.old.inbox += [SetReserve(False), MayCede()]
    pair.old.turn()
    assert pair.old.shard.to_cede == SLOTS - SHARE


def test_a_shard_that_was_laid_down_cedes_nothing() -> None:
    pair = Pair()
    told(pair, (1,) * SLOTS)
    pair.asked_of(pair.old, lambda token: Close(token))
    frames = len(pair.old.frames)
    pair.old.inbox.append(MayCede())
    pair.old.turn()
    assert len(pair.old.frames) == frames, "what it has written says that this was the end"


def test_what_nobody_has_heard_of_is_adopted_share_by_share_after_a_restart() -> None:
    pair = Pair()
    told(pair, (1,) * SLOTS)
    for _ in range(SLOTS):
        pair.old.inbox.append(MayCede())
        pair.old.turn()
    assert not pair.old.shard.to_cede
    pair.net.clear()
    pair.old.begin()
    adopted = 0
    while adopted < SLOTS:  # at once: no time passes
        assert cedes(pair) == [min(SHARE, SLOTS - adopted)]
        (item,) = [item for item in pair.net if item[1] is Cede]
        pair.net.remove(item)
        pair.new.inbox.append(msgspec.msgpack.decode(item[2], type=Cede))
        pair.new.turn()
        adopted = len(pair.new.shard.state.moves.adopted)
        for answer in [item for item in pair.net if item[0] == 0 and item[1].__name__ == "Standing"]:
            pair.net.remove(answer)
            pair.old.inbox.append(msgspec.msgpack.decode(answer[2], type=answer[1]))
        pair.old.turn()
    assert not cedes(pair)
    pair.ms += 6_000
    pair.old.turn()
    assert cedes(pair) == [SLOTS], "the reminder is of all"
    pair.rest()
