"""How long to wait after a failure. Pure arithmetic; the random part is drawn by the caller and passed in.

Whatever a policy says, a gap is a number that a log can hold: one that none can ends the process with the record.
"""

import math

from timerd.engine.timer import BACKOFF_MS_MAX, RetryPolicy


def backoff_ms(policy: RetryPolicy, failures: int) -> int:
    """Milliseconds to wait after the n-th failure (from 1): min_backoff, then times `multiplier`, up to max_backoff.

    From 1 to BACKOFF_MS_MAX, jitter not included.
    """
    low, high = (min(max(1, bound), BACKOFF_MS_MAX) for bound in (policy.min_backoff_ms, policy.max_backoff_ms))
    if high <= low or not policy.multiplier > 1.0:
        return min(low, high)
    # The cap comes before the power: 2.0 ** 1024 raises, and a timer that has failed that often would be lost with it.
    if failures - 1 >= math.log(high / low, policy.multiplier):
        return high
    return min(high, round(low * policy.multiplier ** max(0, failures - 1)))


def draw_jitter(policy: RetryPolicy, random: float) -> float:
    """The factor that a `random` of [0, 1) stands for: one of [1 - jitter, 1 + jitter)."""
    return 1.0 + max(0.0, min(1.0, policy.jitter)) * (2.0 * random - 1.0)
