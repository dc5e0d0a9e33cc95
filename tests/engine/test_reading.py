"""Reads: pages that see each timer once, filters, and the soonest."""

import pytest

from tests.engine.harness import DAY, T0, Bench, failed
from timerd.engine import reading
from timerd.engine.message import Filter, List, ListDead, SetTypes
from timerd.engine.timer import TimerType


def zoo() -> Bench:
    """One timer of each state, named after it."""
    bench = Bench(TimerType("t", batch_size=10, max_lag_ms=0), TimerType("u", batch_size=10, max_lag_ms=0))
    for id, outcome in (("retrying", failed()), ("dead", failed(bury=True))):
        bench.arm(id, T0)
        bench.settle(bench.take(), outcome)
    bench.arm("in_flight", T0)
    bench.take()
    bench.arm("due", T0)
    bench.arm("armed", T0 + DAY)
    bench.arm("paused", T0 + DAY, "u")
    bench.turn(SetTypes({"t": bench.types["t"], "u": TimerType("u", state="paused")}))
    return bench


@pytest.mark.parametrize("state", ["armed", "due", "in_flight", "retrying", "paused", "dead"])
def test_each_state_has_its_name(state: str) -> None:
    bench = zoo()
    assert bench.get(state).state == state  # type: ignore[union-attr]
    assert [view.id for view in bench.listed(List(Filter(state=state), (-1, ""), 10, None))] == [state]


@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        (Filter(type="u"), {"paused"}),
        (Filter(fire_after=T0), {"armed", "paused"}),
        (Filter(fire_before=T0 + DAY), {"retrying", "dead", "in_flight", "due"}),
        (Filter(id_prefix="d"), {"due", "dead"}),
        (Filter(type="t", state="armed", fire_after=T0 + DAY), set()),
    ],
)
def test_a_filter(filter: Filter, ids: set[str]) -> None:
    assert {view.id for view in zoo().listed(List(filter, (-1, ""), 1, None))} == ids


def test_the_soonest_are_all_but_those_in_flight_and_the_dead() -> None:
    assert zoo().ids() == ["retrying", "due", "armed", "paused"]
    assert zoo().ids(count=1) == ["retrying"]
    assert zoo().ids("u") == ["paused"]


def test_pages_see_everything_once_however_little_a_page_may_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SCAN_TIMERS", 3)
    bench = Bench()
    ids = {f"id-{n}" for n in range(50)}
    bench.arm_all(sorted(ids), T0 + DAY)
    listed = [view.id for view in bench.listed(List(Filter(), (-1, ""), 2, None))]
    assert len(listed) == 50
    assert set(listed) == ids


def test_dead_letters_are_listed_by_type() -> None:
    bench = zoo()
    assert [view.id for view in bench.listed(ListDead("t", (-1, ""), 10, None))] == ["dead"]
    assert bench.listed(ListDead("u", (-1, ""), 10, None)) == []
