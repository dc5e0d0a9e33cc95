"""The virtual clock of `timerd dev`, kept in its data directory, and the directories kept apart.

Timers of a clock that was turned ahead would never fire by the real one, and real timers would be fired at once by a
turn. So a directory belongs to one kind of clock: the file `virtual-clock` is in it, and says where the clock stands,
or it isn't.
"""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from timerd.config import ConfigError
from timerd.virtual_clock import VirtualClock

NAME: Final = "virtual-clock"


def check_real(directory: Path) -> None:
    """Raises ConfigError if the directory belongs to a virtual clock."""
    if (directory / NAME).exists():
        raise ConfigError(f"--data {directory} was made by `timerd dev`: its times are those of a virtual clock")


def open_clock(directory: Path) -> VirtualClock:
    """The clock of this directory, where it stood, and not before the real one. Raises ConfigError."""
    kept = directory / NAME
    now_ms = time.time_ns() // 1_000_000
    try:
        wall_ms = int(kept.read_text())
    except FileNotFoundError:
        if directory.exists() and any(directory.iterdir()):
            raise ConfigError(f"--data {directory} was not made by `timerd dev`; leave it out for a new one") from None
        directory.mkdir(parents=True, exist_ok=True)
        wall_ms = now_ms
    except ValueError:
        raise ConfigError(f"{kept} does not say where the clock stands, in Unix milliseconds") from None
    clock = VirtualClock(max(now_ms, wall_ms))
    keep(directory, clock)
    return clock


def keep(directory: Path, clock: VirtualClock) -> None:
    """Write down where the clock stands."""
    new = directory / f"{NAME}.new"
    new.write_text(str(clock.now().wall_ms))
    new.replace(directory / NAME)


class KeptTurner:
    """Turns the clock, and writes down where it stands, so that the next start goes on from there."""

    def __init__(self, directory: Path, clock: VirtualClock, turn_to: Callable[[int], Awaitable[int]]) -> None:
        self._directory = directory
        self._clock = clock
        self._turn_to = turn_to

    async def turn_to(self, wall_ms: int) -> int:
        """See `turner.Turner.turn_to`."""
        try:
            return await self._turn_to(wall_ms)
        finally:
            keep(self._directory, self._clock)
