"""Part of a batch settled, and what is put back under a key: in the shard, by itself."""

from tests.engine.harness import HOUR, MINUTE, SECOND, T0, Bench, failed, ids_of
from timerd.engine.message import SettleSome
from timerd.engine.parking import SWEEP_FLOOR
from timerd.engine.record import Fired, Retried
from timerd.engine.timer import RetryPolicy, TimerType

TYPE = TimerType("t", batch_size=10, max_lag_ms=0, retry=RetryPolicy(max_attempts=3))


def flown(*ids: str) -> tuple[Bench, int]:
    """These timers in flight, and the number of their batch."""
    bench = Bench(TYPE)
    bench.arm_all(ids, T0)
    return bench, bench.take().batch_no


def parked(bench: Bench, batch_no: int, *ids: str, key: str = "k") -> None:
    bench.turn(SettleSome(batch_no, 1, parked={key: list(ids)}))


def test_some_of_a_batch_end_and_the_others_stay_in_flight() -> None:
    bench, batch_no = flown("a", "b", "c", "d", "e")
    outcome = [("c", failed("no", counted=True)), ("d", failed("no", counted=True))]
    bench.turn(SettleSome(batch_no, 1, fired=["a"], failed=outcome, parked={"k": ["b"]}))
    assert [type(record) for record in bench.records] == [Fired, Retried], "one record for what is alike; none to park"
    states = {view.id: view.state for view in (bench.get(id) for id in "bcde") if view}
    assert states == {"b": "due", "c": "retrying", "d": "retrying", "e": "in_flight"}
    assert bench.get("a") is None
    bench.turn(SettleSome(batch_no, 2, fired=["e"]))
    assert not bench.shard._draft.flights


def test_a_part_of_which_nothing_was_taken_ends_with_a_settlement_of_nothing() -> None:
    bench = Bench(TYPE)
    batch_no = bench.take().batch_no
    bench.turn(SettleSome(batch_no, 1))
    assert not bench.shard._draft.flights


def test_what_is_parked_is_taken_by_its_key_alone_in_its_order() -> None:
    bench, batch_no = flown("a", "b", "c")
    parked(bench, batch_no, "c", "a")
    bench.turn(SettleSome(batch_no, 2, parked={"l": ["b"]}))
    assert (bench.parked["t", "k"], bench.parked["t", "l"]) == (2, 1)
    assert ids_of(bench.take()) == []
    assert ids_of(bench.take(key="k", count=1)) == ["c"]
    assert bench.parked["t", "k"] == 1
    assert ids_of(bench.take(key="k")) == ["a"]
    assert ids_of(bench.take(key="nobody")) == []
    assert bench.totals() == {"armed": 3}


def test_what_is_parked_waits_again_when_the_wall_goes_back_behind_its_time() -> None:
    bench = Bench(TYPE)
    bench.arm_all(["old"], T0 - 2 * HOUR)
    bench.arm_all(["first", "again"], T0)
    taken = bench.take()
    bench.turn(
        SettleSome(taken.batch_no, 1, failed=[("again", failed("no", gap_ms=1))], parked={"k": ["old", "first"]})
    )
    bench.pass_ms(SECOND)
    parked(bench, bench.take(limit=100).batch_no, "again")
    bench.pass_ms(-HOUR)
    assert ids_of(bench.take(key="k")) == ["old"]
    bench.pass_ms(HOUR - MINUTE)
    assert ids_of(bench.take(key="k")) == ids_of(bench.take()) == []
    bench.pass_ms(MINUTE)
    assert ids_of(bench.take()) == ["first"]
    assert ids_of(bench.take(limit=100)) == ["again"]


def test_what_is_parked_after_the_wall_went_back_waits_for_its_time() -> None:
    bench, batch_no = flown("a")
    bench.pass_ms(-HOUR)
    parked(bench, batch_no, "a")
    assert ids_of(bench.take(key="k")) == []
    bench.pass_ms(HOUR)
    assert ids_of(bench.take()) == ["a"]


def test_one_that_was_cancelled_before_it_was_put_back_is_gone_and_was_no_answer() -> None:
    bench, batch_no = flown("a", "b")
    assert bench.cancel("a", "b")[0].in_flight
    bench.arm("b", T0)
    parked(bench, batch_no, "a", "b")
    assert bench.totals() == {"armed": 3, "cancelled": 2}
    assert ids_of(bench.take()) == ["b"], "its newer generation is held back no longer"


def test_an_outcome_of_one_that_was_moved_is_superseded_and_lets_the_newer_one_go() -> None:
    bench, batch_no = flown("a", "b")
    bench.arm("a", T0 - 1)
    assert ids_of(bench.take()) == []
    bench.turn(SettleSome(batch_no, 1, fired=["a"]))
    assert bench.totals()["superseded"] == 1
    assert ids_of(bench.take()) == ["a"]


def test_after_a_crash_what_was_parked_is_due_and_has_no_attempt() -> None:
    bench, batch_no = flown("a")
    parked(bench, batch_no, "a")
    bench.crash()
    taken = bench.take()
    assert (ids_of(taken), taken.flagged) == (["a"], {"a"})
    assert taken.timers[0].failure is None


def test_what_has_left_otherwise_is_swept_in_the_end() -> None:
    bench = Bench(TimerType("t", batch_size=10_000, max_lag_ms=0))
    many = [f"x{n}" for n in range(SWEEP_FLOOR + 10)]
    bench.arm_all([*many, "stays"], T0)
    parked(bench, bench.take(10_000).batch_no, *many, "stays")
    bench.cancel(*many)
    assert bench.parked["t", "k"] == 1
    assert ids_of(bench.take(key="k")) == ["stays"]
