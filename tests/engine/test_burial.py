"""Dead letters: replayed, purged, and kept only so long and so many."""

from tests.engine.harness import DAY, T0, Bench, failed, ids_of
from timerd.engine.burial import AT_ONCE, KEPT_MS
from timerd.engine.message import Purge, Revive
from timerd.engine.record import Buried


def graveyard(*ids: str, kept: int = 1_000) -> Bench:
    bench = Bench(kept=kept)
    for id in ids:
        bench.arm(id, T0, payload=b"1")
        bench.settle(bench.take(), failed("boom", bury=True))
    return bench


def test_a_revived_timer_is_a_new_generation_with_its_old_time_and_no_failure() -> None:
    bench = graveyard("a", "b")
    old = bench.get("a")
    assert bench.ask(Revive(["a", "a", "nobody"], None, None)) == (1, False)
    new = bench.get("a")
    assert old is not None
    assert new is not None
    assert new.generation > old.generation
    assert (new.state, new.attempt, new.last_error, new.payload) == ("due", 0, None, b"1")
    assert (new.fire_at, new.created_at) == (old.fire_at, old.created_at)
    assert bench.totals() == {"armed": 2, "dead": 2, "revived": 1}


def test_a_replay_does_not_know_that_an_attempt_before_it_may_have_arrived() -> None:
    """As docs/callbacks.md says. Whoever changes that changes it there, too."""
    bench = Bench()
    bench.arm("a", T0)
    bench.settle(bench.take(), failed("time-out", unknown=True))
    bench.pass_ms(DAY)
    again = bench.take(limit=100)
    assert again.flagged == {"a"}
    bench.settle(again, failed("boom", bury=True))
    bench.ask(Revive(["a"], None, None))
    replayed = bench.take()
    assert (ids_of(replayed), replayed.flagged) == (["a"], frozenset())


def test_by_type_the_oldest_first_and_so_many_at_once() -> None:
    bench = graveyard(*(f"id-{n:04}" for n in range(5)))
    assert bench.ask(Purge(None, "t", None)) == (5, False)
    assert bench.ask(Purge(None, "nothing", None)) == (0, False)
    assert bench.totals()["purged"] == 5


def test_only_the_youngest_are_kept() -> None:
    bench = graveyard("a", "b", "c", kept=2)
    assert [bench.get(id) is None for id in "abc"] == [True, False, False]


def test_the_old_go_and_the_shard_wakes_up_for_it() -> None:
    bench = graveyard("a")
    bench.pass_ms(DAY)
    assert bench.shard.wake_at() == (T0 + KEPT_MS, None)
    bench.pass_ms(KEPT_MS - DAY - 1)
    assert bench.get("a") is not None
    bench.pass_ms(1)
    assert bench.get("a") is None
    assert bench.shard.wake_at() == (None, None)


def test_a_tick_purges_so_many_over_all_types() -> None:
    bench = Bench()
    for type in ("t", "u"):
        bench.arm_all((f"{type}{n}" for n in range(AT_ONCE - 500)), T0, type)
    for timer in [timer for run in bench.state.runs for timer in run.by_id.values()]:
        bench.state.apply(burial_of(timer.id))
    bench.pass_ms(KEPT_MS)
    assert bench.state.timers == AT_ONCE - 1_000
    assert bench.shard.wake_at() == (0, None)
    bench.turn()
    assert bench.state.timers == 0


def burial_of(id: str) -> Buried:
    return Buried([id], T0, True, False, "boom")
