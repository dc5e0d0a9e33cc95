"""A turn that was missed already when an answer re-armed a loop to it: it catches up, and is no way round the rate."""

import pytest

from tests.engine.harness import HOUR, MINUTE, SECOND, T0, Bench, ids_of
from tests.engine.test_misfire import of, told
from timerd.engine import due
from timerd.engine.catchup import MISSED
from timerd.engine.message import ItemResult, Settle, SetTypes
from timerd.engine.timer import TimerType


def looping(type: TimerType, ids: str = "a", fire_at: int = T0 + SECOND, down_ms: int = HOUR) -> Bench:
    """Loops that were away for so long, and whose answers re-arm them to `fire_at`."""
    bench = Bench(type)
    bench.arm_all(ids, T0)
    bench.pass_ms(down_ms)
    stepped: list[str] = []
    while len(stepped) < len(ids):
        stepped += step(bench, fire_at, MISSED)
    assert sorted(stepped) == sorted(ids)
    return bench


def step(bench: Bench, fire_at: int, lane: int) -> list[str]:
    taken = bench.take(limit=lane)
    bench.turn(Settle(taken.batch_no, 1.0, {id: ItemResult("rearm", fire_at) for id in ids_of(taken)}))
    return ids_of(taken)


@pytest.mark.parametrize(
    ("policy", "late_ms", "missed"),
    [
        ("fire", MINUTE, False),
        ("fire", MINUTE + 1, True),
        ("fire", 30 * MINUTE, True),
        ("fire", -SECOND, False),
        ("coalesce", HOUR, True),  # back in time: there is no step to skip
    ],
)
def test_a_rearm_that_is_overdue_beyond_the_grace_is_missed_at_once(policy: str, late_ms: int, missed: bool) -> None:
    bench = looping(of(policy), fire_at=T0 + HOUR - late_ms)
    assert told(bench) == ((0, 1) if missed else (0 if late_ms < 0 else 1, 0))


def test_step_by_step_a_loop_comes_through_the_catch_up_lane_alone() -> None:
    bench = looping(of(), "abc", down_ms=4 * MINUTE)
    for turn in range(2, 180):
        assert told(bench) == (0, 3)
        assert step(bench, T0 + turn * SECOND, MISSED) == ["a", "b", "c"]
    bench.pass_ms(1)
    assert told(bench) == (0, 3)
    step(bench, T0 + 3 * MINUTE + 1, MISSED)
    assert told(bench) == (3, 0), "not overdue by more than the grace any more"


def test_it_is_missed_however_long_its_shard_had_nothing_to_do() -> None:
    bench = Bench(of())
    bench.arm("a", T0)
    taken = bench.take()
    bench.wall_us += HOUR * 1000  # no turn meanwhile
    bench.turn(Settle(taken.batch_no, 1.0, {"a": ItemResult("rearm", T0 + SECOND)}))
    assert told(bench) == (0, 1)


def test_where_it_would_end_the_loop_it_is_due_at_its_acceptance() -> None:
    bench = Bench(of("drop"))
    bench.arm("a", T0)
    taken = bench.take()
    bench.pass_ms(HOUR)
    bench.turn(Settle(taken.batch_no, 1.0, {"a": ItemResult("rearm", T0 + SECOND)}))
    assert told(bench) == (1, 0)
    assert "dropped" not in bench.totals()
    bench.pass_ms(MINUTE + 2 * SECOND)
    assert bench.totals()["dropped"] == {"misfire": 1}, "nobody took it for so long"


@pytest.mark.parametrize("batch_size", [1, 100])
def test_a_policy_that_becomes_drop_spares_them(batch_size: int) -> None:
    bench = looping(of(), "abc")
    bench.turn(SetTypes({"t": of("drop", batch_size=batch_size)}))
    assert told(bench) == (min(3, batch_size), 0)
    assert "dropped" not in bench.totals()
    bench.turn(SetTypes({"t": of(batch_size=batch_size)}))
    bench.turn(SetTypes({"t": of("coalesce", batch_size=100)}))
    assert sum(told(bench)) == 3


def test_another_grace_sorts_them_by_their_fire_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "SLICE", 2)
    bench = looping(of(batch_size=3), "abcdef", fire_at=T0 + 50 * MINUTE)
    bench.turn(SetTypes({"t": of(grace_ms=20 * MINUTE, batch_size=3)}))
    while bench.shard.wake_at()[0] == 0:
        bench.turn()
    assert told(bench) == (3, 0)
    bench.turn(SetTypes({"t": of(grace_ms=2 * MINUTE, batch_size=3)}))
    assert len(ids_of(bench.take())) == 3, "ready already, and accepted a moment ago"
    while bench.shard.wake_at()[0] == 0:
        bench.turn()
    assert told(bench) == (0, 3)


def test_a_wall_clock_that_goes_back_leaves_them_missed() -> None:
    bench = looping(of(batch_size=2), "abcd")
    bench.pass_ms(-SECOND)
    assert told(bench) == (0, 2)
    assert len(step(bench, T0 + 2 * SECOND, MISSED)) == 2
    assert told(bench) == (0, 2)
    bench.pass_ms(-(HOUR - 10 * SECOND))
    bench.turn()
    assert told(bench) == (2, 0), "by this clock they are not overdue by so much"


def test_after_a_start_they_age_from_their_acceptance() -> None:
    bench = looping(of(), "ab")
    bench.crash()
    assert told(bench) == (2, 0)
    bench = looping(of(), "ab")
    bench.wall_us += 2 * MINUTE * 1000
    bench.crash()
    assert told(bench) == (0, 2)


def test_one_that_is_moved_or_cancelled_leaves_no_trace() -> None:
    bench = looping(of(), "abc")
    bench.cancel("a")
    bench.arm("b", T0)
    assert told(bench) == (1, 1)
    assert ids_of(bench.take(limit=MISSED)) == ["c"]
    assert not bench.state.lane("t")._behind
