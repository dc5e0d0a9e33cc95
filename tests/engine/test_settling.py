"""Deliveries: what is handed out, and what each outcome makes of it."""

from typing import Any

import pytest

from tests.engine.harness import MINUTE, SECOND, T0, Bench, failed, ids_of
from timerd.engine.message import BodyLost, ItemResult, SetReserve, Settle, SetTypes, Slice
from timerd.engine.record import Buried, Closed, Fired, Retried
from timerd.engine.timer import RetryPolicy, TimerType

TYPES = (
    TimerType("t", batch_size=10, max_lag_ms=0, retry=RetryPolicy(max_attempts=3)),
    TimerType("u", batch_size=10, max_lag_ms=0),
)


def flown(*ids: str) -> tuple[Bench, Any]:
    """These timers in flight."""
    bench = Bench(*TYPES)
    bench.arm_all(ids, T0)
    return bench, bench.take()


@pytest.mark.parametrize(
    ("result", "state", "total"),
    [
        (None, None, "fired"),
        (ItemResult("retry", error="no"), "retrying", "retried"),
        (ItemResult("drop"), None, "dropped"),
        (ItemResult("dead", error="no"), "dead", "dead"),
        (ItemResult("rearm", T0 + MINUTE), "armed", "fired"),
    ],
)
def test_an_item_result(result: ItemResult | None, state: str | None, total: str) -> None:
    bench, taken = flown("x", "y")
    bench.settle(taken, **({"x": result} if result else {}))
    view = bench.get("x")
    assert (view and view.state) == state
    assert bench.get("y") is None
    assert total in bench.totals()


@pytest.mark.parametrize(
    ("outcome", "records"),
    [
        ({}, [Fired]),
        ({"failure": failed()}, [Retried]),
        ({"failure": failed(bury=True)}, [Buried]),
        ({"a": ItemResult("rearm", T0 + 9), "b": ItemResult("drop")}, [Fired]),
        ({"a": ItemResult("retry"), "b": ItemResult("dead")}, [Fired, Retried, Buried]),
    ],
)
def test_an_outcome_is_as_few_records_as_can_be(outcome: dict[str, Any], records: list[type]) -> None:
    bench, taken = flown("a", "b", "c")
    bench.settle(taken, **outcome)
    assert [type(record) for record in bench.records] == records


@pytest.mark.parametrize(
    "outcome", [{}, {"failure": failed()}, {"failure": failed(bury=True)}, {"x": ItemResult("rearm", T0)}]
)
@pytest.mark.parametrize("type", ["t", "u"])
def test_an_answer_to_an_old_generation_changes_nothing_and_lets_the_new_one_go(outcome: Any, type: str) -> None:
    bench, taken = flown("x")
    new = bench.arm("x", T0 - 5, type).generation
    assert bench.take(type=type).timers == [], "an id in two open deliveries"
    bench.settle(taken, **outcome)
    assert bench.get("x").generation == new  # type: ignore[union-attr]
    assert bench.totals()["superseded"] == 1
    assert ids_of(bench.take(type=type)) == ["x"]
    assert bench.get("x").attempt == 1  # type: ignore[union-attr]


def test_a_cancelled_timer_in_flight_is_not_retried_and_its_id_is_blocked_until_the_end() -> None:
    bench, taken = flown("x")
    bench.cancel("x")
    bench.arm("x", T0)
    bench.cancel("x")
    bench.arm("x", T0, payload=b"2")
    assert bench.ids() == ["x"], "held ones are shown"
    assert bench.tally().types["t"].due == 1
    bench.settle(taken, failed())
    assert [timer.payload for timer in bench.take().timers] == [b"2"]
    assert bench.totals() == {"armed": 3, "cancelled": 2, "superseded": 1}


def test_a_timer_taken_while_its_payload_was_replaced_still_has_it() -> None:
    bench = Bench(*TYPES)
    bench.arm("x", T0, payload=b"1")
    taken = bench.take()
    bench.arm("x", T0 + 5, payload=b"2")
    assert taken.timers[0].payload == b"1"


def test_retries_wait_their_gap_and_travel_apart() -> None:
    bench, taken = flown("a", "b", "c", "d")
    bench.settle(taken, failed(gap_ms=SECOND, limit=2))
    bench.arm("e", T0)
    assert ids_of(bench.take()) == ["e"]
    bench.pass_ms(SECOND - 1)
    assert ("t", 2) not in bench.told or not bench.told["t", 2].count
    bench.pass_ms(1)
    taken = bench.take(count=2, limit=2)
    assert ids_of(taken) == ["a", "b"]
    assert taken.tried_at == 5_000
    assert bench.told["t", 2].count == 2


def test_a_take_of_a_lane_that_has_gone_is_reported_again() -> None:
    bench, taken = flown("a")
    bench.settle(taken, failed(gap_ms=5, limit=2))
    bench.pass_ms(5)
    bench.cancel("a")
    assert ("t", 2) not in bench.state.lane("t")._retries
    bench.take(limit=2)
    assert bench.told["t", 2].count == 0


def test_counted_failures_lead_to_the_grave_and_survive_a_restart() -> None:
    bench, taken = flown("x")
    for attempt in (1, 2):
        bench.settle(taken, failed("boom", limit=4, counted=True))
        bench.crash()
        view = bench.get("x")
        assert view is not None
        assert (view.state, view.attempt, view.last_error) == ("retrying", attempt, "boom")
        bench.pass_ms(2 * SECOND)
        taken = bench.take(limit=4)
    bench.settle(taken, failed("boom", limit=4, counted=True))
    view = bench.get("x")
    assert view is not None
    assert (view.state, view.attempts, view.died_at) == ("dead", 3, bench.wall_ms)


def test_a_batch_limit_never_grows_again() -> None:
    bench, taken = flown("x")
    bench.settle(taken, failed(gap_ms=1, limit=2))
    bench.pass_ms(1)
    bench.settle(bench.take(limit=2), x=ItemResult("retry"))
    assert bench.state.find("x").failure.limit == 2  # type: ignore[union-attr]


def test_a_lost_body_is_buried_before_the_batch_leaves() -> None:
    bench, taken = flown("x", "y")
    bench.ask(BodyLost(taken.batch_no, [("x", taken.timers[0].generation), ("y", 1)], "lost", None))
    view = bench.get("x")
    assert view is not None
    assert (view.state, view.attempts, view.last_error) == ("dead", 0, "lost")
    bench.settle(taken)
    assert bench.get("x") is not None
    assert bench.totals() == {"armed": 2, "dead": 1, "fired": 1}


def test_what_may_be_a_repeat_is_flagged() -> None:
    bench, _taken = flown("flown")
    bench.arm("later", T0 + MINUTE)
    bench.crash()
    assert bench.take().flagged == {"flown"}
    bench.pass_ms(MINUTE)
    assert bench.take().flagged == frozenset(), "not due by the restart"


def test_an_attempt_that_ended_in_silence_is_flagged_for_good() -> None:
    bench, taken = flown("x")
    bench.settle(taken, failed(gap_ms=1, limit=2, unknown=True))
    for _ in range(2):
        bench.pass_ms(1)
        taken = bench.take(limit=2)
        assert taken.flagged == {"x"}
        bench.settle(taken, failed(gap_ms=1, limit=2))


def test_a_full_disk_keeps_retries_in_memory_and_a_stop_is_then_no_clean_one() -> None:
    bench, taken = flown("x")
    bench.turn(SetReserve(True))
    bench.settle(taken, failed(unknown=True))
    assert bench.records == []
    bench.close()
    assert not any(isinstance(record, Closed) for record in bench.records)
    bench.crash()
    assert bench.get("x").attempt == 0  # type: ignore[union-attr]
    assert bench.take().flagged == {"x"}


def test_a_slice_writes_down_what_a_full_disk_kept_in_memory() -> None:
    bench, taken = flown("x")
    bench.turn(SetReserve(True))
    bench.settle(taken, failed())
    bench.turn(Slice())
    bench.crash()
    assert bench.get("x").attempt == 1  # type: ignore[union-attr]


def test_a_wall_clock_that_goes_back_calls_back_what_is_ready() -> None:
    bench = Bench(*TYPES)
    bench.arm_all(["a", "b"], T0 + 10)
    bench.arm("c", T0 + 1)
    bench.pass_ms(10)
    assert bench.told["t", 0].count == 3
    bench.wall_us -= 5_000
    assert ids_of(bench.take()) == ["c"], "at once, in the very turn that takes"
    bench.pass_ms(5)
    assert sorted(ids_of(bench.take())) == ["a", "b"]


def test_a_type_that_goes_leaves_its_timers_waiting() -> None:
    bench = Bench(*TYPES)
    bench.turn(SetTypes({}))
    bench.arm_all(["a", "b"], T0)
    assert bench.told == {}
    assert bench.shard.wake_at() == (None, None), "no spinning for a type that nobody knows"
    bench.turn(SetTypes(bench.types))
    assert bench.told["t", 0].count == 2


def test_a_settle_of_nothing_is_settled() -> None:
    bench = Bench()
    bench.settle(bench.take())
    assert bench.records == []
    bench.turn(Settle(99))
