"""A clock that stands still until it is turned: for tests of what happens in sixty days, in a second.

Wall and boot time move together, and only forward. It knows nothing of who reads it; `turner.py` turns it no faster
than what is due on the way is delivered.
"""

from timerd.clock import is_believable
from timerd.engine.now import Now


class ClockStopped(Exception):
    """A turn ended before its time, because the service stops."""


class VirtualClock:
    """Implements `timerd.ports.Clock`. Begins at `wall_ms`, with boot time at 0."""

    def __init__(self, wall_ms: int) -> None:
        self._began_ms = self._wall_ms = wall_ms

    def now(self) -> Now:
        """Both clocks."""
        return Now(self._wall_ms * 1_000, self._wall_ms - self._began_ms)

    def turn_to(self, wall_ms: int) -> None:
        """It shows this from now on."""
        assert wall_ms >= self._wall_ms, "a virtual clock is not turned back"
        assert is_believable(Now(wall_ms * 1_000, 0))
        self._wall_ms = wall_ms
