"""A shard whose renewal stands still holds up no other: it is not asked, then not waited for, until that has ended."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.shards.rig import CALLBACKS, PROCESSOR, Rig, play
from timerd.engine.errors import LogFailed
from timerd.engine.timer import TimerType
from timerd.ports import Answer, Request

LARGE = b'"' + b"x" * 700 + b'"'
SINGLY = TimerType("t", url="http://t/", max_lag_ms=0, batch_size=1)
TIGHT = [
    TimerType("t", url="http://t/", max_lag_ms=0, max_in_flight=1, batch_size=1),
    TimerType("t", url="http://t/", max_lag_ms=0, max_in_flight=4, batch_size=1),
    TimerType("t", url="http://t/", max_lag_ms=400, max_in_flight=1),
    TimerType("t", kind="callback", max_lag_ms=0, max_in_flight=1),
    TimerType("t", kind="callback", max_lag_ms=0, max_in_flight=4),
]
BOTH = pytest.mark.parametrize("type", [SINGLY, CALLBACKS], ids=["processor", "callbacks"])
IN_TIME_MS = 250


def said(logs: list[Any], event: str) -> int:
    return sum(line["event"] == event for line in logs)


def requests(rig: Rig) -> list[Request]:
    """All that the target will get."""
    sent: list[Request] = []
    post = rig.target.post

    async def seen(request: Request) -> Answer:
        sent.append(request)
        return await post(request)

    rig.target.post = seen  # type: ignore[method-assign]
    return sent


@pytest.mark.parametrize("type", TIGHT, ids=["singly", "four", "batches", "callbacks", "four-callbacks"])
@pytest.mark.parametrize("payload", [None, LARGE], ids=["small", "large"])
def test_others_wait_a_second_once_and_then_not_at_all(type: TimerType, payload: bytes | None) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1, 2)
        log, lag_ms = rig.shelf.logs[0], type.max_lag_ms + IN_TIME_MS
        sent = requests(rig)
        still, others = rig.ids(0, 6), rig.ids(1, 3) + rig.ids(2, 3)
        await rig.arm(node, still, 100, payload)
        await rig.arm(node, others, 200, payload)
        due = rig.clock.now().wall_ms + 200
        for more in range(5):
            await rig.arm(node, rig.ids(0, 2, f"r{more}-"), 3_000 + 1_000 * more, payload)
            still += rig.ids(0, 2, f"r{more}-")
        log.free.clear()
        with capture_logs() as logs:
            await rig.until(lambda: rig.delivered(others), 5)
            assert max(rig.target.at[id] for id in others) < due + 1_000 + lag_ms
            for round in range(10):
                others = rig.ids(1, 2, f"o{round}-") + rig.ids(2, 2, f"o{round}-")
                await rig.arm(node, others, 600, payload)
                due = rig.clock.now().wall_ms + 600
                await rig.until(lambda others=others: rig.delivered(others), 5)
                assert max(rig.target.at[id] for id in others) < due + lag_ms
            assert not set(still) & set(rig.target.at), "nobody knows whose they are"
            assert log.confirms == 1, "it is asked once, and that goes on"
            assert node._dispatch.stuck(rig.clock.now()) is None
            log.free.set()
            await rig.until(lambda: rig.delivered(still), 5)
        assert (said(logs, "shard_unconfirmed"), said(logs, "shard_confirmed")) == (1, 1)
        await asyncio.sleep(5)
        assert set(rig.target.seen.values()) == {1}
        tally = (await node.tally()).types["t"]
        assert (tally.live, tally.in_flight, tally.fired) == (0, 0, 6 + 10 + 6 + 40)
        assert tally.retried <= 6, "put back once, and not again and again"
        assert not [request for request in sent if b"possible_duplicate" in request.body]
        assert not [request for request in sent if "Timerd-Possible-Duplicate" in request.headers]

    play(story, type=type)


@BOTH
def test_one_that_takes_long_is_asked_for_nothing_more(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1)
        log = rig.shelf.logs[0]
        await rig.arm(node, rig.ids(0, 1), 100)
        await rig.arm(node, rig.ids(0, 4, "later"), 500)
        log.free.clear()
        await asyncio.sleep(0.7)
        log.free.set()
        assert (await node.tally()).types["t"].in_flight == 1
        ids = rig.ids(0, 1) + rig.ids(0, 4, "later")
        with capture_logs() as logs:
            await rig.until(lambda: rig.delivered(ids), 5)
        assert max(rig.target.at.values()) < rig.clock.now().wall_ms + IN_TIME_MS
        assert not logs, "it has come in time"
        await asyncio.sleep(5)
        assert set(rig.target.seen.values()) == {1}

    play(story, type=type)


@pytest.mark.parametrize("type", TIGHT[::3], ids=["processor", "callbacks"])
def test_a_slot_is_free_though_the_shard_can_store_nothing_about_it(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1)
        still, others = rig.ids(0, 1), rig.ids(1, 2)
        await rig.arm(node, still, 100)
        await rig.arm(node, others, 200)
        due = rig.clock.now().wall_ms + 200
        log = rig.shelf.logs[0]
        log.unsure = True
        confirm, gate = log.confirm, asyncio.Event()

        async def hang() -> bool:
            await gate.wait()
            return await confirm()

        log.confirm = hang  # type: ignore[method-assign]
        await asyncio.sleep(0.9)
        log.free.clear()
        asking = asyncio.ensure_future(rig.arm(node, rig.ids(0, 1, "more"), 60_000))  # so a turn stands still, too
        await rig.until(lambda: rig.delivered(others), 5)
        assert max(rig.target.at[id] for id in others) < due + 1_000 + IN_TIME_MS
        gate.set()
        log.unsure = False
        log.free.set()
        await asking
        await rig.until(lambda: rig.delivered(still), 5)
        await asyncio.sleep(5)
        assert set(rig.target.seen.values()) == {1}
        assert (await node.tally()).types["t"].in_flight == 0

    play(story, shards=2, type=type)


@pytest.mark.parametrize("slots", [16, 1])
def test_what_is_to_be_buried_by_one_that_stands_still_holds_up_no_other(slots: int) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1)
        log = rig.shelf.logs[0]
        lost, rest, others = rig.ids(0, 1), rig.ids(0, 1, "rest"), rig.ids(1, 3)
        await rig.arm(node, lost, 100, LARGE)
        log._bodies = {}
        await rig.arm(node, rest, 100)
        await rig.arm(node, others, 200, LARGE)
        due = rig.clock.now().wall_ms + 200
        log.free.clear()
        log.is_confirmed = lambda: True  # type: ignore[method-assign]
        await rig.until(lambda: rig.delivered(others), 5)
        assert max(rig.target.at[id] for id in others) < due + IN_TIME_MS + 1_000 * (slots == 1)
        await asyncio.sleep(1)
        assert not rig.delivered(rest), "it was to leave with the one that is lost"
        log.free.set()
        await rig.until(lambda: rig.delivered(rest), 5)
        await asyncio.sleep(5)
        assert set(rig.target.seen.values()) == {1}
        tally = (await node.tally()).types["t"]
        assert (tally.live, tally.in_flight, tally.fired, tally.dead) == (0, 0, 4, 1)

    type = TimerType("t", url="http://t/", max_lag_ms=0, batch_size=2, max_in_flight=slots)
    play(story, shards=2, type=type)


def test_the_right_of_others_is_looked_at_again_after_waiting_for_one_in_vain() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1)
        still, log = rig.shelf.logs[0], rig.shelf.logs[1]
        ids = rig.ids(0, 2) + rig.ids(1, 2)
        await rig.arm(node, ids, 100)
        still.free.clear()
        log.unsure = True
        await rig.until(lambda: log.confirms)
        await asyncio.sleep(0.5)
        assert not rig.target.at
        log.taken = True  # and nobody has said so
        await rig.until(lambda: rig.lost, 5)
        still.free.set()
        await rig.until(lambda: rig.delivered(rig.ids(0, 2)), 5)
        await asyncio.sleep(5)
        assert sorted(rig.target.at) == sorted(rig.ids(0, 2))
        assert [shard for _, shard, _ in rig.lost] == [1]

    play(story, type=TimerType("t", url="http://t/", max_lag_ms=400))


@BOTH
def test_another_of_the_same_number_is_not_shut(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        a, b = await rig.node(0, 1), await rig.node()
        old = rig.shelf.logs[0]
        ids = rig.ids(0, 3)
        await rig.arm(a, ids, 100)
        old.free.clear()
        await asyncio.sleep(0.2)
        asyncio.get_running_loop().call_later(0.15, lambda: a._runners._failed(a._runners.group_of(0), LogFailed("-")))
        await rig.until(lambda: rig.lost, 5)  # before it is shut
        assert await rig.take(a, 0)
        rig.shelf.logs[0].unsure = True
        await rig.until(lambda: rig.delivered(ids), 5)
        old.free.set()
        assert await a.release(0, 1_000)
        assert await rig.take(b, 0)
        await rig.arm(b, rig.ids(0, 1, "more"), 100)
        await rig.until(lambda: rig.delivered(rig.ids(0, 1, "more")), 5)
        assert set(rig.target.seen.values()) == {1}

    play(story, type=type)


@BOTH
def test_a_renewal_that_fails_ends_the_shard_and_nothing_else(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1)
        log = rig.shelf.logs[0]
        await rig.arm(node, rig.ids(0, 2) + rig.ids(1, 2), 100)

        async def fail() -> bool:
            await asyncio.sleep(1.5)
            raise LogFailed("the disk is gone")

        log.unsure = True
        log.confirm = fail  # type: ignore[method-assign]
        await rig.until(lambda: rig.lost, 5)
        await rig.until(lambda: rig.delivered(rig.ids(1, 2)), 5)
        assert rig.lost == [(0, 0, "its log failed: the disk is gone")]
        assert not set(rig.ids(0, 2)) & set(rig.target.at)
        assert await rig.take(node, 0)
        await rig.until(lambda: rig.delivered(rig.ids(0, 2)), 5)
        await asyncio.sleep(5)
        assert set(rig.target.seen.values()) == {1}

    play(story, type=type if type is CALLBACKS else PROCESSOR)
