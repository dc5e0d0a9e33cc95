"""A node of a cluster takes, lets go of and loses shards, each with a log of its own."""

import asyncio
import random
from typing import Any

import pytest

from tests.shards.rig import CALLBACKS, PROCESSOR, Rig, ShardLog, play
from timerd import boot
from timerd.engine.errors import LogFailed
from timerd.engine.message import Gone
from timerd.engine.record import Closed
from timerd.engine.settings import Settings
from timerd.engine.timer import TimerType
from timerd_storage.memory_catalog import MemoryCatalog

BOTH = pytest.mark.parametrize("type", [PROCESSOR, CALLBACKS], ids=["processor", "callbacks"])


def test_what_rests_on_no_append_rests_on_the_shard_being_ours() -> None:
    async def story(rig: Rig) -> None:
        a, b = await rig.node(0), await rig.node()
        [here, nowhere] = rig.ids(0, 2)
        await rig.arm(a, [here], 60_000)
        log = rig.shelf.logs[0]
        log.unsure = True
        assert not isinstance(await a.get(here), Gone)
        assert log.confirms == 1
        assert await rig.take(b, 0)
        assert dict(a.held) == {0: 1}, "it has had nothing to store, and does not know"
        assert (await a.cancel([nowhere], None))[0].unavailable  # type: ignore[index]
        assert log.confirms == 2
        assert [shard for _, shard, _ in rig.lost] == [0]
        assert isinstance(await a.get(here), Gone)

    play(story)


def test_counts_are_told_by_whoever_has_them() -> None:
    async def story(rig: Rig) -> None:
        a = await rig.node(0)
        rig.shelf.logs[0].free.clear()
        assert len((await a.tally()).shards) == 1

    play(story)


@BOTH
def test_shards_are_taken_used_released_and_taken_elsewhere(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        a, b = await rig.node(0, 1, 2), await rig.node()
        assert dict(a.held) == {0: 1, 1: 1, 2: 1}
        soon, later = rig.ids(0, 5) + rig.ids(1, 5), rig.ids(1, 5, "late")
        await rig.arm(a, soon, 50)
        await rig.arm(a, later, 60_000)
        await rig.until(lambda: rig.delivered(soon))
        assert await a.release(1, 1_000)
        assert sorted(a.held) == [0, 2]
        assert isinstance(await a.get(later[0]), Gone)
        assert await rig.take(b, 1)
        assert dict(b.held) == {1: 2}
        assert await rig.listed(b) == sorted(later)
        await rig.until(lambda: rig.delivered(later), 90)
        assert rig.lost == []
        assert set(rig.target.seen.values()) == {1}, "a clean hand-over repeats nothing"

    play(story, type=type)


def test_what_is_asked_of_a_shard_that_is_not_here_is_gone() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0)
        here, there = rig.ids(0, 2), rig.ids(1, 2)
        ids = [there[0], here[0], there[1], here[1]]
        for results in (True, False):
            done = await node.arm(rig.timers(ids, 60_000 + results), None, results, None)
            assert list(done.unavailable) == [0, 2]
            assert (done.armed, done.conflicts) == (2, 0)
            if results:
                assert [result.status for result in done.results] == ["unavailable", "created"] * 2
        large = await node.arm(rig.timers([there[0]], 60_000, b'"' + b"x" * 20_000 + b'"'), None, True, None)
        assert [result.status for result in large.results] == ["unavailable"]
        cancelled = await node.cancel(ids, None)
        assert [(result.found, result.unavailable) for result in cancelled] == [(False, True), (True, False)] * 2
        assert isinstance(await node.get(there[0]), Gone)
        assert isinstance(await node.fire(there[0], None), Gone)
        assert isinstance(await node.purge_dead([there[0]], None, None), Gone)
        assert await node.get(here[0]) is None

    play(story)


@pytest.mark.parametrize("how", ["fenced", "failed"])
@BOTH
def test_a_shard_that_is_lost_ends_alone_and_everybody_who_waits_is_told(how: str, type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1)
        mine, others = rig.ids(0, 3), rig.ids(1, 3)
        await rig.arm(node, mine + others, 500)
        log = rig.shelf.logs[0]
        log.free.clear()
        asked = asyncio.ensure_future(node.arm(rig.timers(rig.ids(0, 1, "new"), 60_000), None, True, None))
        reading = asyncio.ensure_future(node.get(mine[0]))
        await asyncio.sleep(0.01)
        behind = asyncio.ensure_future(node.cancel(rig.ids(0, 1, "new"), None))
        await asyncio.sleep(0.01)
        assert not asked.done()
        if how == "fenced":
            log.taken = True
        else:
            log.fails = True
        log.free.set()
        done = await asked
        assert list(done.unavailable) == [0]
        assert isinstance(await reading, Gone)
        assert (await behind)[0].unavailable
        assert [(node, shard) for node, shard, _ in rig.lost] == [(0, 0)]
        assert list(node.held) == [1]
        await rig.until(lambda: rig.delivered(others))
        assert not set(mine) & set(rig.target.at), "what is lost is another's to deliver"
        assert (await node.tally()).shards[0].shard == 1

    play(story, type=type)


@pytest.mark.parametrize("how", ["fenced", "failed"])
@BOTH
def test_open_batches_of_several_shards_go_on_when_one_is_lost_and_taken_again(how: str, type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1, 2)
        ids = [id for shard in range(3) for id in rig.ids(shard, 4)]
        rig.target.free.clear()
        await rig.arm(node, ids, 100)
        await rig.until(lambda: rig.delivered(ids))
        if how == "fenced":
            rig.shelf.logs[1].taken = True
        else:
            rig.shelf.logs[1].fails = True
        await node.cancel(rig.ids(1, 1, "none"), None)
        asked = node.arm(rig.timers(rig.ids(1, 1, "none"), 9_000), None, True, None)
        assert list((await asked).unavailable) == [0]
        assert sorted(node.held) == [0, 2]
        assert await rig.take(node, 1)
        rig.target.free.set()
        again = set(rig.ids(1, 4))
        await rig.until(lambda: all(rig.target.seen[key] == 2 for key in rig.target.seen if key[0] in again))
        await asyncio.sleep(3)
        assert all(count == (2 if id in again else 1) for (id, _), count in rig.target.seen.items())
        tally = (await node.tally()).types["t"]
        assert (tally.live, tally.in_flight, tally.fired) == (0, 0, 12)

    play(story, type=type)


def test_another_writer_keeps_a_taker_out() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node()
        log = rig.shelf.open(0)
        log.taken = True
        assert not await node.take(0, log)
        assert not node.held
        assert log._closed
        failing = rig.shelf.open(0)
        failing.fails = True
        with pytest.raises(LogFailed):
            await node.take(0, failing)
        assert not node.held
        assert await rig.take(node, 0)
        assert rig.lost == []

    play(story)


def test_a_take_that_is_broken_off_leaves_nothing_behind() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(1)
        log = rig.shelf.open(0)
        log.free.clear()
        taking = asyncio.ensure_future(node.take(0, log))
        await asyncio.sleep(1)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert list(node.held) == [1]
        assert log._closed
        assert await rig.take(node, 0)

    play(story)


@pytest.mark.parametrize("slow", [False, True])
def test_arms_that_meet_a_release_are_stored_before_it_or_refused(slow: bool) -> None:
    async def story(rig: Rig) -> None:
        a, b = await rig.node(0, 1), await rig.node()
        ids = rig.ids(0, 60)
        armed: list[str] = []

        async def arm(id: str) -> None:
            done = await a.arm(rig.timers([id], 60_000), None, True, None)
            if not done.unavailable:
                armed.append(id)

        log = rig.shelf.logs[0]
        append = log.append

        async def later(*arguments: Any) -> int:
            await asyncio.sleep(0.01)
            return await append(*arguments)

        if slow:
            log.append = later  # type: ignore[method-assign]
        asking = []
        releasing = None
        for n, id in enumerate(ids):
            asking.append(asyncio.ensure_future(arm(id)))
            if n == 30:
                releasing = asyncio.ensure_future(a.release(0, 1_000))
            await asyncio.sleep(0)
        await asyncio.gather(*asking)
        assert releasing is not None
        assert await releasing
        assert 0 < len(armed) < 60
        frames = [frame async for frame in log.reopen().replay()]
        assert isinstance(frames[-1].records[-1], Closed), "nothing follows it"
        assert await rig.take(b, 0)
        assert await rig.listed(b) == sorted(armed)

    play(story)


@pytest.mark.parametrize("how", ["fails", "taken"])
def test_a_log_that_fails_ends_a_process_that_has_no_other(how: str) -> None:
    async def story(rig: Rig) -> None:
        log = ShardLog(0)
        node = await boot.start(
            Settings(shards=1), log, MemoryCatalog(), rig.clock, rig.target, random.Random(0).random
        )
        setattr(log, how, True)
        asked = asyncio.ensure_future(node.arm(rig.timers(["x"], 60_000), None, True, None))
        await node.put_type(rig.type, False, None)
        await asyncio.wait([node.failed], timeout=10)
        assert isinstance(node.failed.exception(), LogFailed)
        await asyncio.sleep(1)
        assert not asked.done(), "nobody hears of it any more"
        asked.cancel()

    play(story)


def test_what_becomes_ready_while_a_shard_is_closed_is_nobody_s() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1)
        await node.set_type_state("t", "paused", None)
        log = rig.shelf.logs[0]
        log.free.clear()
        first = asyncio.ensure_future(rig.arm(node, rig.ids(0, 1), 60_000))
        await asyncio.sleep(0.01)
        due = asyncio.ensure_future(rig.arm(node, rig.ids(0, 3, "due"), 0))  # in the turn that closes the shard
        releasing = asyncio.ensure_future(node.release(0, 1_000))
        await asyncio.sleep(0.1)
        log.free.set()
        assert await releasing
        await asyncio.gather(first, due)
        assert not node._dispatch._dispatcher._flows["t"].lanes
        await node.set_type_state("t", "active", None)
        await rig.arm(node, rig.ids(1, 2), 0)
        await rig.until(lambda: rig.delivered(rig.ids(1, 2)))

    play(story)


def test_a_stop_ends_what_is_being_taken() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(1)
        log = rig.shelf.open(0)
        log.free.clear()
        taking = asyncio.ensure_future(node.take(0, log))
        await asyncio.sleep(1)
        rig.nodes.remove(node)
        assert await node.stop(1_000)
        assert not await asyncio.wait_for(taking, 10)

    play(story)


def test_a_share_of_the_shards_is_a_share_of_the_slots() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1, 2)
        ids = [id for shard in range(3) for id in rig.ids(shard, 10)]
        rig.target.free.clear()
        node.set_share(1, 3)
        await rig.arm(node, ids, 0)
        await asyncio.sleep(3)
        assert rig.target.open == 2
        node.set_share(3, 3)
        await asyncio.sleep(1)
        assert rig.target.open == 6
        rig.target.free.set()
        await rig.until(lambda: rig.delivered(ids))

    play(story, type=TimerType("t", url="http://t/", max_lag_ms=0, max_in_flight=6, batch_size=1))
