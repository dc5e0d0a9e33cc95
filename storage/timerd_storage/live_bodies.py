"""Which bodies a start will ask for: a fold of a log's records that knows of timers no more than where payloads lie.

`verify` and `repair` use it. The engine's replay does the same and much more, and is strict about what it meets; this
one also makes the best of a log that was cut.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from timerd.engine.move_record import Moved, Pended, Pending, Resolved
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
from timerd.engine.ring import SLOTS, slot_of
from timerd.engine.timer import BodyRef, Timer
from timerd_storage import body, files
from timerd_storage.disk import Disk


class Lacking(NamedTuple):
    """A body segment that live timers have payloads in, and that is missing or ends too soon: a start refuses."""

    path: Path
    size: int | None
    """What a start takes it to hold; None: the file is missing."""
    needed: int
    """Where the furthest live payload ends."""
    timers: int
    """How many have a payload that is not there."""


class LiveBodies:
    """Feed it all frames in order."""

    def __init__(self) -> None:
        self._slots: defaultdict[tuple[int, int], dict[str, BodyRef]] = defaultdict(dict)  # by (shard, slot)
        self._pending: dict[tuple[int, str], Timer | None] = {}  # by (shard, id): what is to come from another shard
        self._first: dict[int, int] = {}  # the first lsn of each shard
        self._sliced: defaultdict[int, set[int]] = defaultdict(set)  # slots of each shard that had a slice

    def take(self, shard: int, lsn: int, records: Iterable[Record]) -> None:
        """Note what one frame says."""
        self._first.setdefault(shard, lsn)
        for record in records:
            if isinstance(record, Checkpoint):
                self._sliced[shard].update(record.slots)
                for slot in record.slots:
                    self._slots.pop((shard, slot), None)
            self._apply(shard, record)

    def places(self) -> list[BodyRef]:
        """Where the payloads of all live timers lie, as far as they lie apart."""
        return [place for by_id in self._slots.values() for place in by_id.values()]

    def without_beginning(self) -> list[str]:
        """What shows that the log's beginning is missing, and was not trimmed: its slices don't make up for it."""
        cut = [shard for shard, lsn in sorted(self._first.items()) if lsn > 1]
        found = [
            f"shard {shard} begins at lsn {self._first[shard]}, and no checkpoint slice makes up for what was before"
            for shard in cut
            if shard not in self._sliced  # one without slots has slices of none, which have its counts
        ]
        sliced = len(set().union(*self._sliced.values()))
        if cut and not found and len(cut) == len(self._first) and sliced < SLOTS:
            found.append(f"no shard begins at lsn 1, and checkpoint slices hold {sliced} of {SLOTS} slots")
        return found

    def _apply(self, shard: int, record: Record) -> None:
        match record:
            case Armed():
                self._enter(shard, record.timers)
            case Checkpoint():
                self._enter(shard, record.timers)
                for move in record.moves:
                    self._pend(shard, move.pending)
            case Fired():
                self._remove(shard, record.ids)
                self._enter(shard, record.rearmed)
                for _, ids in record.dropped:
                    self._remove(shard, ids)
            case Cancelled() | Purged():
                self._remove(shard, record.ids)
            case Moved():
                self._remove(shard, [entry.id for entry, _ in record.entries])
            case Pended():
                self._pend(shard, record.entries)
            case Resolved():
                for id in record.changed:
                    self._pending.pop((shard, id), None)
                moved = [self._pending.pop((shard, id), None) for id in record.moved]
                self._enter(shard, [timer for timer in moved if timer is not None])
            case Relocated():
                for id, _, place in record.bodies:
                    by_id = self._slots[shard, slot_of(id)]
                    if id in by_id:
                        by_id[id] = place
                    elif (timer := self._pending.get((shard, id))) is not None:
                        self._pending[shard, id] = replace(timer, payload=place)
            case Retried() | Buried() | Revived() | _:
                pass  # the payload stays where it is

    def _pend(self, shard: int, entries: Iterable[Pending]) -> None:
        self._pending.update({(shard, pending.id): pending.timer for pending in entries})

    def _enter(self, shard: int, timers: Sequence[Timer]) -> None:
        for timer in timers:
            by_id = self._slots[shard, slot_of(timer.id)]
            if isinstance(timer.payload, BodyRef):
                by_id[timer.id] = timer.payload
            else:
                by_id.pop(timer.id, None)

    def _remove(self, shard: int, ids: Iterable[str]) -> None:
        for id in ids:
            self._slots[shard, slot_of(id)].pop(id, None)


def lacking(disk: Disk, directory: Path, places: Iterable[BodyRef]) -> list[Lacking]:
    """The body segments that a start would refuse for, in order. Raises Unreadable."""
    named: defaultdict[int, list[int]] = defaultdict(list)
    for place in places:
        named[place.segment].append(place.offset + place.length)
    there = sorted(number for name in disk.list_directory(directory) if (number := body.number_of(name)) is not None)
    found = []
    for number, ends in sorted(named.items()):
        path = directory / body.name_of(number)
        size = None
        if number in there:
            # A start gives back what room the last two have left (body_files.py), and only then takes their sizes.
            last = number in there[-2:]
            size = len(files.contents(disk, path).rstrip(b"\0")) if last else files.size(disk, path)
        beyond = sum(end > (size or 0) for end in ends)
        if size is None or beyond:
            found.append(Lacking(path, size, max(ends), beyond))
    return found
