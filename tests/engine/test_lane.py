"""What a lane makes ready, what it tells, and when it wants to be woken."""

from random import Random

import pytest

from tests.engine.harness import DAY, SECOND, T0, Bench, failed, ids_of
from timerd.engine import lane, loading, retries
from timerd.engine.timer import READY, Timer, TimerType


def test_no_more_than_a_batch_becomes_ready_and_a_full_lane_does_not_spin() -> None:
    bench = Bench(TimerType("t", batch_size=3, max_lag_ms=0))
    bench.arm_all("abcdefgh", T0)
    assert bench.told["t", 0].count == 3
    wall, boot = bench.shard.wake_at()
    assert (wall or 0) > T0 + 60 * SECOND, "not before one of them is missed"
    assert boot is None
    assert ids_of(bench.take(count=2)) == ["a", "b"]
    assert bench.told["t", 0].count == 3


def test_since_is_the_wait_of_the_longest_waiting() -> None:
    bench = Bench()
    bench.arm("b", T0 + 10)
    bench.pass_ms(10)
    bench.arm("a", T0 - DAY)
    assert bench.told["t", 0].since == T0 + 10, "a time in the past is due at acceptance"


@pytest.mark.parametrize("seed", range(3))
def test_since_is_the_wait_of_the_longest_waiting_though_it_came_from_another_shard(seed: int) -> None:
    random = Random(seed)
    bench = Bench(TimerType("t", batch_size=6, max_lag_ms=SECOND))
    judged = 0
    for n in range(60):
        if random.random() < 0.5:
            due_at = bench.wall_ms - random.randint(0, 900)
            timer = Timer(due_at, (due_at - 5_000) * 1000 + n, f"moved{n}", "t")
            bench.state.last = max(bench.state.last, timer.generation)
            loading.take_in(bench.state, [timer])
            bench.state.lane("t").totals.moved_in += 1
        elif random.random() < 0.5:
            bench.arm(f"here{n}", bench.wall_ms + random.randint(1, 30))
        bench.pass_ms(random.randint(0, 20))
        due = [t for run in bench.state.runs for t in run.by_id.values() if t.fire_at <= bench.wall_ms]
        if due and all(timer.state == READY for timer in due):  # else a whole batch is ready, and closes by that
            judged += 1
            assert bench.told["t", 0].since == min(timer.due_at for timer in due)
        if random.random() < 0.3:
            bench.settle(bench.take(count=random.randint(1, 6)))
    assert judged > 8


def test_a_held_timer_that_is_let_go_brings_its_wait_along() -> None:
    bench = Bench()
    bench.arm("x", T0)
    taken = bench.take()
    bench.pass_ms(5)
    bench.arm("x", T0)
    bench.pass_ms(5)
    bench.arm("y", T0)
    bench.settle(taken)
    assert bench.told["t", 0].count == 2
    assert bench.told["t", 0].since == T0 + 5


def test_wake_ups_fall_together_within_the_slack_that_max_lag_leaves() -> None:
    bench = Bench(TimerType("t", batch_size=10, max_lag_ms=SECOND))
    bench.arm("a", T0 + 101)
    bench.arm("b", T0 + 140)
    assert bench.shard.wake_at() == (T0 + 150, None)
    bench.pass_ms(149)
    assert ("t", 0) not in bench.told
    bench.pass_ms(1)
    assert bench.told["t", 0].count == 2


def test_only_changes_are_told() -> None:
    bench = Bench()
    bench.arm("a", T0)
    assert bench.told["t", 0].count == 1
    bench.arm("b", T0 + DAY)
    assert [effect for effect in bench.effects if type(effect).__name__ == "Ready"] == []
    bench.cancel("a")
    assert bench.told["t", 0].count == 0


def test_retries_are_told_by_the_batch_they_may_travel_in() -> None:
    bench = Bench()
    bench.arm_all("ab", T0)
    for id in "ab":
        taken = bench.take(count=1)
        bench.settle(taken, failed(gap_ms=10, limit=1 if id == "a" else 4))
    assert bench.shard.wake_at() == (None, bench.boot_ms + 10)
    bench.pass_ms(10)
    assert (bench.told["t", 1].count, bench.told["t", 4].count) == (1, 1)
    assert bench.told["t", 1].since == 5_000


def test_a_retry_waits_for_its_time_too_when_the_wall_clock_has_gone_back() -> None:
    bench = Bench()
    bench.arm("a", T0)
    bench.settle(bench.take(), failed(gap_ms=10, limit=1))
    bench.wall_us -= 60 * SECOND * 1000
    bench.pass_ms(50)
    assert ("t", 1) not in bench.told or bench.told["t", 1].count == 0
    assert bench.take(limit=1).timers == []
    bench.wall_us += 60 * SECOND * 1000
    bench.pass_ms(0)
    assert bench.told["t", 1].count == 1


def test_a_retry_that_is_ready_waits_again_when_the_wall_clock_goes_back() -> None:
    bench = Bench()
    bench.arm("a", T0)
    bench.settle(bench.take(), failed(gap_ms=10, limit=1))
    bench.pass_ms(10)
    assert bench.told["t", 1].count == 1
    bench.wall_us -= 60 * SECOND * 1000
    assert bench.take(limit=1).timers == []
    bench.pass_ms(61 * SECOND)
    assert ids_of(bench.take(limit=1)) == ["a"]


def test_urgent_timers_are_part_of_what_is_ready_at_most() -> None:
    bench = Bench(TimerType("t", batch_size=2, max_lag_ms=SECOND))
    bench.arm_all("abcde", T0 + DAY)
    for id in "abcde":
        bench.fire_now(id)
    assert bench.told["t", 0].count == 2
    assert bench.told["t", 0].urgent
    assert (bench.shard.wake_at()[0] or 0) > bench.wall_ms + 60 * SECOND, "a full lane does not spin"
    for _ in range(2):
        bench.settle(bench.take(count=2))
    assert ids_of(bench.take(count=2)) == ["e"]


@pytest.fixture
def small_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few timers are many."""
    monkeypatch.setattr(lane, "SLICE", 10)
    monkeypatch.setattr(retries, "SLICE", 10)
    monkeypatch.setattr(retries, "SWEEP_FLOOR", 20)


@pytest.mark.usefixtures("small_sweeps")
def test_retries_that_went_on_otherwise_do_not_pile_up_until_their_gaps_end() -> None:
    """Armed anew after each failure, with gaps of a day: an entry for each would be kept for that day."""
    bench = Bench(TimerType("t", batch_size=1_000, max_lag_ms=0))
    ids = [f"{n}" for n in range(30)]
    for _ in range(20):
        bench.arm_all(ids, T0)
        bench.settle(bench.take(), failed(gap_ms=DAY, limit=5))
    for _ in range(10):
        bench.pass_ms(1)
    assert bench.shard.wake_at()[1] != 0, "the sweep is over"
    (queue,) = bench.state.lanes["t"]._retries.values()
    assert sum(1 for _ in queue.entries()) <= 2 * len(ids) + 20
    bench.pass_ms(DAY)
    assert sorted(ids_of(bench.take(limit=5))) == sorted(ids), "those that wait are still there, each once"


@pytest.mark.usefixtures("small_sweeps")
def test_retries_become_ready_in_order_while_a_sweep_is_under_way() -> None:
    bench = Bench(TimerType("t", batch_size=1_000, max_lag_ms=0))
    kept, stale = [f"k{n:02}" for n in range(50)], [f"s{n}" for n in range(60)]
    for n, id in enumerate(kept):
        bench.arm(id, T0)
        bench.settle(bench.take(), failed(gap_ms=DAY - n, limit=5))
    bench.arm_all(stale, T0)
    bench.settle(bench.take(), failed(gap_ms=DAY, limit=5))
    bench.arm_all(stale, T0 + 2 * DAY)
    assert bench.shard.wake_at()[1] == 0, "a sweep is under way"
    bench.pass_ms(DAY - 40)
    assert ids_of(bench.take(limit=5)) == kept[:39:-1]
    bench.pass_ms(DAY)
    assert ids_of(bench.take(limit=5)) == kept[39::-1]


@pytest.mark.usefixtures("small_sweeps")
def test_what_is_ready_and_moved_while_nothing_is_taken_does_not_pile_up() -> None:
    bench = Bench(TimerType("t", batch_size=10, max_lag_ms=0))
    bench.arm("first", T0)
    for _ in range(50):
        bench.arm("again", T0 - 1)
        bench.arm("again", T0 - 2)
    assert len(bench.state.lanes["t"]._ready) <= 20
    assert ids_of(bench.take()) == ["first", "again"]
