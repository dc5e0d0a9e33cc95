"""Recovery of one shard: a fold of its frames.

A log whose beginning was trimmed holds, for each slot, a slice somewhere, and before it records that concern the slot
and can't be understood without what was trimmed. So replay skips what concerns a slot until that slot's first slice,
unless the shard's log still begins at its first frame. The totals may be off until the last slot has had its slice,
which replaces them; the log is trimmed only as far as slices allow, so every slot gets one.

Where slots have moved, a log tells of slots that come (`Adopted`, with a slice) and go (`Left`, with a slice of no
slots, which has the totals). So all slots are admitted while it is read, and which of them the shard has is decided at
the end: those that the table says it has, and of those that the table moves, what the log says.
"""

from collections.abc import Iterable

from timerd.engine.loading import add_slots, drop_slots, fill, load_slice
from timerd.engine.move_record import Adopted, Ceded, Drained, Left, Moved, Pended, Resolved
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
from timerd.engine.ring import SLOTS, RingTable, slot_of
from timerd.engine.state import State
from timerd.engine.timer import WAITING, BodyRef


class Replay:
    """Feed it the shard's frames in order, then `finish`."""

    def __init__(self, shard: int, slots: list[int], now: Now, table: RingTable | None = None) -> None:
        """`slots`: the shard's by the table. `table`: to be given where a table has followed the first."""
        self.state = State(shard, slots, now, filled=False)
        self._slots = set(slots)
        self._missing: set[int] = set()
        self._begun = False
        self._table = table
        self._came: set[int] = set()  # adopted, or in a slice, and not left since
        self._left: set[int] = set()
        if table is not None:
            add_slots(self.state, [slot for slot in range(SLOTS) if slot not in self._slots])

    def feed(self, lsn: int, records: list[Record]) -> None:
        """Apply one frame."""
        if not self._begun:
            self._begun = True
            if lsn > 1:
                self._missing = set(self.state.covered)
        state = self.state
        for record in records:
            if isinstance(record, Checkpoint):
                state.closed = False
                load_slice(state, record)
                state.sliced = lsn
                for slot in record.slots:
                    state.covered.pop(slot)
                    state.covered[slot] = lsn
                self._know(record.slots)
            elif isinstance(record, Adopted):
                self._know(record.slots)
                state.apply(record)
            elif isinstance(record, Left):
                self._leave(record.slots)
                state.closed = False
            elif (known := self._known_part(record) if self._missing else record) is not None:
                _forget_place(known)
                state.apply(known)
        state.lsn = lsn

    def finish(self) -> State | str:
        """The recovered state; or what is wrong with the log."""
        mine = self._slots if self._table is None else self._had(self._table)
        if missing := self._missing & mine:
            return f"shard {self.state.shard}: no checkpoint slice holds slot {min(missing)}"
        if self._table is not None:
            try:
                drop_slots(self.state, [slot for slot in range(SLOTS) if slot not in mine])
            except AssertionError:
                return f"shard {self.state.shard}: it holds timers of slots that the ring table does not give it"
        fill(self.state)
        return self.state

    def _had(self, table: RingTable) -> set[int]:
        """The slots of this shard, by table and log."""
        shard = self.state.shard
        mine = set(self._slots)
        for slot in range(SLOTS):
            source = table.source_of(slot)
            if source == shard:  # it goes from here
                if slot not in self._left and slot not in self._missing:
                    mine.add(slot)
            elif source is not None and table.shards[slot] == shard and slot not in self._came:
                mine.discard(slot)  # it comes here, and has not yet
        return mine

    def _know(self, slots: Iterable[int]) -> None:
        """From here on the log tells everything about these."""
        self._missing.difference_update(slots)
        if self._table is not None:
            self._came.update(slots)
            self._left.difference_update(slots)

    def _leave(self, slots: list[int]) -> None:
        """The shard has these no more; what is said of them later begins anew."""
        assert self._table is not None, "slots have moved, and the table knows of none"
        self._missing.difference_update(slots)
        self._came.difference_update(slots)
        self._left.update(slots)
        self.state.moves.load(slots, ())

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
            case Ceded():
                return Ceded(record.version, record.to, [s for s in record.slots if s not in missing], record.last)
            case Drained():
                return Drained(record.version, [s for s in record.slots if s not in missing], record.last)
            case Moved():
                return Moved(record.version, [e for e in record.entries if slot_of(e[0].id) not in missing])
            case Pended():
                known_part = [p for p in record.entries if slot_of(p.id) not in missing]
                return Pended(record.version, known_part, record.unclean_at, record.unclean_generation)
            case Resolved():
                return Resolved(self._known(record.moved), self._known(record.changed))
            case _:
                return record


def _forget_place(record: Record) -> None:
    """Timers stand in a record as they were when its turn was written, ready or gone already; now they wait."""
    timers = record.timers if isinstance(record, Armed) else record.rearmed if isinstance(record, Fired) else ()
    for timer in timers:
        timer.state = WAITING
