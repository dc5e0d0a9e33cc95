"""The rate: exact in both directions, never more than allowed and never later than named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerd.engine.rate import Rate, rate_of


def test_a_tenth_of_a_second_may_be_saved_up() -> None:
    assert [Rate(r, 0).burst for r in (0.1, 1, 9.9, 20, 1000)] == [1, 1, 1, 2, 100]


def test_what_did_not_pass_is_given_back() -> None:
    rate = Rate(100.0, 0)
    rate.spend(10)
    assert rate.free_at(10, 0) == 100
    rate.give_back(4)
    assert rate.free_at(10, 0) == 60
    rate.give_back(1000)
    assert rate.free_at(10, 0) == 0


@given(st.floats(0.01, 10_000), st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 500)), max_size=60))
def test_no_span_holds_more_than_its_rate_and_a_burst(per_second: float, wishes: list[tuple[int, int]]) -> None:
    rate = Rate(per_second, 0)
    now, passed = 0, []
    for timers, later in wishes:
        now += later
        timers = min(timers, rate.burst)
        at = rate.free_at(timers, now)
        if at > now:
            assert rate.free_at(timers, at - 1) == at, "named a moment that was not the first"
        now = at
        assert rate.free_at(timers, now) == now
        rate.spend(timers)
        passed.append((now, timers))
    exact = max(1, round(per_second * 1000)) / 1000
    for i, (start, _) in enumerate(passed):
        total = 0
        for at, timers in passed[i:]:
            total += timers
            assert total <= exact * (at - start) / 1000 + rate.burst + 1e-6


@pytest.mark.parametrize("per_second", [1e305, float("inf"), 1e-300])
def test_a_rate_that_is_out_of_all_bounds_is_a_rate_all_the_same(per_second):
    rate = Rate(per_second, 0)
    assert rate.free_at(1, 0) == 0
    rate.spend(1)
    assert rate.free_at(1, 0) >= 0


def test_a_changed_rate_goes_on_from_what_is_left() -> None:
    rate: Rate | None = None
    now = passed = 0
    for n in range(400):
        now += 10
        rate = rate_of(1_000.0 + n % 2, rate, now)
        assert rate is not None
        count = rate.available(now)
        rate.spend(count)
        passed += count
    assert passed <= 100 + 4 * 1_001
    assert rate_of(None, rate, now) is None


def test_a_lower_rate_holds_at_once_and_the_same_one_is_kept() -> None:
    rate = Rate(1_000.0, 0)
    assert rate_of(1_000.0, rate, 0) is rate
    lower = rate_of(20.0, rate, 0)
    assert lower is not None
    assert lower.available(0) == lower.burst == 2
