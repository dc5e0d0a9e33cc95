"""The wall clock goes back: generations go on, and nobody waits for the clock to reach them again."""

from tests.engine.harness import HOUR, SECOND, Bench
from timerd.engine.catchup import MISSED
from timerd.engine.timer import TimerType
from timerd.lag import LagSamples

LAZY = TimerType("t", batch_size=100, max_lag_ms=10 * SECOND)


def test_what_is_accepted_on_a_clock_that_went_back_waits_no_longer_than_others() -> None:
    bench = Bench(LAZY)
    bench.arm("before", bench.wall_ms + HOUR)
    bench.pass_ms(-2 * HOUR)
    due = bench.wall_ms + SECOND
    result = bench.arm("a", due)
    assert result.generation // 1000 > due, "its generation is ahead of the clock"
    bench.pass_ms(2 * SECOND)
    assert bench.told["t", 0].count == 1
    assert bench.told["t", 0].since <= bench.wall_ms
    since = bench.told["t", 0].since
    bench.pass_ms(3 * SECOND)
    assert bench.told["t", 0].since == since, "and from one moment, whatever comes meanwhile"
    assert bench.tally().oldest_due_at <= bench.wall_ms


def test_what_was_ready_already_waits_no_longer_either() -> None:
    bench = Bench(LAZY)
    bench.arm("a", bench.wall_ms - 3 * HOUR)
    assert bench.told["t", 0].since == bench.wall_ms
    bench.pass_ms(-2 * HOUR)
    assert bench.told["t", 0].count == 1
    assert bench.told["t", 0].since == bench.wall_ms


def test_after_a_crash_on_a_clock_that_went_back_what_may_be_a_repeat_says_so() -> None:
    bench = Bench(LAZY)
    bench.arm("first", bench.wall_ms)
    bench.pass_ms(HOUR)
    bench.arm("second", bench.wall_ms)
    bench.pass_ms(-2 * HOUR)
    bench.arm("third", bench.wall_ms)
    assert len(bench.take().timers) == 1  # the others wait again
    bench.crash()
    bench.pass_ms(0)
    assert bench.take().flagged == {"third"}
    bench.pass_ms(3 * HOUR)
    assert bench.take(limit=MISSED).flagged == {"first", "second"}, "they were due before the clock went back"


def test_no_lag_is_negative() -> None:
    bench = Bench(LAZY)
    bench.arm("before", bench.wall_ms + HOUR)
    bench.pass_ms(-HOUR)
    bench.arm("a", bench.wall_ms)
    samples = LagSamples()
    samples.add(1, bench.wall_ms, bench.take().timers)
    assert (samples.report(1).p50_ms, samples.report(1).max_ms) == (0, 0)
