"""What is overdue by more than the grace: when it is missed, and what `drop` and `coalesce` make of it in a shard."""

import pytest

from tests.engine.harness import DAY, HOUR, MINUTE, SECOND, T0, Bench, failed, ids_of
from timerd.engine import due, misfire
from timerd.engine.catchup import MISSED, key_of_missed
from timerd.engine.effect import Dropped, Settled
from timerd.engine.message import ItemResult, SetReserve, Settle, SettleSome, SetTypes
from timerd.engine.timer import LAG_MARGIN_MS, Misfire, TimerType


def of(policy: str = "fire", grace_ms: int = MINUTE, state: str = "active", **fields: object) -> TimerType:
    fields = {"batch_size": 100, "max_lag_ms": 0} | fields
    return TimerType("t", misfire=Misfire(policy, grace_ms), state=state, **fields)  # type: ignore[arg-type]


def told(bench: Bench) -> tuple[int, int]:
    """How many first attempts are said to be ready: on time, and missed."""
    return tuple(bench.told["t", lane].count if ("t", lane) in bench.told else 0 for lane in (0, MISSED))  # type: ignore[return-value]


# ---- which are missed


@pytest.mark.parametrize(
    ("grace_ms", "max_lag_ms", "late_ms", "missed"),
    [
        (MINUTE, 0, MINUTE, False),
        (MINUTE, 0, MINUTE + 1, True),
        (0, SECOND, SECOND + LAG_MARGIN_MS, False),  # it may have waited for its batch
        (0, SECOND, SECOND + LAG_MARGIN_MS + 1, True),
        (0, 0, LAG_MARGIN_MS + 1, True),
    ],
)
def test_a_timer_is_missed_when_it_is_overdue_by_more_than_the_grace(
    grace_ms: int, max_lag_ms: int, late_ms: int, missed: bool
) -> None:
    bench = Bench(of(grace_ms=grace_ms, max_lag_ms=max_lag_ms))
    bench.arm("a", T0 + HOUR)
    bench.pass_ms(HOUR + late_ms)
    assert told(bench) == ((0, 1) if missed else (1, 0))
    assert ids_of(bench.take(limit=MISSED)) == (["a"] if missed else [])


def test_a_fire_time_in_the_past_is_due_at_acceptance() -> None:
    bench = Bench(of())
    bench.arm("a", T0 - DAY)
    assert told(bench) == (1, 0)
    bench.pass_ms(MINUTE + 1)
    bench.turn(SetTypes(bench.types))
    assert told(bench) == (0, 1)


def test_what_ages_on_the_ready_list_is_not_taken_as_if_it_were_on_time() -> None:
    bench = Bench(of())
    bench.arm_all("abc", T0)
    bench.fire_now("b")
    bench.wall_us += MINUTE * 1000
    bench.arm("d", bench.wall_ms)
    assert told(bench) == (4, 0)
    bench.wall_us += 2000  # no turn: the Take is the first to see it
    assert ids_of(bench.take(limit=0)) == ["d"]
    assert told(bench) == (0, 3)
    assert sorted(ids_of(bench.take(limit=MISSED))) == ["a", "b", "c"]


def test_retries_are_never_missed() -> None:
    bench = Bench(of())
    bench.arm("a", T0)
    bench.settle(bench.take(), failed(gap_ms=SECOND, limit=5))
    bench.pass_ms(HOUR)
    assert told(bench) == (0, 0)
    assert ids_of(bench.take(limit=5)) == ["a"]


def test_a_missed_one_that_fails_is_an_ordinary_retry() -> None:
    bench = Bench(of())
    bench.arm("a", T0 + SECOND)
    bench.pass_ms(HOUR)
    bench.settle(bench.take(limit=MISSED), failed(gap_ms=SECOND, limit=5))
    bench.pass_ms(SECOND)
    assert ids_of(bench.take(limit=5)) == ["a"]


def test_after_a_start_what_was_missed_is_found_among_what_is_on_time() -> None:
    bench = Bench(of())
    for n in range(50):
        bench.arm(f"old-{n}", T0 + SECOND)
        bench.arm(f"new-{n}", T0 + HOUR)
    bench.wall_us += (HOUR + SECOND) * 1000
    bench.crash()
    assert told(bench) == (50, 50)
    assert {id[:3] for id in ids_of(bench.take())} == {"new"}
    assert {id[:3] for id in ids_of(bench.take(limit=MISSED))} == {"old"}


def test_many_that_are_missed_are_sorted_out_by_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "SLICE", 10)
    bench = Bench(of(batch_size=20))
    bench.arm_all([f"old-{n}" for n in range(500)], T0 + SECOND)
    bench.arm_all(["new"], T0 + HOUR)
    bench.wall_us += (HOUR + SECOND) * 1000
    bench.crash()
    turns = 0
    while ("t", 0) not in bench.told:
        assert bench.shard.wake_at()[0] == 0, "it wants to go on at once"
        bench.turn()
        turns += 1
        assert turns < 60
    assert turns > 30, "no call does it all"
    assert ids_of(bench.take()) == ["new"]
    assert bench.told["t", MISSED].count == 20, "no more than a batch of them is ready"


def test_another_grace_sorts_anew() -> None:
    bench = Bench(of())
    bench.arm_all("abc", T0 + SECOND)
    bench.pass_ms(MINUTE)
    assert told(bench) == (3, 0)
    bench.turn(SetTypes({"t": of(grace_ms=SECOND)}))
    bench.turn()
    assert told(bench) == (0, 3)
    bench.turn(SetTypes({"t": of(grace_ms=HOUR)}))  # what has been told to be ready, too
    bench.turn()
    assert told(bench) == (3, 0)
    assert ids_of(bench.take(limit=MISSED)) == []


def test_when_the_wall_goes_back_nothing_is_missed_any_more() -> None:
    bench = Bench(of(batch_size=3))
    bench.arm_all("abcdef", T0 + SECOND)
    bench.arm_all("gh", T0 + HOUR)
    bench.pass_ms(2 * HOUR)
    assert told(bench) == (0, 3)
    bench.pass_ms(-2 * HOUR + 30 * SECOND)
    bench.turn()
    assert told(bench) == (3, 0)
    assert ids_of(bench.take(limit=MISSED)) == []
    assert sorted(ids_of(bench.take()) + ids_of(bench.take())) == list("abcdef")
    bench.pass_ms(HOUR)
    assert told(bench) == (2, 0)


def test_one_that_was_held_back_for_long_is_missed() -> None:
    bench = Bench(of())
    bench.arm("a", T0)
    taken = bench.take()
    bench.arm("a", T0 + SECOND)
    bench.pass_ms(2 * SECOND)
    assert set(bench.state.held) == {"a"}
    bench.pass_ms(HOUR)
    bench.settle(taken)
    assert told(bench) == (0, 1)


def test_what_is_missed_can_be_cancelled_moved_and_counted() -> None:
    bench = Bench(of(batch_size=3))
    bench.arm_all("abcdef", T0 + SECOND)
    bench.pass_ms(HOUR)
    assert bench.tally().types["t"].due == 6
    assert bench.tally().oldest_due_at == T0 + SECOND
    assert sorted(bench.ids()) == list("abcdef")
    bench.cancel("a", "f")
    bench.arm("b", bench.wall_ms)
    assert told(bench) == (1, 3)
    assert sorted(ids_of(bench.take(limit=MISSED)) + ids_of(bench.take(limit=MISSED))) == ["c", "d", "e"]


def test_stale_ones_among_the_missed_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "SWEEP_FLOOR", 10)
    bench = Bench(of(batch_size=1))
    ids = [f"id-{n}" for n in range(100)]
    bench.arm_all(ids, T0 + SECOND)
    bench.pass_ms(HOUR)
    bench.cancel(*ids[:90])
    for _ in range(5):
        bench.turn()
    queue = bench.state.lanes["t"]._due
    assert queue._entries <= 10


# ---- what is parked


def test_what_has_aged_while_it_was_parked_is_missed() -> None:
    bench = Bench(of())
    bench.arm_all("ab", T0)
    bench.pass_ms(MINUTE)
    bench.arm_all("cd", bench.wall_ms)
    taken = bench.take()
    bench.turn(SettleSome(taken.batch_no, 1, parked={"host": [*"abcd"]}))
    bench.pass_ms(SECOND)
    assert ids_of(bench.take(key="host", count=3)) == ["c", "d"]
    again = bench.take(limit=MISSED)
    assert ids_of(again) == ["a", "b"]
    bench.turn(SettleSome(again.batch_no, 1, parked={key_of_missed("host"): ["a", "b"]}))
    assert ids_of(bench.take(key=key_of_missed("host"))) == ["a", "b"]


def test_what_is_parked_as_missed_is_dropped_when_the_type_says_so_meanwhile() -> None:
    bench = Bench(of())
    bench.arm_all("ab", T0 + SECOND)
    bench.pass_ms(HOUR)
    bench.turn(SettleSome(bench.take(limit=MISSED).batch_no, 1, parked={key_of_missed("host"): ["a", "b"]}))
    bench.turn(SetTypes({"t": of("drop")}))
    assert ids_of(bench.take(key=key_of_missed("host"))) == []
    assert bench.totals() == {"armed": 2, "dropped": {"misfire": 2}}


# ---- drop


def test_what_is_missed_is_dropped_counted_and_never_reported() -> None:
    bench = Bench(of("drop"))
    bench.arm_all("abc", T0 + SECOND)
    bench.arm("d", T0 + HOUR)
    bench.pass_ms(HOUR)
    assert told(bench) == (1, 0)
    assert bench.totals() == {"armed": 4, "dropped": {"misfire": 3}}
    assert bench.get("a") is None
    assert ids_of(bench.take(limit=MISSED)) == []
    assert ids_of(bench.take()) == ["d"]
    bench.crash()
    assert bench.totals() == {"armed": 4, "dropped": {"misfire": 3}}


def test_time_alone_lets_what_nobody_takes_be_dropped() -> None:
    bench = Bench(of("drop", batch_size=2))
    bench.arm_all("abc", T0)
    bench.fire_now("c")
    wall = bench.shard.wake_at()[0]
    assert wall is not None
    assert T0 + MINUTE < wall <= T0 + MINUTE + 2 * SECOND
    bench.pass_ms(wall - bench.wall_ms)
    assert bench.totals()["dropped"] == {"misfire": 3}
    assert bench.shard.wake_at() == (None, None)


def test_drops_are_done_by_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misfire, "AT_ONCE", 10)
    bench = Bench(of("drop"))
    bench.arm_all([f"id-{n}" for n in range(35)], T0 + SECOND)
    bench.pass_ms(HOUR)
    seen = []
    while bench.shard.wake_at()[0] == 0:
        seen.append(bench.totals()["dropped"]["misfire"])
        bench.turn()
    assert [*seen, bench.totals()["dropped"]["misfire"]] == [10, 20, 30, 35]


def test_of_a_paused_type_nothing_is_dropped() -> None:
    bench = Bench(of("drop"))
    bench.arm_all("abc", T0 + SECOND)
    bench.turn(SetTypes({"t": of("drop", state="paused")}))
    bench.pass_ms(DAY)
    assert "dropped" not in bench.totals()
    assert bench.shard.wake_at()[0] != 0, "it has nothing to do"
    assert told(bench) == (0, 0)
    bench.turn(SetTypes({}))
    bench.pass_ms(DAY)
    assert "dropped" not in bench.totals()
    bench.turn(SetTypes({"t": of("drop")}))
    assert bench.totals()["dropped"] == {"misfire": 3}


def test_a_policy_that_becomes_drop_drops_what_was_ready_to_catch_up() -> None:
    bench = Bench(of())
    bench.arm_all("abc", T0 + SECOND)
    bench.pass_ms(HOUR)
    taken = bench.take(limit=MISSED, count=1)
    bench.turn(SetTypes({"t": of("drop")}))
    assert told(bench) == (0, 0)
    assert bench.totals()["dropped"] == {"misfire": 2}
    bench.settle(taken)
    assert bench.totals()["fired"] == 1


def test_what_is_dropped_while_the_disk_is_full_is_written_down() -> None:
    bench = Bench(of("drop"))
    bench.arm("a", T0 + SECOND)
    bench.turn(SetReserve(True))
    bench.pass_ms(HOUR)
    bench.crash()
    assert bench.totals()["dropped"] == {"misfire": 1}


def test_a_generation_whose_forerunner_is_under_way_is_dropped_after_that() -> None:
    bench = Bench(of("drop"))
    bench.arm("a", T0)
    taken = bench.take()
    bench.arm("a", T0 + SECOND)
    bench.pass_ms(HOUR)
    assert "dropped" not in bench.totals()
    bench.settle(taken)
    assert bench.totals()["dropped"] == {"misfire": 1}
    assert not bench.state.blocked
    assert bench.get("a") is None


# ---- coalesce


@pytest.mark.parametrize(
    ("policy", "delivered", "fire_at", "becomes", "skipped"),
    [
        ("coalesce", 0, MINUTE, 60 * MINUTE, 59),  # an hour was missed; now is T0 + 60 min
        ("coalesce", 30_000, 90_000, 60 * MINUTE + 30_000, 59),  # in its phase
        ("coalesce", 0, 59 * MINUTE, 59 * MINUTE, 0),  # not overdue by more than the grace
        ("coalesce", 0, 2 * HOUR, 2 * HOUR, 0),
        ("coalesce", 10 * MINUTE, 5 * MINUTE, 5 * MINUTE, 0),  # back in time: no step
        ("coalesce", -367 * DAY, 0, 0, 0),  # so long a step is none; it would lead beyond the horizon
        ("fire", 0, MINUTE, MINUTE, 0),
    ],
)
def test_a_rearm_skips_the_turns_it_has_missed(
    policy: str, delivered: int, fire_at: int, becomes: int, skipped: int
) -> None:
    bench = Bench(of(policy))
    bench.arm("a", T0 + delivered)
    bench.pass_ms(HOUR)
    taken = bench.take(limit=MISSED)
    assert ids_of(taken) == ["a"]
    effects = bench.turn(Settle(taken.batch_no, 1.0, {"a": ItemResult("rearm", T0 + fire_at)}))
    assert [effect.coalesced for effect in effects if isinstance(effect, Settled)] == [skipped]
    view = bench.get("a")
    assert view is not None
    assert view.fire_at == T0 + becomes
    assert bench.totals()["fired"] == 1


# ---- what is told of them


def test_how_many_are_missed_is_told_and_what_has_left_counts_until_it_is_met() -> None:
    def missed() -> int:
        return bench.tally().types["t"].missed

    bench = Bench(of(batch_size=2))
    bench.arm_all("abcdef", T0 + SECOND)
    bench.arm("late", T0 + HOUR)
    assert missed() == 0
    bench.pass_ms(HOUR)
    assert missed() == 6
    taken = bench.take(limit=MISSED)
    assert missed() == 4
    bench.cancel("c")  # one that is ready
    assert missed() == 3
    bench.cancel("f")
    assert missed() == 3, "at most"
    bench.turn(SettleSome(taken.batch_no, 1, parked={key_of_missed("host"): ["a", "b"]}))
    assert missed() == 5
    bench.settle(bench.take(key=key_of_missed("host")))
    while ids_of(taken := bench.take(limit=MISSED)):
        bench.settle(taken)
    assert missed() == 0


def test_how_many_are_dropped_is_an_effect() -> None:
    bench = Bench(of("drop"))
    bench.arm_all("abc", T0 + SECOND)
    bench.pass_ms(HOUR)
    assert [effect for effect in bench.effects if isinstance(effect, Dropped)] == [Dropped("t", 3)]
    bench.turn()
    assert not any(isinstance(effect, Dropped) for effect in bench.effects)
