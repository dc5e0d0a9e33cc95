"""Recovery: a fold of the frames, wherever the log was trimmed."""

import pytest

from tests.engine.harness import DAY, SECOND, T0, Bench, failed
from timerd.engine import shard as shard_module
from timerd.engine.message import Close, Purge, Revive, Slice
from timerd.engine.now import Now
from timerd.engine.record import Armed, Cancelled, Checkpoint, Owned, Totals
from timerd.engine.replay import Replay
from timerd.engine.ring import slot_of
from timerd.engine.timer import Timer

IDS = [f"timer-{n}" for n in range(12)]


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "SLICE_TIMERS", 3)


def lived() -> Bench:
    """A shard that has been through everything, and slices all along."""
    bench = Bench(slots=sorted({slot_of(id) for id in IDS}))
    bench.arm_all(IDS, T0)
    for n in range(6):
        taken = bench.take(count=3)
        bench.turn(Slice())
        bench.settle(taken, failed(gap_ms=n + 1, limit=2, bury=n % 2 == 1))
        bench.arm(IDS[n], T0 + n, payload=b"%d" % n)
        bench.cancel(IDS[-n - 1])
        bench.pass_ms(SECOND)
    bench.ask(Revive(IDS[3:5], None, None))
    bench.ask(Purge(IDS[5:6], None, None))
    return bench


@pytest.mark.usefixtures("small_slices")
def test_a_log_may_begin_anywhere_up_to_what_is_needed() -> None:
    bench = lived()
    needed = bench.shard.needed_lsn()
    assert needed > 10
    whole = bench.recovered()
    for first in range(2, needed + 1):
        part = bench.recovered(first)
        assert part.slots == whole.slots
        assert (part.last, part.lsn, part.timers, part.epoch) == (whole.last, whole.lsn, whole.timers, whole.epoch)
        assert {name: lane.totals for name, lane in part.lanes.items()} == {
            name: lane.totals for name, lane in whole.lanes.items()
        }


@pytest.mark.usefixtures("small_slices")
def test_a_log_that_begins_too_late_is_refused() -> None:
    bench = lived()
    replay = Replay(0, bench.slots, bench.now)
    replay.feed(7, [Cancelled([IDS[0]])])
    wrong = replay.finish()
    assert isinstance(wrong, str)
    assert "no checkpoint slice" in wrong


def test_a_timer_with_a_payload_in_two_slices_and_retrying() -> None:
    bench = Bench(slots=[slot_of("x")])
    bench.arm("x", T0, payload=b"1")
    bench.turn(Slice())
    bench.settle(bench.take(), failed(gap_ms=SECOND, limit=3))
    bench.turn(Slice())
    bench.turn(Slice())
    bench.crash(from_lsn=2)
    assert bench.get("x").attempt == 1  # type: ignore[union-attr]
    bench.pass_ms(SECOND - 1)
    assert bench.get("x").next_attempt_at == bench.wall_ms + 1  # type: ignore[union-attr]
    bench.pass_ms(1)
    assert len(bench.take(limit=3).timers) == 1
    assert bench.shard.wake_at() == (None, None)


def test_a_slice_is_all_that_its_slots_hold_whatever_was_there_before() -> None:
    """A log that is written as it should be has no such slice; replay does not rest on that."""
    gone, kept, beside = "timer-1", "timer-2", "timer-3"
    replay = Replay(0, sorted({slot_of(id) for id in (gone, kept, beside)}), Now(T0 * 1000, 1))
    old = [Timer(T0, n, id, "t", b"old") for n, id in enumerate((gone, kept, beside), 1)]
    replay.feed(1, [Owned(1, T0, True), Armed(old)])
    new = Timer(T0, 4, kept, "t", b"new one")
    totals = {"t": Totals(armed=4, replaced=1, cancelled=1)}
    replay.feed(2, [Checkpoint([slot_of(gone), slot_of(kept)], [new], 4, 1, 0, 0, totals)])
    state = replay.finish()
    assert not isinstance(state, str)
    assert state.find(gone) is None
    assert state.find(kept) == new
    assert state.find(beside) == old[2]
    assert (state.timers, state.lane("t").live, state.payload_bytes) == (2, 2, len(b"new one" + b"old"))
    assert state.lane("t").totals == Totals(armed=4, replaced=1, cancelled=1)


def test_replay_queues_what_is_left_and_not_what_has_been() -> None:
    bench = Bench()
    for n in range(50):
        bench.arm("x", T0 + DAY + n)
    assert bench.recovered().lane("t")._due._entries == 1


def test_a_turn_that_arms_and_cancels_and_arms_again() -> None:
    replay = Replay(0, [slot_of("x")], Now(T0 * 1000, 1))
    timers = [Timer(T0, n, "x", "t", state=7) for n in (1, 2)]
    replay.feed(1, [Owned(1, T0, True), Armed(timers[:1]), Cancelled(["x"]), Armed(timers[1:])])
    state = replay.finish()
    assert not isinstance(state, str)
    assert state.find("x") == Timer(T0, 2, "x", "t")


def test_dead_letters_come_back_in_the_order_of_their_deaths() -> None:
    bench = Bench()
    for id in ("c", "a", "b"):
        bench.arm(id, T0)
        bench.settle(bench.take(), failed(bury=True))
        bench.turn(Slice())
        bench.pass_ms(1)
    bench.crash()
    assert list(bench.state.lane("t").dead) == ["c", "a", "b"]


def test_a_clean_end_is_one_with_nothing_behind_it() -> None:
    bench = Bench()
    bench.ask(Close(None))
    assert bench.recovered().closed
    bench.arm("x", T0)
    assert not bench.recovered().closed


def test_flags_of_an_unclean_start_outlive_a_clock_that_goes_back() -> None:
    bench = Bench()
    bench.arm("x", T0)
    bench.crash()
    bench.wall_us -= DAY * 1000
    bench.crash()
    assert bench.state.unclean_at == T0
