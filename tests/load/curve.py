"""The curve: what one second was like, a line each, and the numbers that are asked of it."""

import asyncio
import time
from typing import Any, Final, NamedTuple

from tests.load.arms import Arms, Told
from tests.load.server import Server
from tests.load.target import Target
from tests.load.wire import call

MB: Final = 1e6
HEAD: Final = (
    "    s  arms 2xx   refused  other  p99 ms |   due/s   fires/s  lag p50    p99 ms |"
    "  pending      due  in flight  retrying |  RSS MB  log MB"
)


class Second(NamedTuple):
    """One line."""

    at: float
    """Seconds since the curve began."""
    taken: int
    refused: int
    other: int
    """Timers of requests that had no answer or no connection."""
    answer_p99_ms: float | None
    due: int
    fired: int
    lag_p50_ms: float | None
    lag_p99_ms: float | None
    states: dict[str, int] | None
    """Of /v1/status; None: it did not answer."""
    rss_bytes: int
    log_bytes: int

    def line(self) -> str:
        states = self.states or {}
        counts = [str(states.get(name, "-")) for name in ("armed", "due", "in_flight", "retrying")]
        return (
            f"{self.at:5.0f} {self.taken:9,} {self.refused:9,} {self.other:6,} {_ms(self.answer_p99_ms)} |"
            f" {self.due:7,} {self.fired:9,} {_ms(self.lag_p50_ms)} {_ms(self.lag_p99_ms)}   |"
            f" {counts[0]:>8} {counts[1]:>8} {counts[2]:>10} {counts[3]:>9} |"
            f" {self.rss_bytes / MB:7.0f} {self.log_bytes / MB:7.0f}"
        )


class Curve:
    """Looks once a second. `seconds` is all that was seen."""

    def __init__(self, server: Server, arms: Arms, target: Target, told: Told) -> None:
        self.seconds: list[Second] = []
        self._server = server
        self._arms = arms
        self._target = target
        self._told = told
        self._begin = time.time()
        self._last = (0, 0)
        self._status: dict[str, Any] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        looking = asyncio.get_running_loop().create_task(self._look())
        self._fired = self._target.fired
        self._seen = (self._told.taken, self._told.refused, self._others())
        try:
            for n in range(1 << 30):
                await asyncio.sleep(max(0.0, self._begin + n + 1 - time.time()))
                self.seconds.append(self._second())
                print(self.seconds[-1].line(), flush=True)
        finally:
            looking.cancel()

    async def until(self, seconds: float) -> None:
        """Wait so long."""
        end = len(self.seconds) + round(seconds)
        while len(self.seconds) < end:
            await asyncio.sleep(0.05)

    def note(self, text: str) -> None:
        print(f"      {text}", flush=True)

    def _others(self) -> int:
        return self._told.unsent + (self._told.requests[0] + self._told.requests[-1]) * self._arms.batch

    def _second(self) -> Second:
        target, told = self._target, self._told
        now = time.time()
        lags, target.lags_ms = sorted(target.lags_ms), []
        took, told.took_s = sorted(told.took_s), []
        seen = (told.taken, told.refused, self._others())
        news = [new - old for new, old in zip(seen, self._seen, strict=True)]
        fired = target.fired - self._fired
        self._seen, self._fired = seen, target.fired
        status, self._status = self._status, None
        return Second(
            now - self._begin,
            news[0],
            news[1],
            news[2],
            took[len(took) * 99 // 100] * 1000 if took else None,
            self._arms.due.pop(int(now) - 1, 0),
            fired,
            lags[len(lags) // 2] if lags else None,
            lags[len(lags) * 99 // 100] if lags else None,
            status["timers"] if status else None,
            self._server.rss_bytes(),
            self._server.disk_bytes(),
        )

    async def _look(self) -> None:
        """Ask for the counts once a second, for as long as the answer takes."""
        while True:
            try:
                self._status = await call(self._server.port, "GET", "/v1/status", timeout_s=30)
            except RuntimeError:
                self._status = None
            await asyncio.sleep(0.9)


def _ms(value: float | None) -> str:
    return "      -" if value is None else f"{value:7,.0f}"
