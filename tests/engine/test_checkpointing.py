"""The bound on the log, played through with a model of segments: promise 9 as arithmetic."""

from itertools import repeat

import pytest

from timerd.engine.checkpointing import PACE, TURN_BYTES_PRESSED, LogState, Pace, is_pressing

SEGMENT = 16 << 20
SLICE = 280_000  # about 4,000 timers
SHARDS = 8  # each has at least one slice


def play(live: int, turn_bytes: int, turns: int) -> tuple[float, float]:
    """Churn over a fixed live state; (worst disk - 2 segments, as multiple of live; written over appended)."""
    slots = max(SHARDS, live // SLICE)  # so many slices make a full checkpoint
    slot_bytes = slice_bytes = max(1, live // slots)
    covered = dict.fromkeys(range(slots), 0)  # slot -> position of its newest slice; 0: its first arms
    position, first = live, 0  # the log begins with everything armed once
    worst, slices_written = 0.0, 0
    appended, pressing, pace, written = 0, False, begun(live), 0
    for _ in range(turns):
        turn = min(turn_bytes, TURN_BYTES_PRESSED) if pressing else turn_bytes
        position += turn
        appended += turn
        pace.written(written)
        pace.appended(turn + written, live)
        written = 0
        segments = position // SEGMENT + 1
        end_of_oldest = (first + 1) * SEGMENT
        pinned = [slot for slot, at in covered.items() if at < end_of_oldest]
        disk = (segments - first) * SEGMENT
        worst = max(worst, (disk - 2 * SEGMENT) / live)
        if first < segments - 1 and not pinned:
            first += 1
            continue
        state = LogState(disk, SEGMENT, live, live * len(pinned) // slots if first < segments - 1 else 0)
        if pressing := is_pressing(state):
            for _ in pace.take(repeat(slice_bytes)):
                slot = next(iter(covered))
                del covered[slot]
                covered[slot] = position
                position += slot_bytes
                written += slot_bytes
                slices_written += slot_bytes
    return worst, slices_written / appended


@pytest.mark.parametrize("live", [10_000, 1_000_000, 12_000_000, 20_000_000, 100_000_000])
@pytest.mark.parametrize("turn_bytes", [10_000, 300_000, 2_000_000])
def test_churn_stays_within_three_times_live_and_two_segments(live, turn_bytes):
    turns = max(2_000, 12 * live // turn_bytes)
    worst, amplification = play(live, turn_bytes, turns)
    assert worst <= 3.0, f"disk rose to {worst:.2f} x live and two segments"
    assert amplification <= PACE
    if live >= 5 * SEGMENT:
        assert amplification <= 1.5, f"{amplification:.2f} bytes of slices for each byte appended"


def test_nothing_presses_when_the_oldest_segment_can_go():
    assert not is_pressing(LogState(disk=10**9, segment=SEGMENT, live=1, pinned=0))


def begun(live: int) -> Pace:
    """The pace of a life that has used up what it began with."""
    pace = Pace()
    pace.appended(0, live)
    assert pace.take([live]) == [live]
    pace.written(live)
    pace.appended(live, live)
    assert pace.take([1]) == []
    return pace


def slices(pace: Pace, slice_bytes: int) -> int:
    """How many of that size may be written."""
    return len(pace.take(repeat(slice_bytes)))


def test_slices_keep_pace_with_what_others_append_and_are_bounded():
    pace = begun(live=100_000)
    pace.appended(1_000, live=100_000)
    assert slices(pace, 1_000) == 2
    pace.written(2_000)
    pace.appended(2_000, live=100_000)  # that was the slices
    assert slices(pace, 1_000) == 0
    pace.appended(10**9, live=100_000)
    assert [slices(pace, 10_000) for _ in range(3)] == [6, 4, 0], "a checkpoint is saved up, taken in bounded steps"


def test_a_life_begins_with_a_checkpoint_saved_up() -> None:
    pace = Pace()
    assert pace.take([1]) == [], "how large one is is not known"
    pace.appended(0, live=5_000)
    assert [slices(pace, 1_000) for _ in range(6)] == [1, 1, 1, 1, 1, 0]


def test_what_dies_without_a_frame_of_its_size_may_be_written_over() -> None:
    pace = begun(live=100_000)
    pace.appended(100, live=30_000)
    assert slices(pace, 30_000) == 1, "a whole checkpoint of what is left"
    pace.appended(0, live=40_000)
    pace.appended(0, live=40_000)
    assert slices(pace, 1_000) == 0, "what is born has been appended"


def test_each_slice_is_taken_for_what_it_takes() -> None:
    pace = begun(live=100_000)
    pace.appended(5_000, live=100_000)
    assert pace.take([200, 11_000, 200]) == [200], "in order, as far as it goes"
    assert pace.take([9_000, 700, 100, 100]) == [9_000, 700, 100]


def test_slices_alone_never_go_on_for_ever():
    live = SEGMENT  # a checkpoint fills a segment, so there is always an oldest one that it pins
    pace = Pace()
    pace.appended(3 * SEGMENT, live)
    written = 0
    for _ in range(1_000):
        assert is_pressing(LogState(4 * SEGMENT, SEGMENT, live, live))
        taken = slices(pace, SLICE) * SLICE
        written += taken
        pace.written(taken)
        pace.appended(taken, live)
    assert written <= live


def test_what_is_saved_up_is_written_a_slice_at_a_time() -> None:
    pace = begun(100 * SLICE)
    pace.appended(10 * SLICE, 100 * SLICE)
    pace.appended(0, 100 * SLICE)
    assert slices(pace, SLICE) == 1
    pace.written(SLICE)
    pace.appended(2 * SLICE, 100 * SLICE)  # one of them the slice
    assert slices(pace, SLICE) == 1 + PACE, "and what others append is always kept up with"


def test_slices_that_come_out_smaller_than_thought_owe_nothing() -> None:
    live = 20 * SLICE
    pace = begun(live)
    pace.appended(10 * SLICE, live)
    written = 0
    while count := slices(pace, SLICE):
        written += count
        pace.written(count * SLICE)
        pace.appended(count * SLICE // 4, live)
    assert 3 * 20 < written <= 4 * 20, "what they did not take is there for others"
    pace.appended(SLICE, live)
    assert slices(pace, SLICE) == PACE, "and none of what others append is taken for it"


def test_what_others_append_before_a_slice_is_written_counts() -> None:
    pace = begun(100 * SLICE)
    pace.appended(SLICE, 100 * SLICE)
    assert slices(pace, SLICE) == PACE
    pace.appended(SLICE, 100 * SLICE)  # the slices wait for a disk
    assert slices(pace, SLICE) == PACE
