"""Upkeep deletes nothing that somebody still needs."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.disk import FakeDisk
from tests.storage.laid import open_on
from timerd import upkeep
from timerd.engine.ceding import CEDE_AT_ONCE
from timerd.engine.message import Arm, Cancel, Message, SetReserve, Slice
from timerd.engine.move_message import MayCede, SetTable
from timerd.engine.now import Now
from timerd.engine.record import Armed, Cancelled
from timerd.engine.ring import SLOTS, RingTable, build_table, slot_of
from timerd.engine.shard import Shard
from timerd.engine.state import State
from timerd.engine.timer import Timer
from timerd.ports import Frame, LogUsage, OldestSegment
from timerd.runner import Runner
from timerd.upkeep import Upkeep
from timerd_storage.memory_log import MemoryLog

NOW = Now(1_796_000_000_000_000, 5_000)
FAR = 2_000_000_000_000


class StillClock:
    def now(self) -> Now:
        return NOW


def fail(error: BaseException) -> None:
    raise error


async def segments_after_a_look(log: MemoryLog, placing: Counter[int]) -> list[int]:
    """The body segments that an upkeep leaves, while these bodies are on their way to a shard that has no timer."""
    runner = Runner([Shard(State(0, list(range(SLOTS)), NOW))], log, StillClock())
    keeper = Upkeep(runner, log, build_table([0]), fail)
    keeper.placed(placing, 1_000)
    keeper.want_room()
    keeper.after_turn(0)
    await keeper.settle()
    return [segment.number for segment in log.body_segments()]


async def test_a_body_segment_stays_while_an_arm_that_refers_to_it_waits_for_its_turn():
    log = MemoryLog(segment_bytes=1_000)
    async for _ in log.replay():
        pass
    [first] = log.place_bodies(0, [("a", b"x" * 1_000)])
    [second] = log.place_bodies(0, [("b", b"y" * 1_000)])
    assert log.body_segments()[0].sealed
    assert await segments_after_a_look(log, Counter({first.segment: 1})) == [first.segment, second.segment]
    assert await segments_after_a_look(log, Counter()) == [second.segment], "nothing refers to it any more"


async def test_the_log_hears_of_a_reserve_that_shrinks_though_nobody_asks_for_room(monkeypatch):
    monkeypatch.setattr(upkeep, "LOOK_BYTES", 1_000)
    log = MemoryLog()
    async for _ in log.replay():
        pass
    shard = Shard(State(0, list(range(SLOTS)), NOW))
    shard.state.apply(Armed([Timer(1, n, f"id{n}", "t") for n in range(1, 500)]))
    kept = Upkeep(Runner([shard], log, StillClock()), log, build_table([0]), fail)
    assert await log.grant(100, kept.reserve_bytes())
    shard.state.apply(Cancelled([f"id{n}" for n in range(1, 500)]))
    before = log._reserve
    kept.after_turn(1_000)
    await kept.settle()
    assert log._reserve == kept.reserve_bytes() < before


async def test_room_for_a_move_is_kept_when_its_grant_has_left_with_an_append():
    log, _ = await open_on(FakeDisk(), 1 << 16)
    shard = Shard(State(0, list(range(SLOTS)), NOW))
    kept = Upkeep(Runner([shard], log, StillClock()), log, build_table([0]), fail)
    assert await log.grant(100, kept.reserve_bytes(), 0)
    assert await kept.make_way(SLOTS, 2)
    assert kept.reserve_bytes() > 500_000
    for _ in range(3):
        await log.append([])
        for _ in range(100):
            await asyncio.sleep(0)
        assert log._supply._in_hand() >= kept.reserve_bytes()
    kept.close_way()
    async with asyncio.timeout(10):
        while log.usage().frame_bytes > 500_000:  # and no longer than it is wanted
            await asyncio.sleep(0)


async def test_room_that_nobody_needs_any_more_counts_as_live_until_it_has_been_given_back():
    disk = FakeDisk()
    log, _ = await open_on(disk, 1 << 16)
    shard = Shard(State(0, list(range(SLOTS)), NOW))
    kept = Upkeep(Runner([shard], log, StillClock()), log, build_table([0]), fail)
    assert await kept.make_way(SLOTS, 2)
    await log.append([])
    seen = [kept.live_bytes]

    def look(verb: str, path: Path) -> None:
        if verb == "unlink":
            seen.append(kept.live_bytes)
            assert disk.used <= 3 * kept.live_bytes + 2 * (1 << 16)

    disk.on_call = look
    kept.close_way()
    while log.usage().leaving_bytes:
        await asyncio.sleep(0)
    assert len(seen) > 16, "file by file"
    assert seen == sorted(seen, reverse=True)
    assert kept.live_bytes < seen[0] / 3
    assert disk.used == log.usage().frame_bytes <= 3 * kept.live_bytes + 2 * (1 << 16)


async def test_the_way_closes_as_slots_are_ceded_and_each_share_is_asked_for_once():
    log = MemoryLog()
    async for _ in log.replay():
        pass
    old, new = Shard(State(0, list(range(SLOTS)), NOW)), Shard(State(1, [], NOW))
    for shard in (old, new):
        shard.own(NOW)
        shard.take()
    old.state.apply(Armed([Timer(FAR, n, f"id{n}", "t") for n in range(1, 500)]))
    runner = Runner([old, new], log, StillClock())
    kept = Upkeep(runner, log, build_table([0]), fail)
    asked: list[int] = []
    runner.send = lambda shard, message: asked.append(shard)  # type: ignore[method-assign, assignment]
    assert await kept.make_way(SLOTS, 2)
    for shard in (old, new):
        shard.step(NOW, SetTable(RingTable(2, (1,) * SLOTS, (0,) * SLOTS, 2), waits=True))
    reserves = [kept.reserve_bytes()]
    shares = 0
    while old.to_cede:
        kept.after_turn(0)
        kept.after_turn(0)  # a turn of others
        shares += 1
        assert asked == [0] * shares
        old.step(NOW, MayCede())
        old.take()
        reserves.append(kept.reserve_bytes())
        assert reserves[-1] <= reserves[-2]
        assert reserves[-2] - reserves[-1] < reserves[0] / 20, "not all at once"
    kept.after_turn(0)
    assert log._reserve == kept.reserve_bytes() < reserves[0]
    assert shares == SLOTS // CEDE_AT_ONCE


async def test_on_the_reserve_nobody_is_told_to_cede_and_behind_it_everybody_again():
    log = MemoryLog()
    async for _ in log.replay():
        pass
    old = Shard(State(0, list(range(SLOTS)), NOW))
    runner = Runner([old], log, StillClock())
    kept = Upkeep(runner, log, build_table([0]), fail)
    asked: list[Message] = []
    runner.send = lambda shard, message: asked.append(message)  # type: ignore[method-assign, assignment]
    assert await kept.make_way(SLOTS, 2)
    old.step(NOW, SetTable(RingTable(2, (1,) * SLOTS, (0,) * SLOTS, 2), waits=True))
    kept.after_turn(0)
    assert asked == [MayCede()]
    for low, told in ((True, [SetReserve(True)]), (False, [SetReserve(False), MayCede()])):
        asked.clear()
        log.low = lambda low=low: low  # type: ignore[method-assign, misc]
        kept.after_turn(0)
        kept.after_turn(0)
        assert asked == told


async def turn(log: MemoryLog, shard: Shard, *messages: Message) -> int:
    """Let a shard step these; the bytes of its frame."""
    for message in messages:
        shard.step(NOW, message)
    return await log.append([Frame(0, (made := shard.take()).lsn, made.records)])


async def test_lives_that_are_shorter_than_a_look_keep_the_log_small_all_the_same(monkeypatch):
    log = MemoryLog(segment_bytes=1_000)
    async for _ in log.replay():
        pass
    shard = Shard(State(0, list(range(SLOTS)), NOW))
    shard.own(NOW)
    await turn(log, shard)
    for n in range(300):  # far more than one timer may take, and less than a look is made for
        await turn(log, shard, Arm([Timer(2_000_000_000_000 + n, 0, "id", "t", b"x" * 400)], None))
    assert len(log._segments) > 10
    runner = Runner([shard], log, StillClock())
    asked: list[Message] = []
    monkeypatch.setattr(runner, "send", lambda shard, message: asked.append(message))
    kept = Upkeep(runner, log, build_table([0]), fail)
    kept.after_turn(0)
    assert [type(message) for message in asked] == [Slice], "by the first look"
    await turn(log, shard, *asked)
    await turn(log, shard, Arm([Timer(2_000_000_000_000, 0, "id", "t")], None))
    kept.after_turn(1_000)
    await kept.settle()
    assert len(log._segments) < 4, "when the slices are written there is something to trim"


async def test_the_log_becomes_small_when_most_of_it_dies_at_once_and_nobody_appends_any_more(monkeypatch):
    log = MemoryLog(segment_bytes=1_000)
    async for _ in log.replay():
        pass
    few = SLOTS - 1_000
    shards = [Shard(State(0, list(range(few)), NOW)), Shard(State(1, list(range(few, SLOTS)), NOW))]
    for shard in shards:
        shard.own(NOW)
    runner = Runner(shards, log, StillClock())
    asked: list[tuple[int, Message]] = []
    monkeypatch.setattr(runner, "send", lambda shard, message: asked.append((shard, message)))
    kept = Upkeep(runner, log, build_table([0, 1]), fail)

    async def turns(*messages: tuple[int, Message]) -> None:
        for shard, message in messages:
            shards[shard].step(NOW, message)
        frames = [Frame(shard.state.shard, (made := shard.take()).lsn, made.records) for shard in shards]
        kept.after_turn(await log.append([frame for frame in frames if frame.records]))
        for _ in range(10):  # a look that finds something to trim
            await asyncio.sleep(0)

    numbered = [f"id{n}" for n in range(4_000)]
    held = [[id for id in numbered if slot_of(id) < few][:200], [id for id in numbered if slot_of(id) >= few][:200]]
    for pair in zip(*held, strict=True):
        going, asked[:] = list(asked), []
        arms = [(n, Arm([Timer(FAR, 0, id, "t", b"x" * 500)], None)) for n, id in enumerate(pair)]
        await turns(*going, *arms)
    kept.want_room()
    await turns()
    while asked or kept._pace.take([100]):  # nothing is saved up
        going, asked[:] = list(asked), []
        await turns(*going)
    await turns(*((shard, Cancel(ids, None)) for shard, ids in enumerate(held)))
    assert log.usage().frame_bytes > 3 * kept._checkpoint_bytes() + 2_000
    assert asked or kept.has_news(), "what has died is to be looked at"
    while asked or kept.has_news():
        going, asked[:] = list(asked), []
        await turns(*going)
    assert log.usage().frame_bytes <= 3 * kept._checkpoint_bytes() + 2_000


async def test_bodies_that_die_at_once_are_dropped_though_nobody_appends_any_more():
    log = MemoryLog(segment_bytes=10_000)
    async for _ in log.replay():
        pass
    shard = Shard(State(0, list(range(SLOTS)), NOW))
    ids = [f"id{n}" for n in range(100)]
    places = [place for id in ids for place in log.place_bodies(0, [(id, b"x" * 3_000)])]
    shard.state.apply(Armed([Timer(FAR, n, id, "t", places[n]) for n, id in enumerate(ids)]))
    kept = Upkeep(Runner([shard], log, StillClock()), log, build_table([0]), fail)
    kept.after_turn(0)
    assert len(log.body_segments()) > 20
    kept.after_turn(0)
    shard.state.apply(Cancelled(ids[:-1]))
    for appended in (1_000, *[0] * 100):
        kept.after_turn(appended)
        await asyncio.sleep(0)
    assert len(log.body_segments()) < 4


@pytest.mark.parametrize(("beyond", "begun"), [(100_000, True), (60_000, False), (0, False)])
async def test_on_a_full_disk_slices_are_begun_only_if_all_that_it_takes_to_free_a_segment_is_left(
    monkeypatch: pytest.MonkeyPatch, beyond: int, begun: bool
) -> None:
    """One slot of each shard pins the oldest segment, and a slice of either is of all that it has: 25 kB."""
    log = MemoryLog(segment_bytes=100_000)
    async for _ in log.replay():
        pass
    half = SLOTS // 2
    shards = [Shard(State(0, list(range(half)), NOW)), Shard(State(1, list(range(half, SLOTS)), NOW))]
    runner = Runner(shards, log, StillClock())
    asked: list[Message] = []
    monkeypatch.setattr(runner, "send", lambda shard, message: asked.append(message))
    monkeypatch.setattr(log, "low", lambda: True)
    monkeypatch.setattr(log, "oldest", lambda: OldestSegment({0: 1, 1: 1}))
    monkeypatch.setattr(log, "usage", lambda: LogUsage(900_000, 0, 100_000, 0, 0, beyond))
    for shard in shards:
        shard.state.covered = dict.fromkeys(shard.state.covered, 2)
        shard.state.covered[next(iter(shard.state.covered))] = 1
    kept = Upkeep(runner, log, build_table([0, 1]), fail)
    kept.after_turn(0)
    assert any(isinstance(message, Slice) for message in asked) == begun
