"""Very many timers due at one instant, for a slow target: all delivered, none early, memory bounded, the API answers.

The target takes a second for every batch, so that they are due for a long time; meanwhile timers are armed, read and
listed, and another type's timers fire. (tests/cases/test_million_due.py looks at the first seconds of that.)
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.crash.kill import quantile
from tests.support.cases import millis
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

ARM_REQUEST = 5_000
ARMS_A_SECOND = 15_000  # so many are armed at least
BATCH, SLOTS = 1_000, 16
CALM_LAG_S = 0.5


class MillionReport(msgspec.Struct):
    """What came of it."""

    timers: int
    before_bytes: int = 0
    most_bytes: int = 0
    seconds: float = 0
    answers: list[float] = []
    """Seconds that each request took while timers were due."""
    calm_lags: list[float] = []
    early: int = 0
    twice: int = 0
    open_max: int = 0

    @property
    def growth_bytes(self) -> int:
        return self.most_bytes - self.before_bytes

    def summary(self) -> str:
        """Some lines to print."""
        answers, calm = self.answers, self.calm_lags
        return (
            f"{self.timers} due at once, all delivered in {self.seconds:.0f} s, early {self.early}, "
            f"twice {self.twice}, at most {self.open_max} deliveries open\n"
            f"memory {self.before_bytes / 1e6:.0f} MB before, {self.growth_bytes / 1e6:+.1f} MB at most\n"
            f"{len(answers)} requests meanwhile: p50 {quantile(answers, 0.5) * 1e3:.0f} ms, "
            f"p99 {quantile(answers, 0.99) * 1e3:.0f} ms, max {max(answers) * 1e3:.0f} ms\n"
            f"{len(calm)} timers of another type: lag p50 {quantile(calm, 0.5) * 1e3:.0f} ms, "
            f"p99 {quantile(calm, 0.99) * 1e3:.0f} ms, max {max(calm) * 1e3:.0f} ms, max_lag {CALM_LAG_S * 1e3:.0f} ms"
        )


async def million(directory: Path, timers: int, slow_s: float, say: Callable[[str], None] = print) -> MillionReport:
    """Arm them, let them be due, and wait for the last."""
    report = MillionReport(timers)
    seen = bytearray(timers)
    at = time.time() + timers / ARMS_A_SECOND + 3

    def slow(delivery: Delivery) -> Answer:
        for id in delivery.ids:
            n = int(id[5:])
            report.early += delivery.at < at - 0.001
            report.twice += seen[n]
            seen[n] = 1
        processor.deliveries.clear()  # a million of them are a gigabyte of this process
        return Answer(delay_s=slow_s)

    def calm(delivery: Delivery) -> Answer:
        report.calm_lags += [delivery.at - due[id] for id in delivery.ids]
        return Answer()

    due: dict[str, float] = {}
    async with Processor(slow) as processor, Processor(calm) as other, Process(directory / "data") as timerd:
        # Paused, lest they be due one after the other where arming them takes longer than was allowed for.
        fields = {"batch_size": BATCH, "max_in_flight": SLOTS, "max_lag": 0}
        await timerd.put_type("slow", url=processor.url, state="paused", **fields)
        await timerd.put_type("calm", url=other.url, max_lag=CALM_LAG_S)
        for start in range(0, timers, ARM_REQUEST):
            part = range(start, min(timers, start + ARM_REQUEST))
            body = {"timers": [{"id": f"slow-{n}", "type": "slow", "fire_at": millis(at)} for n in part]}
            status, answer = await timerd.request("POST", "/v1/timers", body, headers={"Prefer": "return=minimal"})
            assert status == 200, answer
        say(f"{timers} armed, {at - time.time():.1f} s before they are due")
        await asyncio.sleep(max(0.0, at - 1 - time.time()))
        report.before_bytes = report.most_bytes = timerd.rss_bytes()
        status, answer = await timerd.request("POST", "/v1/types/slow:resume")
        assert status == 200, answer
        asking = asyncio.create_task(_ask(timerd, report, due))
        begin = time.monotonic()
        told = begin
        try:
            while (live := (await timerd.stats("slow"))["live"]) and not report.early:
                report.most_bytes = max(report.most_bytes, timerd.rss_bytes())
                if time.monotonic() - told > 5:
                    told = time.monotonic()
                    say(f"{live} left, {report.growth_bytes / 1e6:+.1f} MB")
                await asyncio.sleep(0.1)
            report.seconds = time.monotonic() - begin
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
        report.open_max = processor.open_max
        assert report.early or all(seen), "some were never received"
        assert not timerd.complaints()
    return report


async def _ask(timerd: Process, report: MillionReport, due: dict[str, float]) -> None:
    """Arm, read, list and look at the status, one request behind the other."""
    n = 0
    while True:
        due[f"calm-{n}"] = (millis(time.time()) + 50) / 1000
        fire_at = round(due[f"calm-{n}"] * 1000)
        for method, path, body in (
            ("POST", "/v1/timers", {"timers": [{"id": f"calm-{n}", "type": "calm", "fire_at": fire_at}]}),
            ("GET", f"/v1/timers/slow-{report.timers - 1}", None),
            ("GET", "/v1/timers?type=slow&page_size=10", None),
            ("GET", "/v1/status", None),
        ):
            begin = time.monotonic()
            status, answer = await timerd.request(method, path, body)
            report.answers.append(time.monotonic() - begin)
            assert status in (200, 404), answer
        n += 1
        await asyncio.sleep(0.05)
