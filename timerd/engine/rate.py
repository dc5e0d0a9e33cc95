"""A type's `max_per_second`: a bucket of allowance that fills with boot time.

It counts in millionths of a timer and whole milliseconds, so that what it grants, and the moment it names for the
next grant, are exact: in any span of `t` seconds at most `rate * t + burst` timers pass.
"""

from typing import Final

_UNIT: Final = 1_000_000  # millionths: a rate of one timer a second is 1,000 of them a millisecond
PER_SECOND_MIN: Final = 0.001
PER_SECOND_MAX: Final = 1e9  # what is refused above this when a type is put would overflow here
BURST_S: Final = 0.1  # allowance that may be saved up: enough to send batches, too little to be felt as a storm


class Rate:
    """An allowance of `per_second` timers, full at first."""

    def __init__(self, per_second: float, boot_ms: int) -> None:
        self.per_second = per_second
        per_second = min(max(per_second, PER_SECOND_MIN), PER_SECOND_MAX)
        self.burst = max(1, int(per_second * BURST_S))
        """The largest grant, in timers."""
        self._a_ms = max(1, round(per_second * _UNIT / 1000))
        self._level = self.burst * _UNIT
        self._at = boot_ms

    def free_at(self, timers: int, boot_ms: int) -> int:
        """Boot ms from which `timers` (at most `burst`) may pass if none do before."""
        assert timers <= self.burst, "more than can ever be granted at once"
        self._fill(boot_ms)
        lacking = timers * _UNIT - self._level
        return boot_ms if lacking <= 0 else boot_ms - (-lacking // self._a_ms)

    def available(self, boot_ms: int) -> int:
        """How many may pass now."""
        self._fill(boot_ms)
        return max(0, self._level // _UNIT)

    def spend(self, timers: int) -> None:
        """These are about to pass; `free_at` said that they may."""
        self._level -= timers * _UNIT
        assert self._level >= 0, "spent what was not granted"

    def give_back(self, timers: int) -> None:
        """These did not pass after all."""
        self._level = min(self.burst * _UNIT, self._level + timers * _UNIT)

    def _carry(self, rate: "Rate", boot_ms: int) -> None:
        """Go on from what is left of another, lest each change of a rate is a new burst."""
        rate._fill(boot_ms)
        self._level = min(self.burst * _UNIT, rate._level)

    def _fill(self, boot_ms: int) -> None:
        self._level = min(self.burst * _UNIT, self._level + (boot_ms - self._at) * self._a_ms)
        self._at = boot_ms


def rate_of(per_second: float | None, before: Rate | None, boot_ms: int) -> Rate | None:
    """The rate that holds now, `before` being the one that did. None: there is none."""
    if per_second is None:
        return None
    if before is None or before.per_second == per_second:
        return before or Rate(per_second, boot_ms)
    rate = Rate(per_second, boot_ms)
    rate._carry(before, boot_ms)
    return rate
