"""An instant, as everything in the engine is told it.

Two clocks, for two purposes. Wall time says when a timer is due: it follows the operator's clock wherever that goes,
backwards too. Boot time says how long something has waited (retry gaps, breakers, leases): it never goes back and
counts the time a machine was suspended.
"""

from typing import NamedTuple


class Now(NamedTuple):
    """One reading of both clocks."""

    wall_us: int
    """Unix time in microseconds; may be smaller than in the reading before."""
    boot_ms: int
    """Milliseconds since some fixed moment of this machine's life; never decreases."""

    @property
    def wall_ms(self) -> int:
        """Unix milliseconds, rounded down, so that `fire_at <= wall_ms` is never true too early."""
        return self.wall_us // 1000
