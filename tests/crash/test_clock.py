"""A wall clock that steps and drifts, while the machine's other clocks do not: fire times follow it, waiting does not.

A preload library (tests/support/clock_shim.c) is the clock of the process; `clock.time()` is the same in the test.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import FULL, millis
from tests.support.clock_shim import ClockShim
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

LATE_S = 10.0  # much more than a machine that has nothing else to do needs
TIMERS = 40
STEP_S = 3_600.0
BACKOFF_S = 1.5
FAR_S = 5_000.0


class Watch:
    """A processor's script that looks at the process's clock at each receipt."""

    def __init__(self, clock: ClockShim) -> None:
        self.clock = clock
        self.received: dict[str, float] = {}

    def __call__(self, delivery: Delivery) -> Answer:
        now = self.clock.time()
        for id in delivery.ids:
            self.received.setdefault(id, now)
        return Answer()


async def arm(timerd: Process, ids: dict[str, float], type: str = "t") -> dict[str, Any]:
    """At these times. Their generations."""
    answer = await timerd.arm([{"id": id, "type": type, "fire_at": millis(at)} for id, at in ids.items()])
    return {result["id"]: result["generation"] for result in answer["results"]}


@pytest.mark.slow
async def test_steps_of_the_wall_clock_move_fire_times_and_nothing_else(tmp_path: Path) -> None:
    clock = ClockShim(tmp_path)
    watch = Watch(clock)
    failures: list[float] = []

    def fail_once(delivery: Delivery) -> Answer:
        failures.append(time.monotonic())
        return Answer(500 if len(failures) == 1 else 200)

    async with (
        Processor(watch) as processor,
        Processor(fail_once) as failing,
        Process(tmp_path / "data", env=clock.env) as timerd,
    ):
        await timerd.put_type("t", url=processor.url)
        retry = {"min_backoff": BACKOFF_S, "max_backoff": BACKOFF_S, "jitter": 0}
        await timerd.put_type("failing", url=failing.url, retry=retry)
        far = {f"far-{n}": clock.time() + STEP_S + FAR_S for n in range(TIMERS)}
        ahead = {f"ahead-{n}": clock.time() + STEP_S * (n + 1) / (TIMERS + 1) for n in range(TIMERS)}
        await arm(timerd, far)
        first = await arm(timerd, ahead)
        await arm(timerd, {"fails": clock.time()}, "failing")
        await failing.until(lambda: len(failures) == 1)

        # Forward: what it passes over is due now. A retry waits as long as it would have.
        clock.shift(seconds=STEP_S)
        stepped = time.monotonic()
        await processor.until(lambda: watch.received.keys() >= ahead.keys())
        assert time.monotonic() - stepped < LATE_S
        await failing.until(lambda: len(failures) == 2)
        assert BACKOFF_S * 0.99 <= failures[1] - failures[0] < BACKOFF_S + LATE_S
        second = await arm(timerd, {id: clock.time() + FAR_S for id in ahead})

        # Back, beyond where it began: nothing is early by the clock as it is now, and generations go on.
        clock.shift(seconds=-STEP_S)
        soon = {f"soon-{n}": clock.time() + 0.5 + n / 100 for n in range(TIMERS)}
        begin = time.monotonic()
        await arm(timerd, soon)
        third = await arm(timerd, {id: clock.time() + FAR_S for id in ahead})
        await processor.until(lambda: watch.received.keys() >= soon.keys())
        assert 0.5 <= time.monotonic() - begin < 0.5 + TIMERS / 100 + LATE_S
        await timerd.kill_and_start()
        fourth = await arm(timerd, {id: clock.time() + FAR_S for id in ahead})
        for id in ahead:
            assert first[id] < second[id] < third[id] < fourth[id]
        await asyncio.sleep(0.6)  # longer than a clock that was stepped goes unseen
        assert watch.received.keys() == ahead.keys() | soon.keys()
        assert all(watch.received[id] >= at for id, at in soon.items())

        # And to where all is due, for a new process, too.
        clock.shift(seconds=STEP_S + FAR_S)
        await processor.until(lambda: watch.received.keys() >= far.keys())
        assert set(processor.counts.values()) <= {1, 2}
        assert not timerd.complaints()


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.2, -0.2] if FULL else [-0.2])
async def test_a_drifting_clock_is_followed(tmp_path: Path, rate: float) -> None:
    clock = ClockShim(tmp_path)
    watch = Watch(clock)
    async with Processor(watch) as processor, Process(tmp_path / "data", env=clock.env) as timerd:
        await timerd.put_type("t", url=processor.url)
        clock.drift(rate)
        due = {f"id-{n}": millis(clock.time() + 0.5 + 2.5 * n / TIMERS) / 1000 for n in range(TIMERS)}
        await arm(timerd, due)
        await processor.until(lambda: watch.received.keys() == due.keys())
        lags = [watch.received[id] - at for id, at in due.items()]
        print(f"lag by that clock {min(lags) * 1e3:.1f} to {max(lags) * 1e3:.1f} ms")
        assert min(lags) >= 0, "early"
        assert max(lags) < LATE_S
        assert set(processor.counts.values()) == {1}
