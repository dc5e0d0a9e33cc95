"""The ledger: an account of the log, kept apart from the product by folding every frame that is appended.

It has two states of each shard. `ahead` is what all frames make that were handed to the log; `durable` is what those
make whose append has returned. A crash throws `ahead` away: the log may hold any of the frames between the two, and
what it does hold shows at recovery. Found there, they are still not durable, for they may lie in a cache; the next
append that returns makes them so.

The fold knows records and nothing of the engine: a dict of ids, and sums. `Causes` is asked of every record whether
something in the world outside called for it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

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
from timerd.engine.shard import Shard
from timerd.engine.timer import DEAD, BodyRef, Payload, Timer
from timerd.ports import Frame


class Violation(Exception):
    """A promise is broken."""


class Version(NamedTuple):
    """One generation of one id, as it was armed."""

    id: str
    generation: int
    fire_at: int
    type: str
    payload: bytes | None


class Entry(NamedTuple):
    """Where a current generation stands."""

    version: Version
    attempts: int = 0
    counted: int = 0
    gap_ms: int = 0
    limit: int = 0
    unknown: bool = False
    dead: bool = False


class Causes(Protocol):
    """What may call for a record. Each method raises Violation when nothing does."""

    def armed(self, new: Version, old: Entry | None) -> None: ...
    def framed(self, entries: Mapping[str, Entry]) -> None: ...
    def cancelled(self, old: Entry) -> None: ...
    def fired(self, old: Entry) -> None: ...
    def rearmed(self, old: Entry, new: Version) -> None: ...
    def dropped(self, old: Entry, reason: str) -> None: ...
    def retried(self, old: Entry, error: str, counted: bool) -> None: ...
    def buried(self, old: Entry, attempted: bool, error: str) -> None: ...
    def revived(self, old: Entry) -> None: ...
    def purged(self, old: Entry) -> None: ...
    def closed(self) -> None: ...
    def low(self) -> None: ...


class Account:
    """One shard, by its records. `ended` and `versions` remember every generation there ever was."""

    def __init__(self, bodies: dict[tuple[int, int], bytes]) -> None:
        self.entries: dict[str, Entry] = {}
        self.last = 0
        self.lsn = 0
        self.epoch = 0
        self.totals: dict[str, Counter[str]] = {}
        self.versions: dict[tuple[str, int], Version] = {}
        self.ended: dict[tuple[str, int], str] = {}
        self._bodies = bodies

    def copy(self) -> "Account":
        """Another with the same contents."""
        other = Account(self._bodies)
        other.entries = dict(self.entries)
        other.last, other.lsn, other.epoch = self.last, self.lsn, self.epoch
        other.totals = {name: Counter(sums) for name, sums in self.totals.items()}
        other.versions = dict(self.versions)
        other.ended = dict(self.ended)
        return other

    def live(self, type: str) -> int:
        """Timers of a type that are not dead."""
        return sum(1 for e in self.entries.values() if e.version.type == type and not e.dead)

    def payload(self, payload: Payload) -> bytes | None:
        """The bytes that a timer's payload stands for."""
        if isinstance(payload, BodyRef):
            data = self._bodies.get((payload.segment, payload.offset))
            if data is None or len(data) != payload.length:
                raise Violation(f"a timer refers to a body that was never placed: {payload}")
            return data
        return payload

    def apply(self, frame: Frame, causes: Causes | None = None) -> None:
        """Fold one frame."""
        self.lsn = frame.lsn
        for record in frame.records:
            self._record(record, causes)
        if causes:
            causes.framed(self.entries)

    def _record(self, record: Record, causes: Causes | None) -> None:
        match record:
            case Armed():
                for timer in record.timers:
                    new = self._version(timer)
                    old = self.entries.get(timer.id)
                    if causes:
                        causes.armed(new, old)
                    if old is not None and old.dead:
                        self._end(old, "purged")
                    elif old is not None:
                        self._end(old, "replaced")
                    self._begin(new, "armed")
            case Cancelled():
                for id in record.ids:
                    old = self._current(id, record)
                    if causes:
                        causes.cancelled(old)
                    self._end(old, "purged" if old.dead else "cancelled")
            case Fired():
                self._fired(record, causes)
            case Retried():
                for id in record.ids:
                    old = self._alive(id, record)
                    if causes:
                        causes.retried(old, record.error, record.counted)
                    self.entries[id] = old._replace(
                        attempts=old.attempts + 1,
                        counted=old.counted + record.counted,
                        gap_ms=record.gap_ms,
                        limit=record.limit,
                        unknown=old.unknown or record.unknown,
                    )
                    self._sums(old.version.type)["retried"] += 1
            case Buried():
                for id in record.ids:
                    old = self._alive(id, record)
                    if causes:
                        causes.buried(old, record.attempted, record.error)
                    self.entries[id] = old._replace(
                        attempts=old.attempts + record.attempted,
                        counted=old.counted + record.attempted,
                        unknown=old.unknown or record.unknown,
                        dead=True,
                    )
                    self._sums(old.version.type)["dead"] += 1
            case Revived():
                for id, generation in record.ids:
                    old = self._dead(id, record)
                    if causes:
                        causes.revived(old)
                    self.ended[id, old.version.generation] = "revived"
                    self._begin(old.version._replace(generation=generation), "revived")
            case Purged():
                for id in record.ids:
                    old = self._dead(id, record)
                    if causes:
                        causes.purged(old)
                    self._end(old, "purged")
            case Relocated():
                for id, generation, place in record.bodies:
                    old = self._current(id, record)
                    if old.version.generation != generation or old.version.payload != self.payload(place):
                        raise Violation(f"a body was relocated to other bytes: {id}")
            case Owned():
                self.epoch = record.epoch
            case Closed():
                if causes:
                    causes.closed()
            case Checkpoint():
                pass  # says what already is

    def _fired(self, record: Fired, causes: Causes | None) -> None:
        for id in record.ids:
            old = self._alive(id, record)
            if causes:
                causes.fired(old)
            self._end(old, "fired")
        for timer in record.rearmed:
            old = self._alive(timer.id, record)
            new = self._version(timer)
            if causes:
                causes.rearmed(old, new)
            self._end(old, "fired")
            self._begin(new, "armed")
        for reason, ids in record.dropped:
            for id in ids:
                old = self._alive(id, record)
                if causes:
                    causes.dropped(old, reason)
                self._end(old, f"dropped {reason}")
        self._sums(record.type)["superseded"] += record.superseded

    def _begin(self, new: Version, count: str) -> None:
        if new.generation <= self.last:
            raise Violation(f"generation {new.generation} of {new.id!r} was given when {self.last} already had been")
        self.last = new.generation
        self.entries[new.id] = Entry(new)
        self.versions[new.id, new.generation] = new
        self._sums(new.type)[count] += 1

    def _end(self, old: Entry, how: str) -> None:
        version = old.version
        self.ended[version.id, version.generation] = how
        del self.entries[version.id]
        self._sums(version.type)[how] += 1

    def _version(self, timer: Timer) -> Version:
        return Version(timer.id, timer.generation, timer.fire_at, timer.type, self.payload(timer.payload))

    def _sums(self, type: str) -> Counter[str]:
        sums = self.totals.get(type)
        if sums is None:
            sums = self.totals[type] = Counter()
        return sums

    def _current(self, id: str, record: Record) -> Entry:
        entry = self.entries.get(id)
        if entry is None:
            raise Violation(f"{type(record).__name__} names {id!r}, which is not there")
        return entry

    def _alive(self, id: str, record: Record) -> Entry:
        entry = self._current(id, record)
        if entry.dead:
            raise Violation(f"{type(record).__name__} names {id!r}, which is dead")
        return entry

    def _dead(self, id: str, record: Record) -> Entry:
        entry = self._current(id, record)
        if not entry.dead:
            raise Violation(f"{type(record).__name__} names {id!r}, which is not dead")
        return entry


class Ledger:
    """All shards of one log."""

    def __init__(self, shards: int) -> None:
        self.bodies: dict[tuple[int, int], bytes] = {}
        """What was placed, by (segment, offset)."""
        self.durable = [Account(self.bodies) for _ in range(shards)]
        self.ahead = [Account(self.bodies) for _ in range(shards)]
        self.lacks_retries = False
        """Some retries came into the log by slices alone."""
        self.undecided: list[Frame] = []
        """Handed to the log, and not known to be durable."""

    def appending(self, frames: Sequence[Frame], causes: Causes) -> None:
        """These are being written. Their records must be copies."""
        for frame in frames:
            self.undecided.append(frame)
            self.ahead[frame.shard].apply(frame, causes)

    def appended(self) -> None:
        """They are durable, and everything before them is."""
        for frame in self.undecided:
            self.durable[frame.shard].apply(frame)
        self.undecided.clear()

    def recovered(self, shards: Sequence[Shard], lsns: dict[int, int]) -> int:
        """Compare what was recovered, up to these lsns; how many frames came back that nobody had been told of."""
        found = []
        self.ahead = [account.copy() for account in self.durable]
        for frame in self.undecided:
            if frame.lsn <= lsns.get(frame.shard, 0):
                found.append(frame)
                self.ahead[frame.shard].apply(frame)
        self.undecided = found
        for shard in shards:
            account = self.ahead[shard.id]
            upto = lsns.get(shard.id, 0)
            if upto < account.lsn:
                raise Violation(f"shard {shard.id}: lsn {account.lsn} was durable, and the log ends at {upto}")
            if upto > account.lsn:
                raise Violation(
                    f"shard {shard.id}: the log has lsn {upto}, and no frame above {account.lsn} was written"
                )
            _compare(account, shard, self.lacks_retries)
        return len(found)


def _compare(account: Account, shard: Shard, lacks_retries: bool) -> None:
    """State after recovery = fold of the log."""
    state = shard.state
    where = f"after recovery of shard {shard.id}"
    for id, entry in list(account.entries.items()):
        timer = state.find(id)
        if timer is None:
            raise Violation(f"lost {where}: {entry.version}")
        failure = timer.failure
        if lacks_retries and failure is not None and failure.attempts > entry.attempts:
            entry = account.entries[id] = entry._replace(
                attempts=failure.attempts,
                counted=failure.counted,
                gap_ms=failure.gap_ms,
                limit=failure.limit,
                unknown=failure.unknown,
            )
        got = Entry(
            Version(timer.id, timer.generation, timer.fire_at, timer.type, account.payload(timer.payload)),
            failure.attempts if failure else 0,
            failure.counted if failure else 0,
            failure.gap_ms if failure and timer.state != DEAD else entry.gap_ms,
            failure.limit if failure and timer.state != DEAD else entry.limit,
            failure.unknown if failure else False,
            timer.state == DEAD,
        )
        if got != entry:
            raise Violation(f"{where}: {got}, expected {entry}")
    if state.timers != len(account.entries):
        raise Violation(f"{where}: {state.timers} timers, expected {len(account.entries)}")
    if state.last != account.last:
        raise Violation(f"{where}: the last generation is {state.last}, expected {account.last}")
    for name, sums in account.totals.items():
        lane = state.lanes.get(name)
        if lacks_retries and lane is not None:
            sums["retried"] = max(sums["retried"], lane.totals.retried)
        _compare_totals(where, name, sums, lane.totals if lane else None)
        if lane and lane.live != account.live(name):
            raise Violation(f"{where}: {lane.live} of {name} live, expected {account.live(name)}")


COUNTED = ("armed", "revived", "fired", "cancelled", "replaced", "dead", "purged", "superseded", "retried")


def _compare_totals(where: str, name: str, sums: Counter[str], totals: Any) -> None:
    """The counts of a type in a shard against the account's."""
    for field in COUNTED:
        got = getattr(totals, field) if totals is not None else 0
        if got != sums[field]:
            raise Violation(f"{where}: {name} has {field} {got}, expected {sums[field]}")
    dropped = {f"dropped {reason}": n for reason, n in (totals.dropped if totals is not None else {}).items() if n}
    expected = {how: n for how, n in sums.items() if how.startswith("dropped") and n}
    if dropped != expected:
        raise Violation(f"{where}: {name} has {dropped}, expected {expected}")
