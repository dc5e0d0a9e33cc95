"""A shard whose append stands still holds up no other; what it was asked for is put right when it moves again."""

import asyncio

import pytest

from tests.shards.rig import CALLBACKS, PROCESSOR, Rig, play
from timerd.engine.timer import TimerType

MIXED = TimerType("t", url="http://t/", max_lag_ms=400)
BOTH = pytest.mark.parametrize("type", [PROCESSOR, CALLBACKS], ids=["processor", "callbacks"])
TIGHT = [
    TimerType("t", url="http://t/", max_lag_ms=0, max_in_flight=1),
    TimerType("t", kind="callback", max_lag_ms=0, max_in_flight=1),
]


def freeze(rig: Rig, shard: int) -> None:
    """Its next append does not return."""
    rig.shelf.logs[shard].free.clear()


@pytest.mark.parametrize("type", TIGHT, ids=["processor", "callbacks"])
def test_others_are_delivered_in_time_while_one_stands_still(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1, 2)
        still = rig.ids(0, 6)
        await rig.arm(node, still, 2_000)
        freeze(rig, 0)
        asking = asyncio.ensure_future(rig.arm(node, rig.ids(0, 1, "stuck"), 60_000))
        await asyncio.sleep(1.9)
        for round in range(5):
            others = rig.ids(1, 3, f"r{round}-") + rig.ids(2, 3, f"r{round}-")
            await rig.arm(node, others, 200)
            due = rig.clock.now().wall_ms + 200
            await rig.until(lambda others=others: rig.delivered(others), 5)
            assert max(rig.target.at[id] for id in others) < due + 250
        assert not set(still) & set(rig.target.at)
        assert not asking.done()
        rig.shelf.logs[0].free.set()
        await asking
        await rig.until(lambda: rig.delivered(still))
        await asyncio.sleep(5)
        assert set(rig.target.seen.values()) == {1}
        tally = (await node.tally()).types["t"]
        assert (tally.live, tally.in_flight, tally.fired) == (1, 0, 36)

    play(story, type=type)


@pytest.mark.parametrize("type", TIGHT, ids=["processor", "callbacks"])
def test_a_shard_that_stops_with_takes_and_outcomes_outstanding_frees_the_slots(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1, 2)
        first = rig.ids(0, 1)
        rig.target.free.clear()
        await rig.arm(node, first, 50)
        await rig.until(lambda: rig.delivered(first))
        freeze(rig, 0)
        asking = asyncio.ensure_future(rig.arm(node, rig.ids(0, 1, "stuck"), 60_000))
        await asyncio.sleep(0.01)
        rig.target.free.set()  # the outcome waits for the shard that stands still
        others = rig.ids(1, 2, "o") + rig.ids(2, 2, "o")
        await rig.arm(node, others, 0)
        began = rig.clock.now().wall_ms
        await rig.until(lambda: rig.delivered(others), 5)
        assert max(rig.target.at[id] for id in others) < began + 1_500
        rig.shelf.logs[0].free.set()
        await asking
        await asyncio.sleep(5)
        tally = (await node.tally()).types["t"]
        assert (tally.live, tally.in_flight, tally.fired) == (1, 0, 5)
        assert set(rig.target.seen.values()) == {1}

    play(story, type=type)


@BOTH
def test_what_is_handed_out_too_late_is_put_back_untried_and_delivered_once(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1, 2)
        ids = [id for shard in range(3) for id in rig.ids(shard, 3)]
        await rig.arm(node, ids, 1_000)
        await asyncio.sleep(0.99)
        freeze(rig, 0)
        asking = asyncio.ensure_future(rig.arm(node, rig.ids(0, 1, "stuck"), 60_000))
        others = rig.ids(1, 3) + rig.ids(2, 3)
        await rig.until(lambda: rig.delivered(others), 5)
        rig.shelf.logs[0].free.set()
        await asking
        await rig.until(lambda: rig.delivered(ids), 20)
        await asyncio.sleep(5)
        assert set(rig.target.seen.values()) == {1}

    play(story, type=type)


@pytest.mark.parametrize("type", [MIXED, CALLBACKS], ids=["processor", "callbacks"])
def test_a_shard_that_is_not_confirmed_leaves_the_batch(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1, 2)
        ids = [id for shard in range(3) for id in rig.ids(shard, 3)]
        await rig.arm(node, ids, 100)
        for log in rig.shelf.logs.values():
            log.unsure = True
        rig.shelf.logs[1].taken = True
        others = rig.ids(0, 3) + rig.ids(2, 3)
        await rig.until(lambda: rig.delivered(others), 5)
        assert type is CALLBACKS or rig.target.posts == 1
        assert not set(rig.ids(1, 3)) & set(rig.target.at), "it is another's"
        assert [shard for _, shard, _ in rig.lost] == [1]
        assert sorted(node.held) == [0, 2]
        await asyncio.sleep(5)
        assert set(rig.target.seen.values()) == {1}
        assert (await node.tally()).types["t"].in_flight == 0

    play(story, type=type)


@pytest.mark.parametrize("type", [MIXED, CALLBACKS], ids=["processor", "callbacks"])
def test_a_confirmation_that_hangs_delays_the_others_for_a_second(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1, 2)
        ids = [id for shard in range(3) for id in rig.ids(shard, 3)]
        await rig.arm(node, ids, 100)
        due = rig.clock.now().wall_ms + 100
        log = rig.shelf.logs[1]
        log.unsure = True
        append, gate = log.confirm, asyncio.Event()

        async def hang() -> bool:
            await gate.wait()
            return await append()

        log.confirm = hang  # type: ignore[method-assign]
        others = rig.ids(0, 3) + rig.ids(2, 3)
        await rig.until(lambda: rig.delivered(others), 5)
        assert max(rig.target.at[id] for id in others) < due + 1_900
        assert type is CALLBACKS or rig.target.posts == 1
        assert not set(rig.ids(1, 3)) & set(rig.target.at), "nobody knows whose it is"
        gate.set()
        await rig.until(lambda: rig.delivered(ids), 20)
        await asyncio.sleep(5)
        assert set(rig.target.seen.values()) == {1}
        assert rig.lost == []

    play(story, type=type)


def test_letting_go_of_one_that_stands_still_ends() -> None:
    async def story(rig: Rig) -> None:
        a, b = await rig.node(0, 1), await rig.node()
        ids = rig.ids(0, 3)
        await rig.arm(a, ids, 20_000)
        freeze(rig, 0)
        asking = asyncio.ensure_future(a.arm(rig.timers(rig.ids(0, 1, "stuck"), 60_000), None, True, None))
        await asyncio.sleep(0.01)
        async with asyncio.timeout(12):
            assert not await a.release(0, 1_000)
        assert list((await asking).unavailable) == [0]
        assert list(a.held) == [1]
        assert rig.lost == []
        assert await rig.take(b, 0)
        await rig.until(lambda: rig.delivered(ids), 60)
        freeze(rig, 0)
        asking = asyncio.ensure_future(b.arm(rig.timers(rig.ids(0, 1, "stuck"), 60_000), None, True, None))
        await asyncio.sleep(0.01)
        rig.nodes.remove(b)
        async with asyncio.timeout(25):
            assert not await b.stop(1_000)

    play(story)
