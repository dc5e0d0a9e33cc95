"""The only file that reads time; and what is said to a request that comes too late by it."""

import time
from typing import Final

from timerd.engine.message import Refused
from timerd.engine.now import Now
from timerd.engine.timer import MAX_WALL_US

# Boot time counts suspension; elsewhere than on Linux the monotonic clock is the nearest to it.
_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Now:
        """Both clocks, read one after the other."""
        return Now(time.time_ns() // 1_000, time.clock_gettime_ns(_BOOT) // 1_000_000)


def refused_if_late(now: Now, expires_at: int | None) -> Refused | None:
    """The refusal for a write that is accepted later than its `Timerd-Expires` (Unix ms)."""
    if expires_at is not None and now.wall_us > expires_at * 1000:
        return Refused("expired", "the request was accepted later than Timerd-Expires allows; nothing was done")
    return None


def is_believable(now: Now) -> bool:
    """Whether generations can be taken from this clock: one beyond the year 2200 is broken."""
    return now.wall_us < MAX_WALL_US
