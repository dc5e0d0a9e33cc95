"""A shard's state, and `apply`: the only place where it changes.

`apply(record)` does the same live, in recovery and in tests: the log is the truth, everything else here is a cache of
it. It reads no clock and no types: whatever depended on them was decided before and stands in the record. `now` (set
once a turn) only places retries on the boot clock, which no log could do.

Invariants:
  1. An id is in the dict of its own slot, at most once; what is in a dict is not GONE.
  2. `last` is at least every generation ever given here, and only grows.
  3. For every type: armed + revived = fired + cancelled + replaced + dead + dropped + live.
  4. An id is in `blocked` exactly while a delivery of a generation is open that is no longer current.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from timerd.engine.lane import Lane
from timerd.engine.now import Now
from timerd.engine.record import (
    Armed,
    Buried,
    Cancelled,
    Checkpoint,
    Closed,
    Fired,
    Owned,
    Purged,
    Record,
    Relocated,
    Retried,
    Revived,
)
from timerd.engine.ring import SLOTS, slot_of
from timerd.engine.timer import (
    DEAD,
    GONE,
    HELD,
    IN_FLIGHT,
    URGENT,
    WAITING,
    BodyRef,
    Failure,
    Timer,
)

TIMER_BYTES: Final = 48  # what a timer takes in a checkpoint beside its id, type and payload
COMPLETION_BYTES: Final = 16  # what ending a timer takes in the log beside its id

NO_FAILURE: Final = Failure(0, 0, 0, 0, "")


class State:
    """The timers of one shard's slots, their queues, and the totals."""

    def __init__(self, shard: int, slots: list[int], now: Now) -> None:
        self.shard = shard
        self.now = now
        self.slots: list[dict[str, Timer] | None] = [None] * SLOTS
        for slot in slots:
            self.slots[slot] = {}
        self.lanes: dict[str, Lane] = {}
        self.last = 0
        self.lsn = 0  # of the newest frame
        self.epoch = 0
        self.unclean_at = 0  # Unix ms of the last take-up after an unclean end: what was due by then may be a repeat
        self.unclean_generation = 0
        self.closed = True  # the newest record is `Closed`, or there is none
        self.covered: dict[int, int] = dict.fromkeys(slots, 0)  # slot -> lsn of its newest slice, oldest first
        self.held: dict[str, Timer] = {}
        self.blocked: set[str] = set()
        self.id_bytes = 0
        self.payload_bytes = 0  # inline ones
        self.timers = 0  # dead ones included
        self.body_bytes: dict[int, int] = {}  # body segment -> live bytes
        self._apply: dict[type, Callable[[Any], None]] = {
            Armed: self._armed,
            Cancelled: self._cancelled,
            Fired: self._fired,
            Retried: self._retried,
            Buried: self._buried,
            Revived: self._revived,
            Purged: self._purged,
            Relocated: self._relocated,
            Checkpoint: self._checkpoint,
            Owned: self._owned,
            Closed: self._closed,
        }

    def apply(self, record: Record) -> None:
        """Let the record be so."""
        self.closed = False
        self._apply[type(record)](record)

    def find(self, id: str) -> Timer | None:
        """The current timer of an id of this shard, a dead one included."""
        by_id = self.slots[slot_of(id)]
        assert by_id is not None, "an id of another shard"
        return by_id.get(id)

    def lane(self, type: str) -> Lane:
        """The lane of a type, made at its first mention."""
        lane = self.lanes.get(type)
        if lane is None:
            lane = self.lanes[type] = Lane(type, self.now)
        return lane

    @property
    def live_bytes(self) -> int:
        """About what a full checkpoint takes."""
        return self.timers * TIMER_BYTES + self.id_bytes + self.payload_bytes

    @property
    def completion_bytes(self) -> int:
        """What ending every timer may take in the log."""
        return self.timers * COMPLETION_BYTES + self.id_bytes

    # ---- one method a record

    def _armed(self, record: Armed) -> None:
        slots = self.slots
        lane: Lane | None = None
        for timer in record.timers:
            if lane is None or lane.name != timer.type:
                lane = self.lane(timer.type)
            by_id = slots[slot_of(timer.id)]
            assert by_id is not None
            old = by_id.get(timer.id)
            if old is not None:
                self._displace(old)
            by_id[timer.id] = timer
            self._enter(timer, lane)
            lane.totals.armed += 1
        self.last = max(self.last, record.timers[-1].generation)

    def _cancelled(self, record: Cancelled) -> None:
        for id in record.ids:
            old = self._remove(id)
            lane = self.lane(old.type)
            if old.state == DEAD:
                del lane.dead[id]
                lane.totals.purged += 1
            else:
                lane.live -= 1
                lane.totals.cancelled += 1
            self._leave(old, lane)

    def _fired(self, record: Fired) -> None:
        lane = self.lane(record.type)
        totals = lane.totals
        for id in record.ids:
            self._end(id, lane)
        totals.fired += len(record.ids)
        for timer in record.rearmed:
            self._end(timer.id, lane)
            by_id = self.slots[slot_of(timer.id)]
            assert by_id is not None
            by_id[timer.id] = timer
            self._enter(timer, lane)
        totals.fired += len(record.rearmed)
        totals.armed += len(record.rearmed)
        if record.rearmed:
            self.last = max(self.last, record.rearmed[-1].generation)
        for reason, ids in record.dropped:
            for id in ids:
                self._end(id, lane)
            totals.dropped[reason] = totals.dropped.get(reason, 0) + len(ids)
        totals.superseded += record.superseded

    def _retried(self, record: Retried) -> None:
        for id in record.ids:
            timer = self.find(id)
            assert timer is not None
            assert timer.state != DEAD
            lane = self.lane(timer.type)
            lane.leave(timer)
            before = timer.failure or NO_FAILURE
            failure = Failure(
                before.attempts + 1,
                before.counted + record.counted,
                record.gap_ms,
                record.limit,
                record.error,
                before.unknown or record.unknown,
                since=self.now.boot_ms,
            )
            lane.enter_retry(timer, failure)
            lane.totals.retried += 1

    def _buried(self, record: Buried) -> None:
        for id in record.ids:
            timer = self.find(id)
            assert timer is not None
            assert timer.state != DEAD
            lane = self.lane(timer.type)
            lane.leave(timer)
            before = timer.failure or NO_FAILURE
            timer.failure = Failure(
                before.attempts + record.attempted,
                before.counted + record.attempted,
                0,
                0,
                record.error,
                before.unknown or record.unknown,
                record.at,
            )
            timer.state = DEAD
            lane.live -= 1
            lane.dead[id] = timer
            lane.totals.dead += 1

    def _revived(self, record: Revived) -> None:
        for id, generation in record.ids:
            old = self._remove(id)
            assert old.state == DEAD
            lane = self.lane(old.type)
            del lane.dead[id]
            new = Timer(
                old.fire_at,
                generation,
                id,
                old.type,
                old.payload,
                old.created_at or old.armed_at,
            )
            self._leave(old, lane)
            by_id = self.slots[slot_of(id)]
            assert by_id is not None
            by_id[id] = new
            self._enter(new, lane)
            lane.totals.revived += 1
            self.last = max(self.last, generation)

    def _purged(self, record: Purged) -> None:
        for id in record.ids:
            old = self._remove(id)
            assert old.state == DEAD
            lane = self.lane(old.type)
            del lane.dead[id]
            lane.totals.purged += 1
            self._leave(old, lane)

    def _relocated(self, record: Relocated) -> None:
        for id, generation, place in record.bodies:
            timer = self.find(id)
            assert timer is not None
            assert timer.generation == generation
            self._count_payload(timer, -1)
            timer.payload = place
            self._count_payload(timer, 1)

    def _checkpoint(self, record: Checkpoint) -> None:
        """In recovery (see replay.py) this fills the slots; live it says what already is, and changes nothing."""

    def _owned(self, record: Owned) -> None:
        self.epoch = record.epoch
        if not record.clean:
            self.unclean_at = record.at
            self.unclean_generation = self.last

    def _closed(self, record: Closed) -> None:
        self.closed = True

    # ---- recovery: what a slice holds

    def load_slice(self, record: Checkpoint) -> None:
        """Replace everything about these slots, and the shard's own state, by what the slice says."""
        for slot in record.slots:
            by_id = self.slots[slot]
            assert by_id is not None, "a slot of another shard"
            for old in by_id.values():
                lane = self.lane(old.type)
                if old.state == DEAD:
                    del lane.dead[old.id]
                else:
                    lane.live -= 1
                self._leave(old, lane)
            by_id.clear()
        for timer in sorted(record.timers, key=lambda t: t.failure.died_at if t.failure else 0):
            by_id = self.slots[slot_of(timer.id)]
            assert by_id is not None
            by_id[timer.id] = timer
            lane = self.lane(timer.type)
            if timer.state == DEAD:
                lane.dead[timer.id] = timer
                self._count(timer, 1)
                continue
            failure = timer.failure
            timer.state = WAITING
            self._enter(timer, lane)
            if failure is not None:
                lane.leave(timer)
                lane.enter_retry(timer, msgspec.structs.replace(failure, since=self.now.boot_ms))
        self.last = record.last
        self.epoch = record.epoch
        self.unclean_at = record.unclean_at
        self.unclean_generation = record.unclean_generation
        for lane in self.lanes.values():
            lane.totals = type(lane.totals)()
        for name, totals in record.totals.items():
            self.lane(name).totals = totals

    # ---- the steps that records are made of

    def _enter(self, timer: Timer, lane: Lane) -> None:
        if timer.state != URGENT:
            timer.state = WAITING
        self.timers += 1
        self.id_bytes += len(timer.id) if timer.id.isascii() else len(timer.id.encode())
        if timer.payload is not None:
            self._count_payload(timer, 1)
        lane.enter(timer)

    def _displace(self, old: Timer) -> None:
        """A new generation takes the place of this one."""
        lane = self.lane(old.type)
        if old.state == DEAD:
            del lane.dead[old.id]
            lane.totals.purged += 1
        else:
            lane.live -= 1
            lane.totals.replaced += 1
        self._leave(old, lane)

    def _leave(self, old: Timer, lane: Lane) -> None:
        """Not current any more, and not because its delivery ended: if one is open, its id is blocked until then."""
        if old.state == IN_FLIGHT:
            self.blocked.add(old.id)
        elif old.state == HELD:
            del self.held[old.id]
        lane.leave(old)
        self._count(old, -1)
        if old.state != IN_FLIGHT:
            old.payload = None  # stale entries of queues should hold little
        old.state = GONE

    def _end(self, id: str, lane: Lane) -> None:
        """A live timer ends with its delivery."""
        old = self._remove(id)
        lane.live -= 1
        lane.leave(old)
        self._count(old, -1)
        old.state = GONE

    def _remove(self, id: str) -> Timer:
        by_id = self.slots[slot_of(id)]
        assert by_id is not None
        return by_id.pop(id)

    def _count(self, timer: Timer, sign: int) -> None:
        self.timers += sign
        self.id_bytes += sign * (len(timer.id) if timer.id.isascii() else len(timer.id.encode()))
        if timer.payload is not None:
            self._count_payload(timer, sign)

    def _count_payload(self, timer: Timer, sign: int) -> None:
        payload = timer.payload
        if isinstance(payload, BodyRef):
            self.payload_bytes += sign * 40
            left = self.body_bytes.get(payload.segment, 0) + sign * payload.length
            if left:
                self.body_bytes[payload.segment] = left
            else:
                self.body_bytes.pop(payload.segment, None)
        elif payload is not None:
            self.payload_bytes += sign * len(payload)
