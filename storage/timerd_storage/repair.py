"""Mending a log that refuses to start: `timerd log repair`.

Keeps what is readable without a gap from the oldest segment on, and gives up the rest, after saying exactly what that
is. Every file that is changed or removed is copied to `<name>.broken` first, and the copy is synced.

A file of bodies that is missing or ends too soon is filled up with zeros, so that the log starts: each timer whose
payload is not there is buried for that when it is due, as it is for a payload that was damaged.
"""

import shutil
from pathlib import Path
from typing import NamedTuple, TextIO

from timerd.engine.errors import CorruptLog
from timerd.engine.record import Record
from timerd_storage import body, files, frame, inspect, live_bodies, segment
from timerd_storage.disk import OsDisk
from timerd_storage.live_bodies import LiveBodies
from timerd_storage.recover import FileHead, Lsns, Unreadable, decode, is_opened, offset_of
from timerd_storage.segment import MARK_OFFSETS, NEXT_BYTES, NEXT_OFFSET, Header

REPAIRED, REFUSED = 0, 1


class Cut(NamedTuple):
    """Where a log is to end: the last file that is kept, and how."""

    head: FileHead
    header: Header
    position: int
    """The new end of the log; exclusive."""


def repair(directory: Path, out: TextIO) -> int:
    """Cut a damaged log at its last good frame, and fill up what live payloads lack of their files.

    0: repaired. 1: refused: it is sound, in use, missing, unreadable, or has no beginning. 2: no data directory.
    """
    if lacking := inspect.lack(directory):  # before the lock, which would be made
        code, reason = lacking
        print(f"refused: {reason}", file=out)
        return code
    disk = OsDisk()
    try:
        lock = disk.lock(directory / files.LOCK_NAME)
    except BlockingIOError:
        print(f"refused: another process has the data directory {directory}", file=out)
        return REFUSED
    try:
        return _repair(disk, directory, out)
    except Unreadable as error:
        print(f"refused: {error.path}: {error.reason}", file=out)
        print(
            "nothing is given up for that: see to it that the file can be read, or move away what is no file", file=out
        )
        return REFUSED
    finally:
        disk.close(lock)


def _repair(disk: OsDisk, directory: Path, out: TextIO) -> int:
    for name in disk.list_directory(directory):  # all of them, before anything is changed
        if body.number_of(name) is not None:
            files.size(disk, directory / name)
    try:
        live = _live(directory)
    except Unreadable:
        raise
    except CorruptLog as error:
        print(f"damage: {error.path}: offset {error.offset}: {error.reason}", file=out)
        if _cut(disk, directory, out) == REFUSED:
            return REFUSED
        _fill_up(disk, directory, _live(directory), out)
        return REPAIRED
    if reasons := live.without_beginning():
        for reason in reasons:
            print(f"refused: the log's beginning is missing, so nothing of it can be kept: {reason}", file=out)
        return REFUSED
    if _fill_up(disk, directory, live, out):
        return REPAIRED
    print("refused: the log is not damaged. A start cuts a torn last write by itself, and buries the timers", file=out)
    print("whose payloads can't be read", file=out)
    return REFUSED


def _live(directory: Path) -> LiveBodies:
    """Read the whole log. Raises CorruptLog where a start would."""
    live = LiveBodies()
    for each in inspect.segments(inspect.arrangement(directory)):
        assert each.head.header is not None
        for raw in each.ending.frames:
            live.take(raw.shard, raw.lsn, decode(each.head.path, each.head.header, raw))
    return live


def _fill_up(disk: OsDisk, directory: Path, live: LiveBodies, out: TextIO) -> bool:
    """Let every file of bodies reach to where live payloads do. Whether there was need."""
    found = live_bodies.lacking(disk, directory, live.places())
    for each in found:
        print(f"damage: {inspect.lacks(each)}", file=out)
        if each.size is None:
            number = body.number_of(each.path.name)
            assert number is not None
            file = disk.open(each.path, create=True)
            disk.write(file, 0, body.encode_file_header(number))
        else:
            print(f"copied {each.path.name} to {_copy(disk, each.path).name}", file=out)
            file = disk.open(each.path)
        # What lacks are zeros; then the end of a frame, since a start takes zeros at the end for room left over.
        disk.write(file, each.needed, body.END)
        disk.sync(file)
        disk.close(file)
        disk.sync_directory(directory)
        what = f"given up: {each.timers} payloads in {each.path.name}"
        print(f"{what}, which now reaches to {each.needed}: a start buries their timers when they are due", file=out)
    return bool(found)


def _cut(disk: OsDisk, directory: Path, out: TextIO) -> int:
    heads = files.heads(disk, directory)
    cut = _last_good(disk, heads)
    if cut is None:
        print("refused: the oldest segment's header can't be read, so nothing of the log can be kept", file=out)
        return REFUSED
    touched = [head for head in heads if head.number >= cut.head.number]
    _tell(disk, cut, touched, out)
    for head in touched:
        print(f"copied {head.path.name} to {_copy(disk, head.path).name}", file=out)
    # The newest goes first and the cut comes last: a repair that is interrupted leaves a log that is still refused.
    for head in reversed(touched[1:]):
        disk.unlink(head.path)
        disk.sync_directory(directory)
    _shorten(disk, cut)
    print(f"the log ends at {cut.head.path.name}, offset {offset_of(cut.header, cut.position)}", file=out)
    return REPAIRED


def _last_good(disk: OsDisk, heads: list[FileHead]) -> Cut | None:
    """Where what is readable without a gap ends. None: it does not begin."""
    cut: Cut | None = None
    lsns = Lsns()
    for head in heads:
        header = head.header
        if header is None or not is_opened(head) or header.version not in segment.READABLE:
            return cut
        if cut is not None and (header.first != cut.position or head.number != cut.head.number + 1):
            return cut
        cut = Cut(head, header, header.first)
        data = files.contents(disk, head.path)
        try:
            while (raw := frame.read(data, offset_of(header, cut.position), cut.position)) is not None:
                lsns.take(head.path, header, raw)
                decode(head.path, header, raw)
                cut = cut._replace(position=raw.end)
        except CorruptLog:
            return cut
    return cut


def _tell(disk: OsDisk, cut: Cut, touched: list[FileHead], out: TextIO) -> None:
    """Name every whole frame behind the cut; what is not whole has no name."""
    given_up = 0
    known: list[Record] = []
    for head in touched:
        if head.header is None:
            if not head.empty:
                print(f"given up: all of {head.path.name}, whose header can't be read", file=out)
            continue
        data = files.contents(disk, head.path)
        start = cut.position if head is cut.head else head.header.first
        for raw in frame.search(data, offset_of(head.header, start) - 1, start - 1):
            try:
                records = decode(head.path, head.header, raw)
            except CorruptLog:
                holds = "its records can't be read"
            else:
                known += records
                holds = inspect.kinds(records)
            size = f"{len(raw.payload)} bytes, {head.path.name}"
            print(f"given up: shard {raw.shard} lsn {raw.lsn} ({size}): {holds}", file=out)
            given_up += 1
    print(f"given up: {given_up} whole frames, and whatever lay in the damaged places", file=out)
    if known:
        print(f"in the whole frames, records of each kind (and timers they name): {inspect.kinds(known)}", file=out)


def _copy(disk: OsDisk, path: Path) -> Path:
    copy = path.with_name(f"{path.name}.broken")
    number = 1
    while copy.exists():  # of an earlier repair: never overwritten
        number += 1
        copy = path.with_name(f"{path.name}.broken{number}")
    shutil.copyfile(path, copy)
    file = disk.open(copy)
    disk.sync(file)
    disk.close(file)
    disk.sync_directory(path.parent)
    return copy


def _shorten(disk: OsDisk, cut: Cut) -> None:
    """Put zeros behind the cut, marks that know of nothing behind it, and no next segment."""
    file = disk.open(cut.head.path)
    offset = offset_of(cut.header, cut.position)
    size = disk.size(file)
    if size > offset:
        disk.write(file, offset, bytes(size - offset))
    mark = segment.encode_mark(cut.head.number, cut.position)
    for at in MARK_OFFSETS:
        disk.write(file, at, mark)
    disk.write(file, NEXT_OFFSET, bytes(NEXT_BYTES))
    disk.sync(file)
    disk.close(file)
