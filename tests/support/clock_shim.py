"""A wrong wall clock for one process: a preload library that leaves CLOCK_MONOTONIC and CLOCK_BOOTTIME alone.

clock = ClockShim(tmp_path)
timerd = Process(data, env=clock.env)
clock.shift(days=10)        # a step
clock.drift(0.05)           # from now on five percent too fast
clock.time()                # what that process takes for the time
"""

import datetime
import time
from pathlib import Path

from .preload import build

SECOND_NS = 1_000_000_000
MILLION = 1_000_000


class ClockShim:
    """Skips the test where no C compiler is."""

    def __init__(self, directory: Path) -> None:
        library = build("clock_shim", directory)
        self._file = directory / "clock_offset"
        self._ahead_ns = self._ppm = self._since_ns = 0
        self.shift()
        self.env = {"LD_PRELOAD": str(library), "CLOCK_SHIM": str(self._file)}

    def shift(self, **by: float) -> None:
        """The wall clock is so much ahead from now on (`datetime.timedelta` arguments), and runs as others do."""
        self._set(round(datetime.timedelta(**by).total_seconds() * SECOND_NS), 0)

    def drift(self, rate: float) -> None:
        """From now on it gains so much: 0.05 is three seconds a minute, and a negative one loses."""
        self._set(self._now_ahead_ns(), round(rate * MILLION))

    def time(self) -> float:
        """Unix seconds by this clock."""
        return (time.time_ns() + self._now_ahead_ns()) / SECOND_NS

    def _now_ahead_ns(self) -> int:
        return self._ahead_ns + (time.monotonic_ns() - self._since_ns) // MILLION * self._ppm

    def _set(self, ahead_ns: int, ppm: int) -> None:
        self._ahead_ns, self._ppm, self._since_ns = ahead_ns, ppm, time.monotonic_ns()
        new = self._file.with_suffix(".new")
        new.write_text(f"{self._ahead_ns} {self._ppm} {self._since_ns}")
        new.replace(self._file)
