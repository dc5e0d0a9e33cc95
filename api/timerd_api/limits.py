"""Limits: how much a key may ask for in a second, as a bucket of allowance that fills with boot time.

It counts timers: a request costs the timers that it names, and at least one, so that a batch is no way around it. A
request is let in while there is any allowance left, and is then taken whole; what it costs beyond that is owed, and
what comes next waits until it is paid. So a batch needs no allowance larger than itself, and over any span of `t`
seconds at most `per_second * t`, a second's allowance and one request pass.

What a caller is told of it are the fields of draft-ietf-httpapi-ratelimit-headers (version 12), and `Retry-After`.
"""

import time
from typing import Final

from timerd_api.problem import RATE_LIMITED, Problem

PER_SECOND_MIN: Final = 0.001
PER_SECOND_MAX: Final = 1e9
_UNIT: Final = 1_000_000  # millionths of a timer: a rate of one a second is 1,000 of them a millisecond

Fields = tuple[tuple[bytes, bytes], tuple[bytes, bytes]]


def real_ms() -> int:
    """Time that passes whatever a virtual clock shows."""
    return time.monotonic_ns() // 1_000_000


class Meter:
    """An allowance of `per_second` timers, full at first."""

    def __init__(self, per_second: float, boot_ms: int) -> None:
        self.per_second = per_second
        self._a_ms = max(1, round(min(max(per_second, PER_SECOND_MIN), PER_SECOND_MAX) * _UNIT / 1000))
        self._full = max(1, int(per_second)) * _UNIT  # a second's allowance
        self._level = self._full
        self._at = boot_ms
        window_s = -(-self._full // (self._a_ms * 1000))
        self._policy = b'"key";q=%d;qu="timers";w=%d' % (self._full // _UNIT, window_s)

    def admit(self, boot_ms: int) -> None:
        """Let a request in, and charge it for one timer. Raises Problem, and then it costs nothing."""
        self._fill(boot_ms)
        self._take(1, 1)

    def weigh(self, timers: int, boot_ms: int) -> None:
        """A request that was let in names so many; it has paid for one of them. Raises Problem.

        Others may have been let in since, and have used up what there was.
        """
        if timers > 1:
            self._fill(boot_ms)
            self._take(timers - 1, 0)

    def fields(self, boot_ms: int) -> Fields:
        """The header fields of an answer. `t`: until something may pass again, or, where it may, until all may."""
        self._fill(boot_ms)
        left = max(0, self._level) // _UNIT
        wait_s = self._wait_s(self._full if left else _UNIT)
        return (b"ratelimit-policy", self._policy), (b"ratelimit", b'"key";r=%d;t=%d' % (left, wait_s))

    def _take(self, timers: int, least: int) -> None:
        if self._level < least * _UNIT:
            wait_s = max(1, self._wait_s(_UNIT))
            detail = f"this key may name {self.per_second:g} timers a second, and has used that up"
            raise Problem(RATE_LIMITED, detail, retry_after_s=wait_s)
        self._level -= timers * _UNIT

    def _wait_s(self, level: int) -> int:
        """Whole seconds until the level is this high."""
        return max(0, -(-(level - self._level) // (self._a_ms * 1000)))

    def _fill(self, boot_ms: int) -> None:
        self._level = min(self._full, self._level + (boot_ms - self._at) * self._a_ms)
        self._at = boot_ms
