"""A checkpoint slice: the live state of some slots, and the shard's own, as one record."""

from collections.abc import Iterable

from msgspec.structs import replace

from timerd.engine.draft import Draft
from timerd.engine.record import Checkpoint
from timerd.engine.timer import Timer


def write_slice(draft: Draft, slots: Iterable[int]) -> None:
    """Write a slice of these slots, which are whole runs, or have nothing in them, or are none at all."""
    state = draft.state
    chosen = dict.fromkeys(slots)
    timers: list[Timer] = []
    for run in {state.run_of[slot].slots: state.run_of[slot] for slot in chosen}.values():
        timers += run.by_id.values()
    lsn = state.lsn + 1  # one number for all: each would be an object, and they live for long
    for slot in chosen:
        del state.covered[slot]
        state.covered[slot] = lsn
    state.sliced = lsn
    totals = {name: replace(lane.totals, dropped=dict(lane.totals.dropped)) for name, lane in state.lanes.items()}
    moves = state.moves.of(chosen) if state.moves else []
    marks = (state.unclean_at, state.unclean_generation)
    draft.write(Checkpoint(list(chosen), timers, state.last, state.epoch, *marks, totals, moves))
