"""Shards with nothing to do cost a node one look at the clock for all of them, and that look misses nothing."""

import asyncio

from tests.shards.rig import Rig, play
from timerd.engine.message import SetReserve

MANY = 24


def test_many_idle_shards_wake_up_no_more_often_than_one() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(*range(MANY))
        await rig.arm(node, [f"far-{n}" for n in range(100)], 3_600_000)
        await asyncio.sleep(5)
        turns, waits = node._runners.turns, rig.loop.waits
        await asyncio.sleep(20)
        assert rig.loop.waits - waits <= 20 * 5 + 2
        assert node._runners.turns == turns

    play(story, shards=MANY)


def test_a_stepped_wall_clock_is_seen_for_all_shards() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(*range(MANY))
        ids = [rig.ids(shard, 1)[0] for shard in range(MANY)]
        await rig.arm(node, ids, 3_600_000)
        await asyncio.sleep(5)
        rig.clock.step(3_600_000)
        due = rig.clock.wall_ms
        await rig.until(lambda: rig.delivered(ids), 1)
        assert max(rig.target.at.values()) <= due + 250
        later = [rig.ids(shard, 1, "later")[0] for shard in range(MANY)]
        await rig.arm(node, later, 3_600_000)
        await asyncio.sleep(5)
        rig.clock.suspend(3_600_000)
        due = rig.clock.wall_ms
        await rig.until(lambda: rig.delivered(later), 1)
        assert max(rig.target.at[id] for id in later) <= due + 250

    play(story, shards=MANY)


def test_one_that_stands_still_is_pointed_out_however_busy_the_others_are() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1)
        [busy] = rig.ids(1, 1)
        told: list[tuple[str, int]] = []
        for name in ("on_slow", "on_still"):
            setattr(node._runners, name, lambda shard, name=name: told.append((name, shard)))
        rig.shelf.logs[0].free.clear()
        asking = asyncio.ensure_future(rig.arm(node, rig.ids(0, 1), 60_000))
        for _ in range(130):  # a turn every 10 ms
            await rig.arm(node, [busy], 60_000)
            await asyncio.sleep(0.01)
        assert told == [("on_slow", 0), ("on_still", 0)]
        rig.shelf.logs[0].free.set()
        await asking

    play(story)


def test_news_of_an_idle_log_reach_its_shard() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1)
        log = rig.shelf.logs[0]
        await asyncio.sleep(1)
        told: list[int] = []
        send = node._runners.group_of(0).runner.send

        def watched(shard: int, message: object, *more: int) -> None:
            if isinstance(message, SetReserve) and message.low:
                told.append(shard)
            send(shard, message, *more)  # type: ignore[arg-type]

        node._runners.group_of(0).runner.send = watched  # type: ignore[method-assign]
        log.low = lambda: True  # type: ignore[method-assign]
        await rig.until(lambda: told == [0], 0.5)
        log.low = lambda: False  # type: ignore[method-assign]
        assert await log.grant(100, 0)  # for an arm that is refused after all
        await rig.until(lambda: not log.unsettled(), 0.5)
        log.taken = True
        log.fenced = (0,)  # a confirmation has found out
        await rig.until(lambda: [shard for _, shard, _ in rig.lost] == [0], 0.5)
        assert list(node.held) == [1]

    play(story)
