"""A shard's state, and `apply`: the only place where it changes.

`apply(record)` does the same live, in recovery and in tests: the log is the truth, everything else here is a cache of
it. It reads no clock and no types: whatever depended on them was decided before and stands in the record. `now` (set
once a turn) only places retries on the boot clock, which no log could do.

Invariants:
  1. An id is in the dict of its own slot, at most once; what is in a dict is not GONE.
  2. `last` is at least every generation ever given here, and only grows.
  3. For every type: armed + revived = fired + cancelled + replaced + dead + dropped + live.
  4. An id is in `blocked` exactly while a delivery of a generation is open that is no longer current.
  5. Between records, a live timer is in exactly one queue of its type's lane, or in flight, or in `held`.

While a log is replayed, 5 waits for `loading.fill`: most timers of a log are long gone, and the queues would be full of
them.
"""

from collections.abc import Callable
from typing import Any, Final

from timerd.engine.lane import Lane
from timerd.engine.loading import Run, add_slots, by_type
from timerd.engine.moves import Moves
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
from timerd.engine.ring import SLOTS, slot_of, slots_of
from timerd.engine.timer import (
    DEAD,
    GONE,
    HELD,
    IN_FLIGHT,
    URGENT,
    BodyRef,
    Failure,
    Payload,
    Timer,
)

TIMER_BYTES: Final = 48  # what a timer takes in a checkpoint beside its id, type and payload
COMPLETION_BYTES: Final = 16  # what ending a timer takes in the log beside its id
MOVING_FACTOR: Final = 6  # times that while slots move: it ends in two logs, in three records
BODY_REF_BYTES: Final = 40  # what the place of a body takes in a checkpoint

NO_FAILURE: Final = Failure(0, 0, 0, 0, "")


class State:
    """The timers of one shard's slots, their queues, and the totals."""

    def __init__(self, shard: int, slots: list[int], now: Now, filled: bool = True) -> None:
        """Empty. `filled`: False where a log is about to be replayed; then call `loading.fill` at its end."""
        self.shard = shard
        self.filled = filled
        self.now = now
        self.runs: list[Run] = []
        self.run_of: dict[int, Run] = {}
        self.slots: list[dict[str, Timer] | None] = [None] * SLOTS
        """By slot, the dict of its run; None: the slot is another shard's."""
        self.covered: dict[int, int] = {}  # slot -> lsn of its newest slice, oldest first
        add_slots(self, slots)
        self.lanes: dict[str, Lane] = {}
        self.last = 0
        self.lsn = 0  # of the newest frame
        self.epoch = 0
        self.unclean_at = 0  # Unix ms of the last take-up after an unclean end: what was due by then may be a repeat
        self.unclean_generation = 0
        self.closed = True  # the newest record is `Closed`, or there is none
        self.held: dict[str, Timer] = {}
        self.blocked: set[str] = set()
        self.id_bytes = 0
        self.payload_bytes = 0  # inline ones
        self.timers = 0  # dead ones included
        self.body_bytes: dict[int, int] = {}  # body segment -> live bytes
        self.live_body_bytes = 0  # of all of them
        self.sliced = 0  # lsn of the newest slice, of whatever slots
        self.moves = Moves(self)
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
            **self.moves.handlers(),
        }

    def apply(self, record: Record, id_slots: list[int] | None = None) -> None:
        """Let the record be so. `id_slots`: the slots of an `Armed`'s timers, where they have been worked out."""
        self.closed = False
        if id_slots is not None:
            assert isinstance(record, Armed)
            self._armed(record, id_slots)
        else:
            self._apply[type(record)](record)

    def find(self, id: str) -> Timer | None:
        """The current timer of an id of this shard, a dead one included."""
        by_id = self.slots[slot_of(id)]
        assert by_id is not None, "an id of another shard"
        return by_id.get(id)

    def bearer(self, id: str) -> Timer | None:
        """The timer, or what is pending of the id; None also where the id is not this shard's."""
        by_id = self.slots[slot_of(id)]
        if by_id is None or (timer := by_id.get(id)) is not None:
            return None if by_id is None else timer
        pending = self.moves.pending(id)
        return pending.timer if pending else None

    def lane(self, type: str) -> Lane:
        """The lane of a type, made at its first mention."""
        lane = self.lanes.get(type)
        if lane is None:
            lane = self.lanes[type] = Lane(type, self.now, self.filled)
        return lane

    @property
    def live_bytes(self) -> int:
        """About what a full checkpoint takes."""
        return self.timers * TIMER_BYTES + self.id_bytes + self.payload_bytes + self.moves.bytes

    @property
    def completion_bytes(self) -> int:
        """What ending every timer may take in the log."""
        return self.ending_bytes * (MOVING_FACTOR if self.moves else 1)

    @property
    def ending_bytes(self) -> int:
        """The same, where no slot moves."""
        return (self.timers + self.moves.entries) * COMPLETION_BYTES + self.id_bytes

    # ---- one method a record

    def _armed(self, record: Armed, id_slots: list[int] | None = None) -> None:
        timers = record.timers
        for lane, count in self.enter(timers, id_slots):
            lane.totals.armed += count
        self.last = max(self.last, timers[-1].generation)

    def _cancelled(self, record: Cancelled) -> None:
        for old in self.remove(record.ids):
            lane = self.lane(old.type)
            if old.state == DEAD:
                lane.totals.purged += 1
            else:
                lane.totals.cancelled += 1
            self.leave(old, lane)

    def _fired(self, record: Fired) -> None:
        lane = self.lane(record.type)
        totals = lane.totals
        self._end(record.ids, lane)
        totals.fired += len(record.ids)
        if record.rearmed:
            self._end([timer.id for timer in record.rearmed], lane)
            self.enter(record.rearmed)
            totals.fired += len(record.rearmed)
            totals.armed += len(record.rearmed)
            self.last = max(self.last, record.rearmed[-1].generation)
        for reason, ids in record.dropped:
            self._end(ids, lane)
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
            lane.end([timer])
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
            lane.dead[id] = timer
            lane.totals.dead += 1

    def _revived(self, record: Revived) -> None:
        revived: list[Timer] = []
        for id, generation in record.ids:
            old = self.find(id)
            assert old is not None
            assert old.state == DEAD
            born_at = old.created_at or old.armed_at
            revived.append(Timer(old.fire_at, generation, id, old.type, old.payload, born_at))
            self.lane(old.type).totals.revived += 1
        if revived:
            for old in self.remove([timer.id for timer in revived]):
                self.leave(old, self.lane(old.type))
            self.enter(revived)
            self.last = max(self.last, revived[-1].generation)

    def _purged(self, record: Purged) -> None:
        for old in self.remove(record.ids):
            assert old.state == DEAD
            lane = self.lane(old.type)
            lane.totals.purged += 1
            self.leave(old, lane)

    def _relocated(self, record: Relocated) -> None:
        for id, generation, place in record.bodies:
            timer = self.find(id)
            if timer is None:
                self.moves.relocate(id, generation, place)
                continue
            assert timer.generation == generation
            self.count_payload(timer.payload, -1)
            timer.payload = place
            self.count_payload(place, 1)

    def _checkpoint(self, record: Checkpoint) -> None:
        """In recovery (see replay.py) this fills the slots; live it says what already is, and changes nothing."""

    def _owned(self, record: Owned) -> None:
        self.epoch = record.epoch
        if not record.clean:
            # The wall clock may have gone back between two of them, and since what was delivered last.
            self.unclean_at = max(self.unclean_at, record.at, self.last // 1000)
            self.unclean_generation = self.last

    def _closed(self, record: Closed) -> None:
        self.closed = True

    # ---- the steps that records are made of

    def enter(self, timers: list[Timer], id_slots: list[int] | None = None) -> list[tuple[Lane, int]]:
        """Live timers come, WAITING or URGENT; what had their ids is displaced. Says how many came into which lane."""
        self.place(timers, id_slots)
        self.count(timers, 1)
        entered = []
        for type, group in by_type(timers):
            lane = self.lane(type)
            lane.enter(group)
            entered.append((lane, len(group)))
        return entered

    def place(self, timers: list[Timer], id_slots: list[int] | None = None) -> None:
        slots = self.slots
        displaced: list[Timer] = []
        for timer, slot in zip(timers, id_slots or slots_of([timer.id for timer in timers]), strict=True):
            by_id = slots[slot]
            id = timer.id
            if id in by_id:  # type: ignore[operator]  # an id of another shard: the caller's fault
                displaced.append(by_id[id])  # type: ignore[index]
            by_id[id] = timer  # type: ignore[index]
        if displaced:
            self._displace(displaced)

    def _displace(self, olds: list[Timer]) -> None:
        """New generations have taken the places of these."""
        for type, group in by_type(olds):
            lane = self.lane(type)
            waiting = [old for old in group if old.state <= URGENT]
            others = [old for old in group if old.state > URGENT] if len(waiting) < len(group) else []
            lane.totals.replaced += len(waiting)
            lane.end(waiting)
            self.count(waiting, -1)
            for old in waiting:
                old.payload = None  # a stale entry of a queue should hold little
                old.state = GONE
            for old in others:
                if old.state == DEAD:
                    lane.totals.purged += 1
                else:
                    lane.totals.replaced += 1
                self.leave(old, lane)

    def leave(self, old: Timer, lane: Lane) -> None:
        """Not current any more, and not because its delivery ended: if one is open, its id is blocked until then."""
        self.count([old], -1)
        if old.state == DEAD:
            del lane.dead[old.id]
        elif old.state == IN_FLIGHT:
            self.blocked.add(old.id)  # and the delivery under way may still need its payload
            lane.end([old])
            old.state = GONE
            return
        else:
            if old.state == HELD:
                del self.held[old.id]
            lane.end([old])
        old.payload = None  # a stale entry of a queue should hold little
        old.state = GONE

    def _end(self, ids: list[str], lane: Lane) -> None:
        """Live timers end with their delivery."""
        ended = self.remove(ids)
        lane.end(ended)
        self.count(ended, -1)
        for old in ended:
            old.state = GONE

    def remove(self, ids: list[str]) -> list[Timer]:
        """Take these out of their dicts."""
        slots = self.slots
        by_ids = [slots[slot] for slot in slots_of(ids)]
        return list(map(dict.pop, by_ids, ids))  # type: ignore[arg-type]  # as in arming: the misses overlap

    def count(self, timers: list[Timer], sign: int) -> None:
        self.timers += sign * len(timers)
        self.id_bytes += sign * len("".join([timer.id for timer in timers]).encode())
        for payload in [timer.payload for timer in timers if timer.payload is not None]:
            self.count_payload(payload, sign)

    def count_payload(self, payload: Payload, sign: int) -> None:
        """Something here carries it from now on, or no more."""
        if isinstance(payload, BodyRef):
            self.payload_bytes += sign * BODY_REF_BYTES
            self.live_body_bytes += sign * payload.length
            left = self.body_bytes.get(payload.segment, 0) + sign * payload.length
            if left:
                self.body_bytes[payload.segment] = left
            else:
                self.body_bytes.pop(payload.segment, None)
        elif payload is not None:
            self.payload_bytes += sign * len(payload)
