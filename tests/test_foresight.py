"""Whose shards are read before the plan gives them away."""

import pytest

from timerd.engine.plan import Plan, Seat, next_plan
from timerd.foresight import BELIEVED_MAX_MS, BELIEVED_MS, Foresight

SHARDS = 6
A, B, C = (Seat(name, "1") for name in "abc")
ALL = [A, B, C]


@pytest.fixture
def plan() -> Plan:
    return next_plan(None, ALL, SHARDS)


def test_nothing_is_expected_while_all_are_heard(plan: Plan) -> None:
    assert Foresight(SHARDS).expected(plan, ALL, [], B, 0) == frozenset()


def test_those_who_are_heard_expect_all_of_one_who_is_not_each_its_part(plan: Plan) -> None:
    by_b = Foresight(SHARDS).expected(plan, ALL, [A], B, 0)
    by_c = Foresight(SHARDS).expected(plan, ALL, [A], C, 0)
    assert sorted([*by_b, *by_c]) == plan.shards_of(A)
    after = next_plan(plan, [B, C], SHARDS)
    assert by_b == set(after.shards_of(B)) - set(plan.shards_of(B))


def test_one_who_is_gone_is_expected_of_until_the_plan_says_so(plan: Plan) -> None:
    foresight = Foresight(SHARDS)
    silent = foresight.expected(plan, ALL, [A], B, 0)
    assert foresight.expected(plan, [B, C], [], B, 2_000) == silent
    assert foresight.expected(next_plan(plan, [B, C], SHARDS), [B, C], [], B, 2_100) == frozenset()


def test_a_name_that_is_back_in_another_life_is_no_silent_one(plan: Plan) -> None:
    foresight = Foresight(SHARDS)
    back = Seat("a", "2")
    assert foresight.expected(plan, ALL, [A], B, 0)
    assert foresight.expected(plan, [back, B, C], [], B, 500) == frozenset(), "it keeps what it had"


def test_who_was_heard_again_is_believed_and_longer_each_time(plan: Plan) -> None:
    foresight, now_ms, for_ms = Foresight(SHARDS), 0, BELIEVED_MS
    for _ in range(10):
        assert foresight.expected(plan, ALL, [A], B, now_ms)
        assert foresight.expected(plan, ALL, [A], B, now_ms + 1_000), "it is not heard meanwhile"
        assert not foresight.expected(plan, ALL, [], B, now_ms + 2_000)
        now_ms += 2_000 + for_ms
        assert not foresight.expected(plan, ALL, [A], B, now_ms - 1)
        for_ms = min(2 * for_ms, BELIEVED_MAX_MS)
    assert foresight.expected(plan, [B, C], [], B, now_ms - 1), "once it is gone it is no question of belief"
    assert len(foresight._believed) == 0, "nothing is kept of who is gone"


def test_who_is_not_heard_itself_expects_nothing(plan: Plan) -> None:
    assert Foresight(SHARDS).expected(plan, ALL, ALL, B, 0) == frozenset(plan.shards_of(A) + plan.shards_of(C))
    assert Foresight(SHARDS).expected(plan, [A, C], [A], B, 0) == frozenset(), "it is no member yet"
