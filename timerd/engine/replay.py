"""Recovery of one shard: a fold of its frames.

A log whose beginning was trimmed holds, for each slot, a slice somewhere, and before it records that concern the slot
and can't be understood without what was trimmed. So replay skips what concerns a slot until that slot's first slice,
unless the shard's log still begins at its first frame. The totals may be off until the last slot has had its slice,
which replaces them; the log is trimmed only as far as slices allow, so every slot gets one.
"""

from timerd.engine.now import Now
from timerd.engine.record import (
    Armed,
    Buried,
    Cancelled,
    Checkpoint,
    Fired,
    Purged,
    Record,
    Relocated,
    Retried,
    Revived,
)
from timerd.engine.ring import slot_of
from timerd.engine.state import State
from timerd.engine.timer import WAITING, BodyRef


class Replay:
    """Feed it the shard's frames in order, then `finish`."""

    def __init__(self, shard: int, slots: list[int], now: Now) -> None:
        self.state = State(shard, slots, now, filled=False)
        self._slots = set(slots)
        self._missing: set[int] = set()
        self._begun = False

    def feed(self, lsn: int, records: list[Record]) -> None:
        """Apply one frame."""
        if not self._begun:
            self._begun = True
            if lsn > 1:
                self._missing = set(self._slots)
        for record in records:
            if isinstance(record, Checkpoint):
                self.state.closed = False
                self.state.load_slice(record)
                self._missing.difference_update(record.slots)
                for slot in record.slots:
                    self.state.covered.pop(slot)
                    self.state.covered[slot] = lsn
            elif (known := self._known_part(record) if self._missing else record) is not None:
                _forget_place(known)
                self.state.apply(known)
        self.state.lsn = lsn

    def finish(self) -> State | str:
        """The recovered state; or what is wrong with the log."""
        if self._missing:
            return f"shard {self.state.shard}: no checkpoint slice holds slot {min(self._missing)}"
        self.state.fill()
        return self.state

    def live_bodies(self) -> list[BodyRef]:
        """Every body that a timer refers to."""
        return [
            timer.payload
            for run in self.state.runs
            for timer in run.by_id.values()
            if isinstance(timer.payload, BodyRef)
        ]

    def _known(self, ids: list[str]) -> list[str]:
        return [id for id in ids if slot_of(id) not in self._missing]

    def _known_part(self, record: Record) -> Record | None:
        """The record without what concerns slots that have had no slice yet; None if nothing is left."""
        missing = self._missing
        match record:
            case Armed():
                known = [timer for timer in record.timers if slot_of(timer.id) not in missing]
                return Armed(known) if known else None
            case Cancelled():
                return Cancelled(self._known(record.ids))
            case Fired():
                return Fired(
                    record.type,
                    self._known(record.ids),
                    [timer for timer in record.rearmed if slot_of(timer.id) not in missing],
                    [(reason, self._known(ids)) for reason, ids in record.dropped],
                    record.superseded,
                )
            case Retried():
                return Retried(
                    self._known(record.ids), record.gap_ms, record.limit, record.counted, record.unknown, record.error
                )
            case Buried():
                return Buried(self._known(record.ids), record.at, record.attempted, record.unknown, record.error)
            case Revived():
                return Revived([revived for revived in record.ids if slot_of(revived[0]) not in missing])
            case Purged():
                return Purged(self._known(record.ids))
            case Relocated():
                return Relocated([body for body in record.bodies if slot_of(body[0]) not in missing])
            case _:
                return record


def _forget_place(record: Record) -> None:
    """Timers stand in a record as they were when its turn was written, ready or gone already; now they wait."""
    timers = record.timers if isinstance(record, Armed) else record.rearmed if isinstance(record, Fired) else ()
    for timer in timers:
        timer.state = WAITING
