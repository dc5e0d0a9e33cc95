"""Accounts: one shard each, by its records alone, and what lies between two of them. The nouns of the ledger.

The fold knows records and nothing of the engine: a dict of ids, and sums. `Causes` is asked of every record whether
something in the world outside called for it.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from timerd.engine.move_record import (
    ARM,
    CANCEL,
    PULL,
    REVIVE,
    Adopted,
    Ceded,
    Drained,
    Left,
    Moved,
    Pended,
    Pending,
    Resolved,
)
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
from timerd.engine.timer import BodyRef, Payload, Timer
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
    def taken(self, old: Entry) -> None: ...
    def closed(self) -> None: ...
    def low(self) -> None: ...


class Between(dict[str, Entry]):
    """What one shard has let go of, and the other has not entered yet; by id. And the accounts of the same log."""

    def __init__(self, *of: Mapping[str, Entry]) -> None:
        super().__init__(*of)
        self.accounts: list[Account] = []

    def find(self, id: str) -> Entry | None:
        """The entry of an id, wherever it is."""
        held = [account.entries[id] for account in self.accounts if id in account.entries]
        if len(held) + (id in self) > 1:
            raise Violation(f"{id!r} lives twice: {held}, {self.get(id)}")
        return held[0] if held else self.get(id)


class Account:
    """One shard, by its records. `ended` and `versions` remember every generation there ever was."""

    def __init__(self, bodies: dict[tuple[int, int], bytes], between: Between) -> None:
        self.between = between
        between.accounts.append(self)
        self.pending: dict[str, Pending] = {}
        self.entries: dict[str, Entry] = {}
        self.last = 0
        self.lsn = 0
        self.epoch = 0
        self.totals: dict[str, Counter[str]] = {}
        self.versions: dict[tuple[str, int], Version] = {}
        self.ended: dict[tuple[str, int], str] = {}
        self._bodies = bodies

    def copy(self, between: Between) -> "Account":
        """Another with the same contents."""
        other = Account(self._bodies, between)
        other.pending = dict(self.pending)
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
                    intended = self.pending.get(id)
                    if intended is not None and intended.timer is not None:  # it has a body here before it lives here
                        version = self._version(intended.timer)
                    else:
                        version = self._current(id, record).version
                    if version.generation != generation or version.payload != self.payload(place):
                        raise Violation(f"a body was relocated to other bytes: {id}")
            case Owned():
                self.epoch = record.epoch
            case Adopted() | Drained():
                self.last = max(self.last, record.last)
            case Moved():
                for entry, _ in record.entries:
                    old = self._current(entry.id, record)
                    if old.version.generation != entry.seen.generation:
                        raise Violation(f"let go of {old}, and {entry} was asked for")
                    self.between[entry.id] = self.entries.pop(entry.id)
            case Pended():
                for pending in record.entries:
                    self._pended(pending, causes)
            case Resolved():
                for id in record.changed:
                    del self.pending[id]
                for id in record.moved:
                    self._arrived(self.pending.pop(id))
            case Ceded() | Left():
                pass
            case Closed():
                if causes:
                    causes.closed()
            case Checkpoint():
                pass  # says what already is

    def _pended(self, pending: Pending, causes: Causes | None) -> None:
        """What is intended must have a cause by now: when it becomes so nobody may be there any more who asked."""
        self.pending[pending.id] = pending
        new = self._version(pending.timer) if pending.timer else None
        old = self.between.find(pending.id)
        if new is not None:
            self.last = max(self.last, new.generation)
        if causes is None or old is None or old.version.generation != pending.seen.generation:
            return  # it will not become so
        if pending.kind == ARM:
            assert new is not None
            causes.armed(new, old)
        elif pending.kind == REVIVE:
            causes.revived(old)
        elif pending.kind == CANCEL:
            causes.taken(old)

    def _arrived(self, pending: Pending) -> None:
        """The other shard has let go."""
        old = self.between.pop(pending.id, None)
        if old is None or old.version.generation != pending.seen.generation or old.dead != pending.seen.dead:
            raise Violation(f"resolved as moved, and {old} was let go: {pending}")
        version = old.version
        new = self._version(pending.timer) if pending.timer else None
        if pending.kind == PULL:
            if new != version:
                raise Violation(f"let go as {version}, and arrived as {new}")
            failure = pending.timer.failure if pending.timer else None
            if failure is not None and failure.attempts > old.attempts:  # the other's log did not say so
                old = old._replace(
                    attempts=failure.attempts,
                    counted=failure.counted,
                    gap_ms=failure.gap_ms,
                    limit=failure.limit,
                    unknown=failure.unknown,
                )
            self.entries[pending.id] = old
            self.versions[version.id, version.generation] = version
            return
        how = "revived" if pending.kind == REVIVE else "purged" if old.dead else "cancelled"
        if pending.kind == ARM and not old.dead:
            how = "replaced"
        self.ended[version.id, version.generation] = how
        if how != "revived":
            self._sums(version.type)[how] += 1
        if new is not None:
            self.entries[new.id] = Entry(new)
            self.versions[new.id, new.generation] = new
            self._sums(new.type)["revived" if pending.kind == REVIVE else "armed"] += 1

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
