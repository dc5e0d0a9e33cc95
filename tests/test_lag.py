"""Lag over the last minute, by bounded samples."""

from timerd.engine.timer import Timer
from timerd.lag import SAMPLES_A_BATCH, SAMPLES_A_SECOND, WINDOW_S, LagSamples
from timerd.report import LagWindow

WALL = 1_764_000_000_000


def timers(*lags):
    return [Timer(WALL - lag, (WALL - 10**6) * 1000 + n, f"{n}", "t") for n, lag in enumerate(lags)]


def test_the_largest_lag_is_never_missed():
    lags = LagSamples()
    lags.add(100, WALL, timers(*range(10_000), 77_777, *range(10_000)))
    assert lags.report(100).max_ms == 77_777
    assert len(lags._seconds[0].samples) <= SAMPLES_A_BATCH


def test_a_minute_later_it_is_forgotten():
    lags = LagSamples()
    lags.add(100, WALL, timers(500))
    lags.add(130, WALL, timers(10))
    assert lags.report(159).max_ms == 500
    assert lags.report(160).max_ms == 10
    assert lags.report(190).p50_ms is None


def test_a_timer_armed_for_the_past_is_due_at_acceptance():
    lags = LagSamples()
    late = Timer(WALL - 3_600_000, (WALL - 5) * 1000, "late", "t")
    lags.add(1, WALL, [late])
    assert lags.report(1) == LagWindow(5, 5, 5)


def test_batches_of_one_keep_no_more_than_a_second_may():
    """At thousands of batches a second a minute of samples would be the largest thing in memory."""
    lags = LagSamples()
    for n in range(20_000):
        lags.add(1, WALL, timers(n))
    assert len(lags._seconds[0].samples) <= SAMPLES_A_SECOND
    window = lags.report(1)
    assert window.max_ms == 19_999
    assert abs(window.p50_ms - 10_000) < 100  # those that are left are spread over all of the second
    assert abs(window.p99_ms - 19_800) < 100
    for second in range(2, 3 * WINDOW_S):
        lags.add(second, WALL, timers(1))
    assert len(lags._seconds) == WINDOW_S
