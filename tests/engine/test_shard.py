"""The shard as a whole: slices, stops, wake-ups, counters."""

import pytest

from tests.engine.harness import ALL_SLOTS, DAY, T0, Bench, failed
from timerd.engine import shard as shard_module
from timerd.engine.message import Close, FindBodies, Relocate, Slice
from timerd.engine.record import Checkpoint, Closed, Owned
from timerd.engine.timer import BodyRef, TimerType


def test_the_first_record_says_who_has_the_shard_and_whether_it_was_laid_down() -> None:
    bench = Bench()
    assert Owned(1, T0, True) in bench.records
    bench.crash()
    assert Owned(2, T0, False) in bench.records
    bench.ask(Close(None))
    bench.crash()
    assert Owned(3, T0, True) in bench.records


def test_a_stop_with_a_delivery_open_is_not_written_down_as_clean() -> None:
    bench = Bench()
    bench.arm("x", T0)
    bench.take()
    bench.ask(Close(None))
    assert not any(isinstance(record, Closed) for record in bench.records)
    bench.crash()
    assert bench.take().flagged == {"x"}


def test_slices_go_round_the_slots_and_free_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "SLICE_TIMERS", 100)
    bench = Bench()
    bench.arm_all((f"id-{n}" for n in range(500)), T0 + DAY)
    before = bench.state.lsn
    assert bench.shard.needed_lsn() == 1
    assert bench.shard.pinned(before) == len(ALL_SLOTS)
    seen: list[int] = []
    while bench.shard.pinned(before):
        bench.turn(Slice(), Slice())
        for record in bench.records:
            assert isinstance(record, Checkpoint)
            assert len(record.timers) <= 100
            seen += record.slots
    assert len(set(seen[: len(ALL_SLOTS)])) == len(ALL_SLOTS), "two slices of a turn are of different slots"
    assert bench.shard.needed_lsn() == before + 1


def test_a_year_of_everything_balances() -> None:
    bench = Bench(TimerType("t", batch_size=3, max_lag_ms=0), TimerType("u", batch_size=3, max_lag_ms=0))
    bench.arm_all("abcdefgh", T0)
    bench.settle(bench.take(), failed(bury=True))
    bench.arm("a", T0)
    bench.arm("d", T0, "u")
    bench.cancel("e")
    taken = bench.take(type="u")
    bench.arm("d", T0, "t")
    bench.settle(taken)
    assert bench.totals() == {"armed": 10, "replaced": 1, "cancelled": 1, "dead": 3, "purged": 1}
    assert bench.totals("u") == {"armed": 1, "replaced": 1, "superseded": 1}
    bench.crash()
    assert bench.totals() == {"armed": 10, "replaced": 1, "cancelled": 1, "dead": 3, "purged": 1}


def test_bodies_are_counted_and_moved() -> None:
    bench = Bench()
    old, new = BodyRef(1, 0, 600, b"1" * 16), BodyRef(2, 0, 600, b"1" * 16)
    generation = bench.arm("x", T0, payload=old).generation
    assert bench.arm("x", T0, payload=new).status == "unchanged", "the same payload, wherever it lies"
    assert bench.state.body_bytes == {1: 600}
    assert bench.ask(FindBodies([("x", new), ("x", old), ("y", old)], None)) == [(1, "x", generation)]
    bench.ask(Relocate([("x", generation, old, new), ("x", generation + 1, new, old)], None))
    assert bench.state.body_bytes == {2: 600}
    bench.crash()
    assert bench.state.body_bytes == {2: 600}
