"""What the server's clock shows, as far as its answers tell.

Every answer carries `Timerd-Now`. An answer that was sent for at `sent_at` and had arrived by `received_at` (both on
our monotonic clock) pins the difference between the two clocks to an interval: the stamp was made somewhere between.
Answers are combined by intersection; one that contradicts what is known replaces it, because then one of the clocks
was stepped. Our own wall clock plays no part.

An expiry is computed with the *lower* end of the interval. So when our monotonic clock reaches `at`, the server's
clock has surely reached `shows_at_least(at)`: what expires then is refused from that moment on.
"""

from typing import Final

DRIFT: Final = 2e-4  # two clocks part by at most this much; NTP corrects at up to 500 ppm, crystals are within 100


class ServerTime:
    def __init__(self) -> None:
        self.known = False
        self._low_ms = 0.0  # server's ms - our monotonic ms, at least; as of _seen_at
        self._high_ms = 0.0  # at most
        self._seen_at = 0.0

    def observe(self, server_ms: int, sent_at: float, received_at: float) -> None:
        """Learn from one answer. The stamp is cut to milliseconds, hence the 1 at the upper end."""
        low, high = server_ms - received_at * 1000, server_ms + 1 - sent_at * 1000
        if self.known:
            drift_ms = max(0.0, received_at - self._seen_at) * 1000 * DRIFT
            kept_low, kept_high = self._low_ms - drift_ms, self._high_ms + drift_ms
            if kept_low <= high and low <= kept_high:
                low, high = max(low, kept_low), min(high, kept_high)
        self._low_ms, self._high_ms, self._seen_at, self.known = low, high, received_at, True

    def shows_at_least(self, at: float) -> int:
        """What the server's clock shows at least, in Unix ms, when our monotonic clock shows `at`."""
        assert self.known
        drift_ms = max(0.0, at - self._seen_at) * 1000 * DRIFT
        return int((self._low_ms + at * 1000 - drift_ms) // 1)
