"""The only file that reads time."""

import time
from typing import Final

from timerd.engine.now import Now
from timerd.engine.timer import MAX_WALL_US

# Boot time counts suspension; elsewhere than on Linux the monotonic clock is the nearest to it.
_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Now:
        """Both clocks, read one after the other."""
        return Now(time.time_ns() // 1_000, time.clock_gettime_ns(_BOOT) // 1_000_000)


def is_believable(now: Now) -> bool:
    """Whether generations can be taken from this clock: one beyond the year 2200 is broken."""
    return now.wall_us < MAX_WALL_US
