"""The pace of a target: when it is cut, how it grows again, and when a refusal costs a pause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerd.engine.answer import Failed
from timerd.engine.backoff import backoff_ms
from timerd.engine.pace import CALM_MS, Pace
from timerd.engine.timer import RetryPolicy

POLICY = RetryPolicy(jitter=0.0)
BUSY = Failed("HTTP 429", refused=True)
AWAY = Failed("HTTP 503", suspect=True, refused=True)
HANGS = Failed("timeout", suspect=True, unknown=True)
REFUSED = Failed("connect", suspect=True, sent=False)
WRONG = Failed("HTTP 500")


class Target:
    """A pace with its batches counted: each is begun, and ends."""

    def __init__(self, bound: int = 16) -> None:
        self.pace = Pace()
        self.bound = bound
        self.newest = 0
        self.open: list[int] = []
        self.now = 1_000

    def begin(self, count: int = 1) -> None:
        for _ in range(count):
            self.newest += 1
            self.open.append(self.newest)

    def fill(self) -> int:
        self.begin(self.pace.limit(self.bound) - len(self.open))
        return len(self.open)

    def fail(self, failed: Failed = BUSY) -> None:
        under_way = len(self.open)
        batch_no = self.open.pop(0)
        self.pace.fail(failed, batch_no, self.newest, under_way, self.bound, POLICY, self.now, 1.0)

    def succeed(self) -> None:
        self.open.pop(0)
        self.pace.succeed(self.now, self.bound)

    def round(self) -> int:
        """A full round of successes; how many were under way."""
        size = self.fill()
        for _ in range(size):
            self.succeed()
        return size


@pytest.mark.parametrize("failed", [BUSY, AWAY, HANGS, REFUSED, Failed("HTTP 504", suspect=True)])
def test_a_sign_of_overload_halves_what_is_under_way(failed: Failed) -> None:
    target = Target()
    target.fill()
    target.fail(failed)
    assert target.pace.limit(16) == 8
    assert target.pace.reason == failed.error


@pytest.mark.parametrize("failed", [WRONG, Failed("HTTP 410", gone=True), Failed("HTTP 400", no_retry=True)])
def test_other_failures_say_nothing_of_its_load(failed: Failed) -> None:
    target = Target()
    target.fill()
    target.fail(failed)
    assert not target.pace.slowed


def test_a_healthy_target_gets_everything_from_the_first_request_on() -> None:
    target = Target()
    assert target.round() == target.round() == 16


def test_a_round_cuts_once() -> None:
    target = Target()
    target.fill()
    for _ in range(16):
        target.fail()
    assert target.pace.limit(16) == 8
    target.fill()
    target.fail()
    assert target.pace.limit(16) == 4


def test_the_window_is_cut_from_what_was_really_under_way() -> None:
    target = Target(256)
    target.begin(20)
    target.fail()
    assert target.pace.limit(256) == 10


def test_it_never_falls_below_one() -> None:
    target = Target()
    for _ in range(9):
        target.fill()
        target.fail()
        target.open.clear()
    assert target.pace.limit(16) == 1


def test_slow_start_doubles_a_round_and_then_grows_by_an_eighth() -> None:
    target = Target()
    target.fill()
    target.fail(Failed("HTTP 429", refused=True, retry_after_ms=5_000))
    target.open.clear()
    assert [target.round() for _ in range(13)] == [1, 2, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 16]
    assert not target.pace.slowed
    assert target.pace.reason == ""


def test_after_a_cut_it_begins_where_it_was_cut() -> None:
    target = Target()
    target.fill()
    target.fail()
    target.open.clear()
    assert [target.round() for _ in range(3)] == [8, 9, 10]


def test_a_larger_window_grows_in_larger_steps() -> None:
    target = Target(256)
    target.fill()
    target.fail()
    target.open.clear()
    assert [target.round() for _ in range(8)] == [128, 144, 162, 182, 204, 229, 256, 256]


def test_after_a_restart_it_begins_at_one_and_what_was_under_way_says_nothing() -> None:
    target = Target()
    target.fill()
    target.pace.restart(target.newest, 16, "connect", 1_000)
    for _ in range(8):
        target.fail(HANGS)
    assert target.pace.limit(16) == 1
    for _ in range(8):
        target.succeed()
    assert target.pace.limit(16) == 8


def test_the_first_refusal_costs_no_pause_and_those_in_a_row_grow() -> None:
    target = Target()
    pauses = []
    for _ in range(12):
        target.fill()
        target.fail()
        target.open.clear()
        pauses.append(max(0, target.pace.held_until - target.now))
        target.now = max(target.now, target.pace.held_until)
    assert pauses == [0, *(backoff_ms(POLICY, n) for n in range(1, 12))]
    assert pauses[-1] == POLICY.max_backoff_ms


def test_a_success_between_ends_the_row() -> None:
    target = Target()
    for _ in range(5):
        target.fill()
        target.fail()
        target.succeed() if target.open else target.round()
        target.round()
        assert target.pace.held_until <= target.now


def test_a_target_of_one_at_a_time_is_paused_too() -> None:
    target = Target(1)
    for _ in range(3):
        target.fill()
        target.fail()
    assert target.pace.held_until - target.now == 2_000
    assert not target.pace.slowed


def test_a_larger_bound_is_no_storm_at_a_target_that_refused_one_at_a_time() -> None:
    target = Target(1)
    for _ in range(3):
        target.fill()
        target.fail()
    target.bound = 10_000
    assert target.pace.limit(target.bound) == 1
    assert [target.round() for _ in range(4)] == [1, 2, 4, 8]
    assert target.pace.slowed


def test_a_time_out_costs_no_pause() -> None:
    target = Target()
    for _ in range(5):
        target.fill()
        target.fail(HANGS)
        target.open.clear()
    assert target.pace.held_until == 0


def test_retry_after_zero_is_a_refusal_like_one_without() -> None:
    target = Target()
    for _ in range(2):
        target.fill()
        target.fail(Failed("HTTP 429", refused=True, retry_after_ms=0))
        target.open.clear()
    assert target.pace.limit(16) == 4
    assert target.pace.held_until - target.now == POLICY.min_backoff_ms


def test_a_target_of_little_traffic_is_whole_again_after_a_while() -> None:
    target = Target(256)
    target.fill()
    target.fail()
    target.now += CALM_MS
    target.succeed()
    assert not target.pace.slowed


def test_a_bound_that_was_lowered_holds() -> None:
    target = Target()
    target.fill()
    target.fail()
    assert target.pace.limit(3) == 3
    target.pace.succeed(target.now, 3)
    assert not target.pace.slowed


@given(
    bound=st.integers(1, 40),
    steps=st.lists(st.sampled_from([BUSY, AWAY, HANGS, REFUSED, WRONG, None, None, None]), max_size=80),
)
def test_it_stays_within_its_bounds_and_comes_back(bound: int, steps: list[Failed | None]) -> None:
    target = Target(bound)
    for step in steps:
        target.fill()
        if step is None:
            target.succeed()
        else:
            target.fail(step)
        assert 1 <= target.pace.limit(bound) <= bound
        assert target.pace.window is None or target.pace.window < max(2, bound)
        assert target.pace.held_until <= target.now + POLICY.max_backoff_ms
        target.now = max(target.now, target.pace.held_until)
    rounds = 0
    target.open.clear()
    while target.round() < bound:
        rounds += 1
    assert rounds <= 45, "it doubles, or grows by an eighth or one"


def test_overload_is_met_and_hardly_exceeded() -> None:
    """A target that takes 20 at a time of 256: after the first rounds few are refused, and few slots are idle."""
    target, taken, refused, rounds = Target(256), 0, 0, 300
    for n in range(rounds):
        size = target.fill()
        for place in range(size):
            if place < 20:
                target.open.append(target.open.pop(0))
        for _ in range(max(0, size - 20)):
            target.fail()
            refused += n > 20
        while target.open:
            target.succeed()
            taken += n > 20
        target.now = max(target.now, target.pace.held_until)
    assert taken > 0.6 * 20 * (rounds - 21)
    assert refused < 0.1 * taken
