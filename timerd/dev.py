"""The virtual clock of `timerd dev`, kept in its data directory, and the directories kept apart.

Timers of a clock that was turned ahead would never fire by the real one, and real timers would be fired at once by a
turn. So a directory belongs to one kind of clock: the file `virtual-clock` is in it, and says where the clock stands,
or it isn't.
"""

import time
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
    return KeptClock(max(now_ms, wall_ms), directory)


class KeptClock(VirtualClock):
    """Each time it shows is written down before it is shown: it does not go back however the process ends."""

    def __init__(self, wall_ms: int, directory: Path) -> None:
        super().__init__(wall_ms)
        self._kept = directory / NAME
        new = directory / f"{NAME}.new"
        new.write_bytes(_written(wall_ms))
        new.replace(self._kept)

    def turn_to(self, wall_ms: int) -> None:
        """It shows this from now on."""
        # In place, for another file or a sync costs milliseconds, and a turn may have thousands of stops. The text is
        # as long as before, so a killed process leaves the one or the other.
        with self._kept.open("r+b", buffering=0) as file:
            file.write(_written(wall_ms))
        super().turn_to(wall_ms)


def _written(wall_ms: int) -> bytes:
    return b"%013d" % wall_ms  # all times from 2001 to 2286 have as many digits
