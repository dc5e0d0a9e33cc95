"""How long until the next poll: a pure function of how the polls before went.

The service asks it what to answer timerd, and the judge of the demo asks it what the service should have done.
"""

from typing import NamedTuple


class Cadence(NamedTuple):
    """An interval after a good poll; after failures in a row it doubles up to a bound."""

    interval_ms: int
    failed_interval_ms_max: int
    """Far enough that a dead feed costs little, near enough that one that comes back is noticed."""

    def after(self, failures: int) -> int:
        """Milliseconds from the start of a poll to the start of the next; `failures` in a row, this one included."""
        if failures == 0:
            return self.interval_ms
        # Beyond twenty doublings any interval has met its bound, and the shift stays a small number.
        doubled: int = self.interval_ms << min(failures, 20)
        return max(self.interval_ms, min(doubled, self.failed_interval_ms_max))
