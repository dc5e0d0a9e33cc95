"""A shard whose payloads can't be read holds up no other, is asked again when they can, and buries nothing."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock, call

import pytest
from structlog.testing import capture_logs

from tests.shards.rig import CALLBACKS, PROCESSOR, Rig, play
from timerd.bodies import READ_S
from timerd.engine.errors import LogFailed
from timerd.engine.timer import BodyRef, TimerType
from timerd.shutting import Shutting, Why

MIXED = TimerType("t", url="http://t/", max_lag_ms=400)
LARGE = b'"' + b"x" * 700 + b'"'
BOTH = pytest.mark.parametrize("type", [MIXED, CALLBACKS], ids=["processor", "callbacks"])


def said(logs: list[Any], event: str) -> int:
    return sum(line["event"] == event for line in logs)


@BOTH
def test_others_wait_a_second_once_and_then_not_at_all(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1, 2)
        still = rig.ids(1, 3)
        others = rig.ids(0, 3) + rig.ids(2, 3)
        await rig.arm(node, [*still, *others], 100, LARGE)
        due = rig.clock.now().wall_ms + 100
        rig.shelf.logs[1].answers.clear()
        with capture_logs() as logs:
            await rig.until(lambda: rig.delivered(others), 5)
            assert max(rig.target.at[id] for id in others) < due + 1_900
            for round in range(5):
                others = rig.ids(0, 2, f"r{round}-") + rig.ids(2, 2, f"r{round}-")
                still += rig.ids(1, 2, f"r{round}-")
                await rig.arm(node, [*still[-2:], *others], 100, LARGE)
                due = rig.clock.now().wall_ms + 100
                await rig.until(lambda others=others: rig.delivered(others), 5)
                assert max(rig.target.at[id] for id in others) < due + 600
            assert not set(still) & set(rig.target.at)
            assert rig.shelf.logs[1].asked == 1, "it is asked once, and that goes on"
            rig.shelf.logs[1].answers.set()
            await rig.until(lambda: rig.delivered(still), 5)
        assert (said(logs, "payloads_unread"), said(logs, "payloads_read")) == (1, 1)
        assert not said(logs, "timers_not_sent") + said(logs, "callback_not_sent")
        await asyncio.sleep(5)
        assert set(rig.target.seen.values()) == {1}
        tally = (await node.tally()).types["t"]
        assert (tally.live, tally.in_flight, tally.fired) == (0, 0, 9 + 30)

    play(story, type=type)


def test_batches_that_are_open_already_wait_no_second_time() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1, 2)
        others = rig.ids(0, 9) + rig.ids(2, 9)
        for number, ids in enumerate(zip(rig.ids(1, 9), rig.ids(0, 9), rig.ids(2, 9), strict=True)):
            await rig.arm(node, [*ids], 100 + number, LARGE)
        due = rig.clock.now().wall_ms + 100
        rig.shelf.logs[1].answers.clear()
        await rig.until(lambda: rig.delivered(others), 10)
        assert rig.target.posts > 1
        assert max(rig.target.at[id] for id in others) < due + 1_900
        rig.shelf.logs[1].answers.set()
        await rig.until(lambda: rig.delivered(rig.ids(1, 9)), 5)
        assert set(rig.target.seen.values()) == {1}

    play(story, type=TimerType("t", url="http://t/", max_lag_ms=400, batch_size=9, max_in_flight=8))


@BOTH
def test_one_that_is_let_go_of_meanwhile_stays_shut_and_goes_clean(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        a, b = await rig.node(0, 1), await rig.node()
        ids = rig.ids(1, 3)
        await rig.arm(a, ids, 100, LARGE)
        rig.shelf.logs[1].answers.clear()
        await rig.until(lambda: rig.shelf.logs[1].asked)
        await asyncio.sleep(1.5)
        assert await a.release(1, 1_000)
        assert await rig.take(b, 1)
        await rig.until(lambda: rig.delivered(ids), 5)
        assert await rig.take(a, 2)
        await asyncio.sleep(5)
        assert set(rig.target.seen.values()) == {1}
        assert rig.lost == []

    play(story, type=type)


def test_an_append_that_ends_does_not_open_it() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1)
        log = rig.shelf.logs[1]
        await rig.arm(node, rig.ids(1, 2), 100, LARGE)
        log.answers.clear()
        await rig.until(lambda: log.asked)
        await asyncio.sleep(1.5)
        log.free.clear()
        asking = asyncio.ensure_future(rig.arm(node, rig.ids(1, 2, "more"), 100, LARGE))
        await asyncio.sleep(1.5)
        assert log.asked == 1
        log.free.set()
        await asking
        await asyncio.sleep(1)
        lsn = log._lsns[1]
        await asyncio.sleep(3)
        assert log.asked == 1
        assert log._lsns[1] == lsn, "nothing is handed out and put back"
        log.answers.set()
        ids = rig.ids(1, 2) + rig.ids(1, 2, "more")
        await rig.until(lambda: rig.delivered(ids), 5)
        assert set(rig.target.seen.values()) == {1}

    play(story, type=MIXED)


@pytest.mark.parametrize("type", [PROCESSOR, CALLBACKS], ids=["processor", "callbacks"])
def test_who_has_lost_the_shard_without_knowing_it_takes_no_payload_for_lost(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1)
        log = rig.shelf.logs[1]
        await rig.arm(node, rig.ids(1, 3), 100, LARGE)
        log.unsure = log.taken = True  # another has it, and has moved what it read there
        log._bodies = {}
        with capture_logs() as logs:
            await rig.until(lambda: rig.lost, 5)
            await asyncio.sleep(1)
        assert not said(logs, "timers_not_sent") + said(logs, "callback_not_sent")
        assert not rig.target.at

    play(story, type=type)


@pytest.mark.parametrize("type", [PROCESSOR, CALLBACKS], ids=["processor", "callbacks"])
def test_what_is_lost_is_buried_once_the_shard_is_confirmed(type: TimerType) -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1)
        log = rig.shelf.logs[1]
        await rig.arm(node, rig.ids(1, 3), 100, LARGE)
        log.unsure = True
        log._bodies = {}
        with capture_logs() as logs:
            await asyncio.sleep(3)
        assert log.confirms
        assert said(logs, "timers_not_sent") + said(logs, "callback_not_sent")
        assert (await node.tally()).types["t"].dead == 3

    play(story, type=type)


def test_a_reason_that_is_gone_opens_nothing_while_another_stands() -> None:
    absent = Mock()
    shutting = Shutting(absent, Mock(), Mock())
    for first, then in itertools.permutations(Why, 2):
        shutting.shut(0, first)
        shutting.shut(0, then)
        absent.reset_mock()
        shutting.open(0, first)
        assert absent.mock_calls == [call.reopen(0), call.shut(0)][first is not Why.SLOW :], "who is slow is waited for"
        absent.reset_mock()
        shutting.open(0, then)
        assert absent.mock_calls == [call.reopen(0)]


def test_one_that_is_let_go_of_hands_nothing_out_though_an_append_was_slow_behind_its_last_delivery() -> None:
    """The last of its upkeep is waited for then, and that may append as slowly as it likes."""

    async def story(rig: Rig) -> None:
        a, b = await rig.node(0, 1), await rig.node()
        log, ids = rig.shelf.logs[1], rig.ids(1, 3)
        await rig.arm(a, ids, 1_000)
        rig.target.free.clear()  # what leaves now is open when the shard goes

        async def settle() -> None:
            log.free.clear()
            slow = asyncio.ensure_future(rig.arm(a, rig.ids(1, 1, "slow"), 60_000))
            await asyncio.sleep(0.5)
            log.free.set()
            await slow
            await asyncio.sleep(2)

        a._runners.group_of(1).upkeep.settle = settle  # type: ignore[method-assign]
        assert await a.release(1, 30_000)
        assert rig.target.posts == 0
        rig.target.free.set()
        assert await rig.take(b, 1)
        await rig.until(lambda: rig.delivered(ids), 5)
        assert set(rig.target.seen.values()) == {1}

    play(story, type=TimerType("t", url="http://t/", max_lag_ms=0))


def test_one_that_is_lost_just_as_its_payloads_are_given_up_delivers_when_it_is_back() -> None:
    async def story(rig: Rig) -> None:
        node = await rig.node(0, 1)
        log, ids = rig.shelf.logs[1], rig.ids(1, 3)
        group = node._runners.group_of(1)
        read = log.read_bodies

        async def asked(places: Sequence[BodyRef]) -> list[bytes | None]:
            rig.loop.call_later(READ_S, node._runners._failed, group, LogFailed("in that very moment"))
            return await read(places)

        log.read_bodies = asked  # type: ignore[method-assign]
        log.answers.clear()
        await rig.arm(node, ids, 100, LARGE)
        await rig.until(lambda: rig.lost)
        await asyncio.sleep(1)
        assert await rig.take(node, 1)
        await rig.until(lambda: rig.delivered(ids), 5)

    play(story, type=PROCESSOR)
