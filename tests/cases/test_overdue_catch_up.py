"""Many timers are overdue at a start: they catch up at their rate, or are dropped; on-time ones stay in their window.

Also what a kill in the middle of it leaves: every timer delivered or dropped, and the counts add up.

By default 20,000; `TIMERD_OVERDUE=2000000 pytest -s tests/cases/test_overdue_catch_up.py` for two million.
"""

import asyncio
import os
import time
from bisect import bisect_right
from pathlib import Path
from typing import Any

import pytest

from tests.support import process
from tests.support.cases import BUSY, SLACK_S, millis, seeded, sized
from tests.support.process import ARMS_MAX, Process
from tests.support.processor import Answer, Delivery, Processor

OVERDUE = int(os.environ.get("TIMERD_OVERDUE") or sized(2_000_000, 20_000))
RATE = max(8_000, OVERDUE // 100)  # a second
BURST_S = 0.1  # of the rate, by docs/types.md
ARMS_S = OVERDUE / 30_000  # room to arm them all before they are due
GRACE_S = 1.0
MAX_LAG_S = 0.5
BATCH = 200
EVERY_S = 0.05  # an on-time timer of each type, so often
RUN_S = OVERDUE / RATE * (1.5 + BUSY) + 60


@pytest.fixture(autouse=True)
def time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "READY_S", 60 + OVERDUE / 10_000)


class Target(Processor):
    """Keeps what is needed of two million, and says nothing else. Timers of the backlog are called `late-<number>`."""

    def __init__(self) -> None:
        super().__init__(self.note)
        self.times = bytearray(OVERDUE)  # how often each of the backlog was received, up to 255
        self.moments: list[tuple[float, int]] = []
        """(when, how many of the backlog by then), a batch each"""
        self.received = 0
        self.on_time: dict[str, list[float]] = {}
        self.mixed = 0
        self.largest = 0

    def note(self, delivery: Delivery) -> Answer:
        self.deliveries.pop()
        late = [id for id in delivery.ids if id.startswith("late-")]
        for id in late:
            number = int(id[5:])
            self.times[number] = min(255, self.times[number] + 1)
        # (What is known already was in flight at a kill, and may be missed when it comes again.)
        self.mixed += bool(late) and any(id not in self.on_time for id in delivery.ids if id[:5] != "late-")
        if late:
            self.received += len(late)
            self.largest = max(self.largest, len(late))
            self.moments.append((delivery.at, self.received))
        for id in delivery.ids:
            if id[:5] != "late-":
                self.on_time.setdefault(id, []).append(delivery.at)
        return Answer()

    def most_in(self, seconds: float) -> int:
        """The most of the backlog that came within so long."""
        at = [moment for moment, _ in self.moments]
        sums = [0, *(count for _, count in self.moments)]
        return max((sums[bisect_right(at, moment + seconds)] - sums[n] for n, moment in enumerate(at)), default=0)


class OnTime:
    """Arms a timer of each type a few times a second, one second ahead, and knows when each is due."""

    def __init__(self, timerd: Process, target: Target, types: tuple[str, ...]) -> None:
        self.due: dict[str, int] = {}
        self.ends = False
        self.asked_s = 0.0
        """The slowest answer to an arm."""
        self._timerd = timerd
        self._target = target
        self._types = types

    async def run(self) -> None:
        """Until `ends`, for a moment at least."""
        least = time.time() + 1.5
        while not self.ends or time.time() < least:
            began = time.time()
            at = millis(began + 1)
            timers = [{"id": f"{type}-{at}", "type": type, "fire_at": at} for type in self._types]
            await self._timerd.arm(timers)
            self.due.update({str(timer["id"]): at for timer in timers})
            self.asked_s = max(self.asked_s, time.time() - began)
            await asyncio.sleep(max(0.0, began + EVERY_S - time.time()))

    def lags(self) -> dict[str, list[float]]:
        """By type, sorted: seconds from due to the first receipt."""
        found: dict[str, list[float]] = {type: [] for type in self._types}
        for id, at in self.due.items():
            if id in self._target.on_time:
                found[id.rpartition("-")[0]].append(self._target.on_time[id][0] - at / 1000)
        return {type: sorted(lags) for type, lags in found.items()}


async def backlog(timerd: Process, target: Target, misfire: dict[str, Any]) -> None:
    """The types, and a backlog that is overdue by more than the grace when this returns; the process is killed."""
    await timerd.put_type("many", url=target.url, max_lag=MAX_LAG_S, batch_size=BATCH, misfire=misfire)
    await timerd.put_type("calm", url=target.url, max_lag=MAX_LAG_S)
    at = millis(time.time() + ARMS_S * BUSY + 1)
    for start in range(0, OVERDUE, ARMS_MAX):
        timers = [
            {"id": f"late-{n}", "type": "many", "fire_at": at + n % 500}
            for n in range(start, min(OVERDUE, start + ARMS_MAX))
        ]
        status, _ = await timerd.request("POST", "/v1/timers", {"timers": timers}, headers={"Prefer": "return=minimal"})
        assert status == 200
    assert millis(time.time()) < at, "too slow for its own due time"
    timerd.kill()
    await timerd.wait()
    await asyncio.sleep(max(0.0, at / 1000 + 0.5 + GRACE_S + 0.2 - time.time()))
    assert not target.received


async def beside(timerd: Process, target: Target, done: Any) -> OnTime:
    """Arm on-time timers until `done` is true, and wait for the last of them."""
    on_time = OnTime(timerd, target, ("many", "calm"))
    arming = asyncio.create_task(on_time.run())
    try:
        await timerd.until(done, RUN_S)
    finally:
        on_time.ends = True
        await arming
    await target.until(lambda: on_time.due.keys() <= target.on_time.keys(), 30)
    return on_time


def in_their_window(on_time: OnTime) -> str:
    """The lags, as they are told; those beyond the window fail the test."""
    told = []
    for type, lags in on_time.lags().items():
        assert lags[0] >= 0, "early"
        assert lags[-1] <= MAX_LAG_S + SLACK_S, f"{type}: {lags[-1]:.3f} s late beside a backlog"
        inside = sum(lag <= MAX_LAG_S + 0.25 for lag in lags)
        told.append(
            f"{type}: {len(lags)} on time, lag p50 {lags[len(lags) // 2]:.3f} p99 {lags[len(lags) * 99 // 100]:.3f} "
            f"worst {lags[-1]:.3f} s, {inside} within max_lag + 0.25"
        )
    return "; ".join(told)


async def adds_up(timerd: Process, **counts: int) -> dict[str, Any]:
    """The counts of the backlog's type, which balance, and are these."""
    of = await timerd.stats("many")
    gone = of["fired"] + of["cancelled"] + of["replaced"] + of["dead"] + sum(of["dropped"].values())
    assert of["armed"] + of["revived"] == gone + of["live"]
    assert {name: of["dropped"].get("misfire", 0) if name == "misfire" else of[name] for name in counts} == counts
    return of


@pytest.mark.slow
async def test_what_is_overdue_catches_up_at_its_rate_beside_what_is_on_time(tmp_path: Path) -> None:
    seeded()
    async with Target() as target, Process(tmp_path / "data") as timerd:
        await backlog(timerd, target, {"grace": GRACE_S, "max_per_second": RATE})
        began = time.time()
        await timerd.start()
        started_s = time.time() - began

        async def half() -> bool:
            return target.received > OVERDUE // 2

        async def done() -> bool:
            return not target.times.count(0)

        on_time = await beside(timerd, target, half)
        most = target.most_in(1.0)
        last = target.received
        told = in_their_window(on_time)
        armed = len(on_time.due) // 2
        await timerd.kill_and_start()  # in the middle: what was in flight comes again, nothing is lost
        again = await beside(timerd, target, done)
        await timerd.until(lambda: is_empty(timerd))
        of = await adds_up(timerd, misfire=0, live=0, dead=0, fired=OVERDUE + armed + len(again.due) // 2)
        print(
            f"{OVERDUE} overdue at a start of {started_s:.1f} s, {RATE} a second allowed: {most} in the fullest one, "
            f"{last} and a kill, all in {time.time() - began:.1f} s; {told}; the slowest arm {on_time.asked_s:.3f} s; "
            f"after the kill {in_their_window(again)}; {of['batches']} batches since"
        )
        assert most <= RATE * (1 + BURST_S + SLACK_S / 4), "more than the rate in a second"
        assert target.largest <= BATCH
        assert not target.mixed, "what was missed travelled with what was on time"
        assert target.received - OVERDUE <= 16 * BATCH, "no more comes twice than was in flight"
        assert not timerd.complaints()


async def is_empty(timerd: Process) -> bool:
    return (await timerd.stats("many"))["live"] == 0


@pytest.mark.slow
async def test_what_is_overdue_is_dropped_beside_what_is_on_time(tmp_path: Path) -> None:
    seeded()
    async with Target() as target, Process(tmp_path / "data") as timerd:
        await backlog(timerd, target, {"policy": "drop", "grace": GRACE_S})
        began = time.time()
        await timerd.start()
        started_s = time.time() - began
        await timerd.kill_and_start()  # in the middle of it, most likely

        ready_at, dropped_at = time.time(), 0.0

        async def dropped() -> bool:
            nonlocal dropped_at
            dropped_at = time.time()
            return bool((await timerd.stats("many"))["dropped"].get("misfire", 0) == OVERDUE)

        on_time = await beside(timerd, target, dropped)
        await timerd.until(lambda: is_empty(timerd))
        await adds_up(timerd, misfire=OVERDUE, live=0, dead=0, fired=len(on_time.due) // 2)
        print(
            f"{OVERDUE} dropped {dropped_at - ready_at:.2f} s after a start of {started_s:.1f} s; "
            f"{in_their_window(on_time)}; the slowest arm {on_time.asked_s:.3f} s"
        )
        assert not target.received, "what was dropped was delivered"
        await timerd.kill_and_start()
        await adds_up(timerd, misfire=OVERDUE, live=0)
        told = [line for line in timerd.stderr + timerd.log if "timers_dropped" in line]
        assert any("type=many" in line and "reason=misfire" in line for line in told)
        assert len(told) <= 4, "a line now and then"
        assert not timerd.complaints()
