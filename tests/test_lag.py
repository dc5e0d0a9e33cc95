"""Lag over the last minute, by bounded samples."""

from timerd.engine.timer import Timer
from timerd.lag import SAMPLES_A_BATCH, LagSamples
from timerd.report import LagWindow

WALL = 1_764_000_000_000


def timers(*lags):
    return [Timer(WALL - lag, (WALL - 10**6) * 1000 + n, f"{n}", "t") for n, lag in enumerate(lags)]


def test_the_largest_lag_is_never_missed():
    lags = LagSamples()
    lags.add(100, WALL, timers(*range(10_000), 77_777, *range(10_000)))
    assert lags.report(100).max_ms == 77_777
    assert len(lags._samples[0][1]) <= SAMPLES_A_BATCH


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
