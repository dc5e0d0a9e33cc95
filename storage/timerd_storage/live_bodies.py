"""Which bodies a start will ask for: a fold of a log's records that knows of timers no more than where payloads lie.

`verify` and `repair` use it. The engine's replay does the same and much more, and is strict about what it meets; this
one also makes the best of a log that was cut.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

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
        self._slots: defaultdict[int, dict[str, BodyRef]] = defaultdict(dict)
        self._first: dict[int, int] = {}  # the first lsn of each shard
        self._sliced: defaultdict[int, set[int]] = defaultdict(set)  # slots of each shard that had a slice

    def take(self, shard: int, lsn: int, records: Iterable[Record]) -> None:
        """Note what one frame says."""
        self._first.setdefault(shard, lsn)
        for record in records:
            if isinstance(record, Checkpoint):
                self._sliced[shard].update(record.slots)
                for slot in record.slots:
                    self._slots.pop(slot, None)
            self._apply(record)

    def places(self) -> list[BodyRef]:
        """Where the payloads of all live timers lie, as far as they lie apart."""
        return [place for by_id in self._slots.values() for place in by_id.values()]

    def without_beginning(self) -> list[str]:
        """What shows that the log's beginning is missing, and was not trimmed: its slices don't make up for it."""
        cut = [shard for shard, lsn in sorted(self._first.items()) if lsn > 1]
        found = [
            f"shard {shard} begins at lsn {self._first[shard]}, and no checkpoint slice makes up for what was before"
            for shard in cut
            if not self._sliced[shard]
        ]
        sliced = len(set().union(*self._sliced.values()))
        if cut and not found and len(cut) == len(self._first) and sliced < SLOTS:
            found.append(f"no shard begins at lsn 1, and checkpoint slices hold {sliced} of {SLOTS} slots")
        return found

    def _apply(self, record: Record) -> None:
        match record:
            case Armed() | Checkpoint():
                self._enter(record.timers)
            case Fired():
                self._remove(record.ids)
                self._enter(record.rearmed)
                for _, ids in record.dropped:
                    self._remove(ids)
            case Cancelled() | Purged():
                self._remove(record.ids)
            case Relocated():
                for id, _, place in record.bodies:
                    by_id = self._slots[slot_of(id)]
                    if id in by_id:
                        by_id[id] = place
            case Retried() | Buried() | Revived() | _:
                pass  # the payload stays where it is

    def _enter(self, timers: Sequence[Timer]) -> None:
        for timer in timers:
            by_id = self._slots[slot_of(timer.id)]
            if isinstance(timer.payload, BodyRef):
                by_id[timer.id] = timer.payload
            else:
                by_id.pop(timer.id, None)

    def _remove(self, ids: Iterable[str]) -> None:
        for id in ids:
            self._slots[slot_of(id)].pop(id, None)


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
