"""Gaps: the table that people expect, and that no number of failures breaks the arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerd.engine.backoff import backoff_ms, draw_jitter
from timerd.engine.timer import BACKOFF_MS_MAX, RetryPolicy


@pytest.mark.parametrize(
    ("policy", "gaps"),
    [
        (RetryPolicy(), [1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000, 256000, 300000, 300000]),
        (RetryPolicy(min_backoff_ms=10, max_backoff_ms=50), [10, 20, 40, 50, 50]),
        (RetryPolicy(multiplier=1.0), [1000, 1000, 1000]),
        (RetryPolicy(multiplier=1.5), [1000, 1500, 2250, 3375]),
        (RetryPolicy(multiplier=10.0, max_backoff_ms=100_000), [1000, 10_000, 100_000, 100_000]),
        (RetryPolicy(min_backoff_ms=1000, max_backoff_ms=10), [10, 10]),
        (RetryPolicy(min_backoff_ms=0, max_backoff_ms=0), [1, 1]),
        (RetryPolicy(min_backoff_ms=0, max_backoff_ms=4), [1, 2, 4, 4]),
    ],
)
def test_gaps_grow_to_the_cap(policy: RetryPolicy, gaps: list[int]) -> None:
    assert [backoff_ms(policy, n) for n in range(1, len(gaps) + 1)] == gaps


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**12),
    st.floats(1.0, 1000.0),
    st.one_of(st.integers(1, 5000), st.just(10**9)),
)
def test_no_number_of_failures_overflows(low: int, high: int, multiplier: float, failures: int) -> None:
    policy = RetryPolicy(0, low, high, multiplier)
    gap = backoff_ms(policy, failures)
    assert 1 <= gap <= max(1, high)
    assert backoff_ms(policy, failures + 1) >= gap


def test_jitter_is_drawn_around_one() -> None:
    policy = RetryPolicy(jitter=0.2)
    assert [draw_jitter(policy, r) for r in (0.0, 0.5, 1.0)] == [0.8, 1.0, 1.2]
    assert draw_jitter(RetryPolicy(jitter=0.0), 0.9) == 1.0


HOSTILE_INTS = st.one_of(st.integers(), st.sampled_from([-(10**400), 10**400, 2**63]))


@given(HOSTILE_INTS, HOSTILE_INTS, st.floats(), st.floats(), st.floats(0, 1, exclude_max=True), st.integers(0, 10**9))
def test_no_policy_makes_a_gap_that_a_log_can_not_hold(
    low: int, high: int, multiplier: float, jitter: float, random: float, failures: int
) -> None:
    policy = RetryPolicy(0, low, high, multiplier, jitter)
    assert 1 <= backoff_ms(policy, failures) <= BACKOFF_MS_MAX
    assert 0 <= draw_jitter(policy, random) <= 2
