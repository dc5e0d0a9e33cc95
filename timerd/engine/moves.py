"""A shard's durable part in the moves of slots: what it has ceded, what it has adopted, and what is pending there.

Changed by records alone, through `State.apply`, live and in recovery alike. Who writes which record when is in
ceding.py (the old owner) and moving.py (the new one); why, in cluster/PROTOCOL.md.

Invariants:
  1. A slot here is one that the state has, and is ceded or adopted, not both.
  2. What is pending is no timer yet: it is in no dict of the state, and counts for its body segment alone.
  3. What is remembered of a ceded slot is not held any more.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from timerd.engine.loading import add_slots, drop_slots, take_in
from timerd.engine.move_record import (
    ARM,
    CANCEL,
    PULL,
    REVIVE,
    Adopted,
    Ceded,
    Drained,
    Entry,
    Left,
    Moved,
    Pended,
    Pending,
    Resolved,
    SlotMove,
)
from timerd.engine.ring import slot_of
from timerd.engine.timer import DEAD, WAITING, BodyRef, Timer

if TYPE_CHECKING:
    from timerd.engine.state import State

PENDING_BYTES: Final = 120  # what a pending or remembered entry takes in a checkpoint beside its id
SLOT_MOVE_BYTES: Final = 10  # what a slot on the move takes there beside its number


class CededSlot:
    """Given away: only what is still held goes on here."""

    __slots__ = ("remembered", "to", "version")

    def __init__(self, version: int, to: int) -> None:
        self.version = version
        self.to = to
        self.remembered: dict[str, tuple[Entry, bool]] = {}
        """By id, what was let go; and whether it was in flight then."""


class AdoptedSlot:
    """Taken over, and not drained yet."""

    __slots__ = ("pending", "source", "version")

    def __init__(self, version: int, source: int) -> None:
        self.version = version
        self.source = source
        self.pending: dict[str, Pending] = {}


class Moves:
    """What one shard's log says of slots on the move."""

    def __init__(self, state: "State") -> None:
        self.ceded: dict[int, CededSlot] = {}
        self.adopted: dict[int, AdoptedSlot] = {}
        self.entries = 0
        """Pending and remembered ones."""
        self._state = state

    def __bool__(self) -> bool:
        return bool(self.ceded or self.adopted)

    @property
    def bytes(self) -> int:
        """About what a full checkpoint says of moves, without ids and payloads."""
        return self.entries * PENDING_BYTES + (len(self.ceded) + len(self.adopted)) * SLOT_MOVE_BYTES

    def handlers(self) -> dict[type, Callable[[Any], None]]:
        """By record."""
        return {
            Ceded: self._ceded,
            Adopted: self._adopted,
            Moved: self._moved,
            Pended: self._pended,
            Resolved: self._resolved,
            Drained: self._drained,
            Left: self._left,
        }

    def pending(self, id: str) -> Pending | None:
        """What is pending of an id."""
        slot = self.adopted.get(slot_of(id)) if self.adopted else None
        return slot.pending.get(id) if slot else None

    def all_pending(self) -> Iterable[Pending]:
        """Everything that is."""
        return (pending for slot in self.adopted.values() for pending in slot.pending.values())

    def weight(self, slots: Iterable[int]) -> int:
        """How many entries a slice of these slots holds beside its timers."""
        ceded = sum(len(self.ceded[slot].remembered) for slot in slots if slot in self.ceded)
        return ceded + sum(len(self.adopted[slot].pending) for slot in slots if slot in self.adopted)

    # ---- slices

    def of(self, slots: Iterable[int]) -> list[SlotMove]:
        """What a slice of these slots says of moves."""
        said = []
        for slot in slots:
            if (ceded := self.ceded.get(slot)) is not None:
                said.append(SlotMove(slot, True, ceded.version, ceded.to, list(ceded.remembered.values())))
            elif (mine := self.adopted.get(slot)) is not None:
                said.append(SlotMove(slot, False, mine.version, mine.source, [], list(mine.pending.values())))
        return said

    def load(self, slots: Iterable[int], said: Iterable[SlotMove]) -> None:
        """In recovery: replace what there is of these slots by what a slice says."""
        for slot in slots:
            self._forget(slot)
        for move in said:
            if move.ceded:
                ceded = self.ceded[move.slot] = CededSlot(move.version, move.other)
                ceded.remembered = {entry.id: (entry, in_flight) for entry, in_flight in move.remembered}
                self.entries += len(ceded.remembered)
            else:
                self.adopted[move.slot] = AdoptedSlot(move.version, move.other)
                self._hold(move.pending)

    def _forget(self, slot: int) -> None:
        if (ceded := self.ceded.pop(slot, None)) is not None:
            self.entries -= len(ceded.remembered)
        if (adopted := self.adopted.pop(slot, None)) is not None:
            for pending in adopted.pending.values():
                self._count(pending, -1)

    # ---- one method a record

    def _ceded(self, record: Ceded) -> None:
        for slot in record.slots:
            assert self._state.slots[slot] is not None
            assert slot not in self.adopted, "a slot moves again before it was drained"
            self.ceded[slot] = CededSlot(record.version, record.to)

    def _adopted(self, record: Adopted) -> None:
        state = self._state
        add_slots(state, [slot for slot in record.slots if state.slots[slot] is None])
        for slot in record.slots:
            self.adopted[slot] = AdoptedSlot(record.version, record.source)
        state.last = max(state.last, record.last)
        self._mark(record.unclean_at, record.unclean_generation)

    def _moved(self, record: Moved) -> None:
        state = self._state
        for old in state.remove([entry.id for entry, _ in record.entries]):
            lane = state.lane(old.type)
            if old.state != DEAD:
                lane.totals.moved_out += 1
            state.leave(old, lane)
        for entry, in_flight in record.entries:
            self.ceded[slot_of(entry.id)].remembered[entry.id] = (entry, in_flight)
        self.entries += len(record.entries)

    def _pended(self, record: Pended) -> None:
        self._hold(record.entries)
        state = self._state
        state.last = max(state.last, *(p.timer.generation for p in record.entries if p.timer), 0)
        self._mark(record.unclean_at, record.unclean_generation)

    def _resolved(self, record: Resolved) -> None:
        for id in record.changed:
            self._count(self.adopted[slot_of(id)].pending.pop(id), -1)
        moved = [self.adopted[slot_of(id)].pending.pop(id) for id in record.moved]
        for pending in moved:
            self._count(pending, -1)
            self._tell_totals(pending)
        take_in(self._state, [pending.timer for pending in moved if pending.timer is not None])

    def _drained(self, record: Drained) -> None:
        for slot in record.slots:
            assert not self.adopted.pop(slot).pending, "drained with something pending"
        self._state.last = max(self._state.last, record.last)

    def _left(self, record: Left) -> None:
        for slot in record.slots:
            self._forget(slot)
        drop_slots(self._state, record.slots)

    # ---- the steps that they are made of

    def _tell_totals(self, pending: Pending) -> None:
        totals = self._state.lane(pending.type).totals
        if not pending.seen.dead:
            totals.moved_in += 1
        if pending.kind == ARM:
            assert pending.timer is not None
            self._state.lane(pending.timer.type).totals.armed += 1
            if pending.seen.dead:
                totals.purged += 1
            else:
                totals.replaced += 1
        elif pending.kind == REVIVE:
            totals.revived += 1
        elif pending.kind == CANCEL:
            if pending.seen.dead:
                totals.purged += 1
            else:
                totals.cancelled += 1
        else:
            assert pending.kind == PULL

    def _hold(self, entries: Iterable[Pending]) -> None:
        for pending in entries:
            slot = self.adopted[slot_of(pending.id)]
            assert pending.id not in slot.pending, "one operation on an id at a time"
            slot.pending[pending.id] = pending if self._state.filled else self._recovered(pending)
            self._count(pending, 1)

    def _recovered(self, pending: Pending) -> Pending:
        """As it is to go on in this life: a gap counts anew, as for every other timer."""
        timer = pending.timer
        if timer is None or timer.failure is None:
            return pending
        failure = replace(timer.failure, since=self._state.now.boot_ms)
        return replace(pending, timer=replace(timer, failure=failure))

    def _count(self, pending: Pending, sign: int) -> None:
        self.entries += sign
        if pending.timer is not None:
            self._state.count_payload(pending.timer.payload, sign)

    def _mark(self, unclean_at: int, unclean_generation: int) -> None:
        state = self._state
        state.unclean_at = max(state.unclean_at, unclean_at)
        state.unclean_generation = max(state.unclean_generation, unclean_generation)

    def relocate(self, id: str, generation: int, place: BodyRef) -> None:
        """The body of what is pending was copied forward. What was seen stays: the old owner may hold it still."""
        slot = self.adopted[slot_of(id)]
        pending = slot.pending[id]
        assert pending.timer is not None
        assert pending.timer.generation == generation
        self._count(pending, -1)
        slot.pending[id] = replace(pending, timer=replace(pending.timer, payload=place))
        self._count(slot.pending[id], 1)


def as_pulled(timer: Timer) -> Timer:
    """A copy of what the old owner showed, as it is to live with the new one."""
    return replace(timer, state=DEAD if timer.state == DEAD else WAITING)
