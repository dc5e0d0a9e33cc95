"""A10: the clock is set back, and nothing fires until it has caught up.

A sleep was worked out from two readings of the wall clock and given to a monotonic wait, so that a step back by an hour
was slept through (quartznet/quartznet #1508, PR #3148).
"""

import asyncio
import time
from pathlib import Path

import pytest

from tests.callbacks.target import Reply, Target
from tests.support.cases import SLACK_S, each, instant, millis, outside, seeded, sized
from tests.support.clock_shim import ClockShim
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

HOUR_S = 3_600.0
MAX_LAG_S = 0.5
X_S, STEP_S, RESTORE_S = sized((30.0, 5.0, 10.0), (4.0, 0.7, 2.0))
Y_S = sized(5.0, 2.0)
SPREAD = 100
IDLE_S = 2.0
PAUSE_S = 2
ALLOW = ("--callback-allow", "127.0.0.0/8")
NOTICED_S = 0.2
"""A step is noticed within this (promise 10: a look at the clock five times a second)."""


async def until_time(at: float) -> None:
    await asyncio.sleep(max(0.0, at - time.time()))


async def server_time(timerd: Process) -> float:
    async with timerd.session.get(timerd.url + "/healthz") as answer:
        return instant(answer.headers["Timerd-Now"])


async def armed(timerd: Process, id: str, at: float) -> float:
    """Arm one by the server's clock; when it is due by it."""
    answer = await timerd.arm([{"id": id, "type": "t", "fire_at": millis(at)}])
    return instant(answer["results"][0]["fire_at"])


async def back_and_restored(timerd: Process, processor: Processor, clock: ClockShim) -> None:
    begin = time.time()
    due = {"x": await armed(timerd, "x", begin + X_S)}
    await until_time(begin + STEP_S)
    clock.shift(hours=-1)
    assert abs(await server_time(timerd) - (time.time() - HOUR_S)) < 2, "the shim does not work"
    await until_time(begin + RESTORE_S)
    clock.shift()
    await processor.until(lambda: "x" in processor.ids, timeout_s=X_S + 10)
    assert not outside(processor, due, max_lag_s=MAX_LAG_S)
    assert processor.counts == {"x": 1}


async def back_and_left(timerd: Process, processor: Processor, clock: ClockShim) -> None:
    """Y by the new clock, and X when that reaches it.

    A retry's gap is no matter of the wall clock; but where the step makes a retry's own time one that is still to come
    ("held"), it waits for that: never early.
    """
    processor.answer = lambda delivery: Answer(500 if fails_once(delivery) else 200)
    x_at = await armed(timerd, "x", time.time() + X_S)
    await armed(timerd, "retried", time.time() - 2 * HOUR_S)
    await armed(timerd, "held", time.time())
    await processor.until(lambda: {"retried", "held"} <= processor.ids)
    clock.shift(hours=-1)
    y_at = await armed(timerd, "y", time.time() - HOUR_S + Y_S)
    await timerd.arm([{"id": "delayed", "type": "t", "delay": Y_S}])
    await processor.until(lambda: {"y", "delayed"} <= processor.ids and processor.counts["retried"] == 2, timeout_s=20)
    assert not outside(processor, {"y": y_at + HOUR_S}, max_lag_s=MAX_LAG_S)
    assert "x" not in processor.ids

    used_s = timerd.cpu_s()
    await asyncio.sleep(IDLE_S)  # the case: X is an hour ahead again, and nothing runs until then
    assert timerd.cpu_s() - used_s < 0.1 * IDLE_S
    await until_time(x_at + MAX_LAG_S)
    assert "x" not in processor.ids, "X went by the clock of before"
    assert processor.counts["held"] == 1, "a retry was early"
    clock.shift(seconds=x_at - time.time() - 1)
    reached = time.time() + 1
    await processor.until(lambda: "x" in processor.ids and processor.counts["held"] == 2)
    assert not outside(processor, {"x": reached - 0.001}, max_lag_s=MAX_LAG_S + NOTICED_S)
    assert processor.counts == {"x": 1, "y": 1, "delayed": 1, "retried": 2, "held": 2}


def fails_once(delivery: Delivery) -> bool:
    return any(timer["id"] in ("retried", "held") and timer["attempt"] == 1 for timer in delivery.body["timers"])


async def forward(timerd: Process, processor: Processor, clock: ClockShim) -> None:
    now = time.time()
    step_at = now + 1
    # None lies so near to the end of the jump that it would be due while we look.
    asked = {f"id-{n}": now + 60 + n * 2 * HOUR_S / SPREAD for n in range(SPREAD)}
    for id, at in asked.items():
        await armed(timerd, id, at)
    assert not processor.ids
    await until_time(step_at)
    clock.shift(hours=1)
    stepped = time.time()
    due = {id for id, at in asked.items() if at <= stepped + HOUR_S}
    assert SPREAD * 0.4 < len(due) < SPREAD * 0.6
    await processor.until(lambda: processor.ids >= due)
    assert not outside(processor, dict.fromkeys(due, 0.0), max_lag_s=MAX_LAG_S + NOTICED_S, since=stepped)
    await timerd.arm([{"id": "watch", "type": "t", "delay": MAX_LAG_S}])
    await processor.until(lambda: "watch" in processor.ids)
    assert processor.counts == dict.fromkeys([*due, "watch"], 1)
    listed = {timer["id"]: millis(instant(timer["fire_at"])) for timer in await timerd.list()}
    assert listed == {id: millis(at) for id, at in asked.items() if id not in due}


async def callbacks(timerd: Process, processor: Processor, clock: ClockShim) -> None:
    """Each by the clock as it is; what waits for a host that asked for a pause, or for its next attempt, by lengths."""
    async with Target() as paused, Target() as well:
        paused.answer = lambda got: Reply(429, {"Retry-After": str(PAUSE_S)}) if len(paused.got) == 1 else Reply()
        await timerd.put_type("c", kind="callback", max_lag=MAX_LAG_S, retry={"min_backoff": "1s", "jitter": 0})

        async def arm(id: str, to: Target, at: float) -> None:
            await timerd.arm([{"id": id, "type": "c", "fire_at": millis(at), "request": {"url": to.url}}])

        begin = time.time()
        await arm("first", paused, begin - 2 * HOUR_S)
        await paused.until(lambda: len(paused.got) == 1)
        asked = time.time()
        await arm("behind", paused, begin - 2 * HOUR_S)  # is due, and waits for its host
        x_at = begin + X_S
        await arm("x", well, x_at)
        clock.shift(hours=-1)
        y_at = time.time() + 1
        await arm("y", well, y_at - HOUR_S)
        await well.until(lambda: "y" in well.ids)
        assert millis(y_at) / 1000 <= well.got[0].at <= y_at + MAX_LAG_S + SLACK_S
        await paused.until(lambda: len(paused.got) == 3)
        assert {got.id for got in paused.got[1:]} == {"first", "behind"}
        assert all(PAUSE_S <= got.at - asked + 0.1 <= PAUSE_S + 1 + SLACK_S for got in paused.got[1:])
        clock.shift()
        restored = time.time() + NOTICED_S
        await well.until(lambda: "x" in well.ids, timeout_s=X_S + 10)
        assert millis(x_at) / 1000 <= well.got[-1].at <= max(x_at, restored) + MAX_LAG_S + SLACK_S
        assert well.ids == ["y", "x"]
        assert not processor.deliveries


VARIANTS = {
    "back and restored": back_and_restored,
    "back and left": back_and_left,
    "forward": forward,
    "callbacks": callbacks,
}


@pytest.mark.slow
async def test_timers_follow_a_clock_that_is_stepped(tmp_path: Path) -> None:
    seeded()

    async def run(name: str) -> None:
        directory = tmp_path / name.replace(" ", "-")
        directory.mkdir()
        clock = ClockShim(directory)
        async with Processor() as processor, Process(directory / "data", *ALLOW, env=clock.env) as timerd:
            retry = {"min_backoff": "1s", "max_backoff": "1s"}
            await timerd.put_type("t", url=processor.url, max_lag=MAX_LAG_S, retry=retry)
            await VARIANTS[name](timerd, processor, clock)
            assert (await timerd.request("GET", "/readyz"))[0] == 200
            assert not timerd.complaints()

    await each(run, VARIANTS)
