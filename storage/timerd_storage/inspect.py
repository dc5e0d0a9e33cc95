"""Looking at a log from outside: what `timerd log inspect` and `timerd log verify` print. Changes nothing.

Works beside a running process too: it takes no lock, and may then find a last write half done.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from timerd.engine.errors import CorruptLog
from timerd.engine.move_record import Moved, Pended, Resolved
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
from timerd.engine.timer import BodyRef
from timerd_storage import body, files, live_bodies, recover, segment
from timerd_storage.body_files import BodyFiles
from timerd_storage.disk import OsDisk
from timerd_storage.live_bodies import Lacking, LiveBodies
from timerd_storage.recover import Arrangement, Ending, FileHead, Lsns, Unreadable

GOOD, DAMAGED, ABSENT = 0, 1, 2
CATALOG_NAME: Final = "catalog.sqlite"


class Found(NamedTuple):
    """One segment, read."""

    head: FileHead
    size: int
    ending: Ending


def inspect(directory: Path, out: TextIO) -> int:
    """Print segments, frames and records; where damage is, and what it is taken for. Returns what `verify` does."""
    return _report(directory, out, frames=True)


def verify(directory: Path, out: TextIO) -> int:
    """Read everything, bodies included.

    0: a start would take all of it, but for a torn last write. 1: damaged, or missing. 2: no data directory.
    """
    return _report(directory, out, frames=False)


def lack(directory: Path) -> tuple[int, str] | None:
    """What makes this a directory without a log to look at, and the exit code for it; None: there is one.

    A lock alone is a first start that got no further.
    """
    names = OsDisk().list_directory(directory)
    if any(segment.number_of(name) is not None for name in names):
        return None
    if CATALOG_NAME in names or any(body.number_of(name) is not None for name in names):
        rest = "a catalogue" if CATALOG_NAME in names else "payloads"
        return DAMAGED, f"the log is missing: {directory} has {rest}, and no segment of a log"
    if files.LOCK_NAME not in names:
        return ABSENT, f"no data directory: {directory} has no log, no catalogue and no lock"
    return None


def arrangement(directory: Path) -> Arrangement:
    """The directory's segments and spares. Raises CorruptLog, FileNotFoundError."""
    return recover.arrange(files.heads(OsDisk(), directory))


def segments(found: Arrangement) -> Iterator[Found]:
    """Each segment of the log, oldest first, its frames checked one by one. Raises CorruptLog where a start would."""
    lsns = Lsns()
    for index, head in enumerate(found.segments):
        after = found.segments[index + 1].header if index + 1 < len(found.segments) else None
        data = files.contents(OsDisk(), head.path)
        assert head.header is not None
        ending = recover.read(head.path, data, head.header, after)
        for raw in ending.frames:
            lsns.take(head.path, head.header, raw)
        yield Found(head, len(data), ending)


def _report(directory: Path, out: TextIO, *, frames: bool) -> int:
    if lacking := lack(directory):
        code, reason = lacking
        print(reason, file=out)
        return code
    verdict = GOOD
    total = 0
    shards: dict[int, tuple[int, int]] = {}
    places: set[BodyRef] = set()
    live = LiveBodies()
    try:
        found = arrangement(directory)
        _beginning(found, out)
        for each in segments(found):
            header = each.head.header
            assert header is not None
            span = f"log positions {header.first} to {each.ending.position}"
            print(f"{each.head.path.name}  {span}  {len(each.ending.frames)} frames  {each.size} bytes", file=out)
            for raw in each.ending.frames:
                records = recover.decode(each.head.path, header, raw)
                places.update(place for record in records for place in _places(record))
                live.take(raw.shard, raw.lsn, records)
                shards[raw.shard] = (shards.get(raw.shard, (raw.lsn, 0))[0], raw.lsn)
                total += 1
                if frames:
                    at = f"{recover.offset_of(header, raw.position):>10}  shard {raw.shard}  lsn {raw.lsn}"
                    print(f"{at}  {len(raw.payload)} bytes  {kinds(records)}", file=out)
            if each.ending.torn:
                at = f"{recover.offset_of(header, each.ending.position):>10}"
                print(f"{at}  TORN: {each.ending.torn}. The next start cuts the log here by itself.", file=out)
        for spare in found.spares:
            print(f"{spare.path.name}  spare", file=out)
        for shard, (first, last) in sorted(shards.items()):
            print(f"shard {shard}: lsn {first} to {last}", file=out)
        verdict = _live(directory, live, out)
    except Unreadable as error:
        verdict = _unreadable(error, out)
    except CorruptLog as error:
        print(f"CORRUPT: {error.path}: offset {error.offset}: {error.reason}", file=out)
        print(f"mend with: timerd log repair {directory}", file=out)
        verdict = DAMAGED
    try:
        verdict = max(verdict, _bodies(directory, places, out))
    except Unreadable as error:
        verdict = _unreadable(error, out)
    print(f"{total} frames, {'good' if verdict == GOOD else 'damaged'}", file=out)
    return verdict


def _unreadable(error: Unreadable, out: TextIO) -> int:
    print(f"UNREADABLE: {error.path}: {error.reason}", file=out)
    return DAMAGED


def _beginning(found: Arrangement, out: TextIO) -> None:
    header = found.segments[0].header if found.segments else None
    if header is not None and header.number > 1:
        at = f"segment {header.number}, log position {header.first}"
        print(f"the log begins at {at}: earlier segments were trimmed, or are missing", file=out)


def _live(directory: Path, live: LiveBodies, out: TextIO) -> int:
    """Print what a start would refuse for, beyond what lies in the segments themselves."""
    verdict = GOOD
    for reason in live.without_beginning():
        print(f"MISSING: the log's beginning: {reason}. Put the earlier segments back", file=out)
        verdict = DAMAGED
    for each in live_bodies.lacking(OsDisk(), directory, live.places()):
        print(f"MISSING: {lacks(each)}", file=out)
        print(f"put the file back, or mend with: timerd log repair {directory}", file=out)
        verdict = DAMAGED
    return verdict


def lacks(each: Lacking) -> str:
    """In words."""
    state = "the file is missing" if each.size is None else f"the file ends at {each.size}"
    return f"{each.path}: {state}, and live payloads reach to {each.needed}; {each.timers} of them are not there"


def _bodies(directory: Path, places: Iterable[BodyRef], out: TextIO) -> int:
    """Print each body segment, and read every body in it that a record names.

    What no record names is harmless, whatever it looks like; a segment that is not there was given up.
    """
    disk = OsDisk()
    reader = BodyFiles(directory, disk)
    named: dict[int, list[BodyRef]] = defaultdict(list)
    for place in places:
        named[place.segment].append(place)
    verdict = GOOD
    for name in sorted(disk.list_directory(directory)):
        number = body.number_of(name)
        if number is not None:
            bad = sum(data is None for place in named[number] for data in reader.read([place]))
            size = files.size(disk, directory / name)
            print(f"{name}  {len(named[number])} bodies named  {size} bytes{f'  {bad} DAMAGED' * bool(bad)}", file=out)
            verdict = max(verdict, DAMAGED if bad else GOOD)
    reader.close()
    return verdict


def kinds(records: Iterable[Record]) -> str:
    """Records, counted by kind; in brackets, how many timers they are about."""
    counts: Counter[str] = Counter()
    timers: Counter[str] = Counter()
    for record in records:
        kind = type(record).__name__
        counts[kind] += 1
        timers[kind] += len(_members(record))
    return "  ".join(f"{kind} x{count} ({timers[kind]})" for kind, count in counts.items())


def _members(record: Record) -> Sized:
    match record:
        case Armed() | Checkpoint():
            return record.timers
        case Fired():
            return [*record.ids, *record.rearmed]
        case Relocated():
            return record.bodies
        case Moved() | Pended():
            return record.entries
        case Resolved():
            return [*record.moved, *record.changed]
        case Cancelled() | Retried() | Buried() | Revived() | Purged():
            return record.ids
        case _:
            return ()


def _places(record: Record) -> Iterator[BodyRef]:
    """The bodies that a record names."""
    match record:
        case Armed() | Checkpoint():
            yield from (timer.payload for timer in record.timers if isinstance(timer.payload, BodyRef))
        case Fired():
            yield from (timer.payload for timer in record.rearmed if isinstance(timer.payload, BodyRef))
        case Relocated():
            yield from (place for _, _, place in record.bodies)
