"""The machine's two clocks, on virtual time. Implements `timerd.ports.Clock`.

Wall time may be stepped and may drift. Boot time goes on whatever the wall does, counts a suspension (during which the
loop's own time stands still), and begins anew when the machine reboots. The wall begins at an odd moment, years from
when anybody runs this, so that a stray reading of the real clock shows.
"""

import asyncio
from typing import Final

from timerd.engine.now import Now

EPOCH_US: Final = 1_996_613_331_217_904  # 2033-04-09, at no round number of anything


class SimClock:
    """`steps` counts the times that the wall went back."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wall_us = EPOCH_US
        self._boot_us = 71_653_000
        self._slept_us = 0
        self._mark = 0.0
        self._rate = 1.0
        self.went_back_at = -1e9
        """Loop time at which the wall was last set back,"""
        self.high_ms = 0
        """and what it had shown before."""

    def now(self) -> Now:
        """Both clocks."""
        passed_us = (self._loop.time() - self._mark) * 1e6
        return Now(self._wall_us + int(passed_us * self._rate), (self._boot_us + int(passed_us)) // 1000)

    @property
    def wall_ms(self) -> int:
        """The wall, rounded down here: the product's own rounding is under test."""
        return self.now().wall_us // 1000

    @property
    def wall_ms_up(self) -> int:
        """The wall, rounded up: what is said of an instant that is counted from now."""
        return -(-self.now().wall_us // 1000)

    @property
    def lived_s(self) -> float:
        """Seconds of boot time since the run began, whatever was booted meanwhile."""
        return self._loop.time() + self._slept_us / 1e6

    def step(self, ms: int) -> None:
        """Somebody sets the wall clock."""
        self._settle()
        if ms < 0:
            self.went_back_at = self._loop.time()
            self.high_ms = max(self.high_ms, self._wall_us // 1000)
        self._wall_us += ms * 1000

    def drift(self, rate: float) -> None:
        """From now on a second takes `rate` seconds of wall time."""
        self._settle()
        self._rate = rate

    def suspend(self, ms: int) -> None:
        """The machine slept: both clocks have gone on, and no timer of the loop has."""
        self._settle()
        self._wall_us += ms * 1000
        self._boot_us += ms * 1000
        self._slept_us += ms * 1000

    def reboot(self) -> None:
        """Boot time begins again."""
        self._settle()
        self._boot_us = 9_000_000

    def _settle(self) -> None:
        now = self._loop.time()
        passed_us = (now - self._mark) * 1e6
        self._wall_us += int(passed_us * self._rate)
        self._boot_us += int(passed_us)
        self._mark = now
