"""Recovery: what the files of a log mean after whatever happened. The one place that decides End, Torn or Corrupt.

The argument rests on three habits of the writer (file_log.py):

1. A header is synced before the first frame behind it is written, and a segment is synced before the next header is.
2. One append at a time, and nothing is acknowledged before its sync. So at any moment at most one write, at the very
   end of the log, is not known to be on disk.
3. Every append also writes a mark: the position up to which the log was on disk before it. Frames carry the same.
4. When a header is on disk, the segment before it is told so (`next`), and that is synced before the first frame
   behind the header is written. A start does it again, after it has synced what it read.

What can be missing without a word is therefore only what lies at or behind the furthest synced position that any mark
or frame names, in the last segment. Damage before that position is never a torn write.

Habit 4 is for the last segment as a whole. Whatever was acknowledged in it, the one before names it, and then it had
a header: if it has none now, or is not there, it was lost. In the other order (named first) a crash between the two
would look the same as a loss. In this one it leaves a header that nobody names and no frame behind it, which is a log
like any other. A `next` that can't be read says nothing, as if it had not been written: it takes a second damage for
that to hide anything.

This module reads bytes that it is given, and raises `CorruptLog`. It does not know files, and mends nothing.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from timerd.engine.errors import CorruptLog
from timerd.engine.record import Record
from timerd_storage import codec, frame
from timerd_storage.frame import RawFrame
from timerd_storage.segment import HEADER_BYTES, READABLE, VERSION, Header, name_of


class Unreadable(CorruptLog):
    """A file that the system does not let be read: what is in it may be whole, so it is nothing to repair."""


class FileHead(NamedTuple):
    """A segment file, as far as its first page goes."""

    number: int
    path: Path
    header: Header | None
    empty: bool
    """Nothing but zeros behind the first page; asked only of a file without a header."""


class Arrangement(NamedTuple):
    """Which files are the log, oldest first, and which wait to become part of it."""

    segments: list[FileHead]
    spares: list[FileHead]


class Ending(NamedTuple):
    """What a segment holds and how it ends."""

    frames: list[RawFrame]
    position: int
    """Exclusive, a log position."""
    torn: str | None
    """None: End, or another segment follows. Otherwise Torn, and why: from `position` on the segment is to be cut."""


def arrange(files: Sequence[FileHead]) -> Arrangement:
    """Tell the log's segments from the spares, given all segment files in the order of their numbers."""
    for before, after in pairwise(files):
        if after.number != before.number + 1:
            # Segments are deleted from the oldest on and spares from the newest on, each deletion synced before the
            # next. So no crash leaves a hole.
            raise corrupt(after.path, 0, f"the segment before it, number {after.number - 1}, is missing")
    last = max((index for index, file in enumerate(files) if is_opened(file)), default=-1)
    if last == -1 and files and (len(files) > 1 or files[0].number != 1):
        # The first segment of all is opened before a spare is made behind it. So there had been a header.
        raise corrupt(files[0].path, 0, "no segment has a header that can be read, and this is no new log")
    for file in files[: last + 1]:
        if file.header is None or not is_opened(file):
            raise corrupt(file.path, 0, "its header is damaged, and segments with a header follow")
        if file.header.version not in READABLE:
            raise corrupt(
                file.path, 0, f"format version {file.header.version}; this build reads up to version {VERSION}"
            )
    header = files[last].header if files else None
    if header is not None and header.next is not None:
        # It had a header before it was named (habit 4).
        lost = files[last].path.with_name(name_of(header.next))
        raise corrupt(lost, 0, "this segment was opened, and it is missing or its header is")
    for file in files[last + 1 :]:
        # The header was synced before the first frame (habit 1). So with nothing behind it, a header that can't be
        # read was never synced, and nothing in this file was ever acknowledged: a spare. With something behind it,
        # there had been a header.
        if not file.empty:
            raise corrupt(file.path, 0, "its header is damaged, and there is data behind it")
    return Arrangement(list(files[: last + 1]), list(files[last + 1 :]))


def is_opened(file: FileHead) -> bool:
    """Whether the file has a header that can be read. Its two marks are never damaged at once by one torn write."""
    return file.header is not None and file.header.synced >= file.header.first


def read(path: Path, data: bytes, header: Header, after: Header | None) -> Ending:
    """The frames of a segment and how it ends; `after` is the next one's header. Raises CorruptLog."""
    if after is None:
        return _read_last(path, data, header)
    frames, position = _walk(data, header.first)
    if position != after.first:
        # It was synced as a whole before the next was opened (habit 1): whatever is wrong here is no torn write.
        offset = offset_of(header, min(position, after.first))
        raise corrupt(path, offset, f"a damaged frame: log position {position}, but the log goes on at {after.first}")
    return Ending(frames, position, None)


class Lsns:
    """The last lsn of each shard, and the rule that each frame's lsn is the next."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def take(self, path: Path, header: Header, raw: RawFrame) -> None:
        """Note a frame. Raises CorruptLog for a gap: whole frames are gone that once were there."""
        expected = self._last.get(raw.shard, raw.lsn - 1) + 1
        if raw.lsn != expected:
            reason = f"shard {raw.shard} goes on with lsn {raw.lsn}, expected {expected}"
            raise corrupt(path, offset_of(header, raw.position), reason)
        self._last[raw.shard] = raw.lsn

    def follow(self, shard: int, lsn: int) -> None:
        """Note a frame that is about to be written. A gap would make a log that refuses to start."""
        expected = self._last.get(shard, lsn - 1) + 1
        assert lsn == expected, f"shard {shard}: lsn {lsn}, expected {expected}"
        self._last[shard] = lsn


def decode(path: Path, header: Header, raw: RawFrame) -> list[Record]:
    """The records of a whole frame. Raises CorruptLog when they make no sense, which no torn write explains."""
    try:
        return codec.decode(raw.payload)
    except ValueError as error:
        raise corrupt(path, offset_of(header, raw.position), f"records that this build can't read: {error}") from error


def offset_of(header: Header, position: int) -> int:
    """Where a log position lies in its segment's file."""
    return HEADER_BYTES + position - header.first


def corrupt(path: Path, offset: int, reason: str) -> CorruptLog:
    """The refusal to start, naming the way out."""
    return CorruptLog(str(path), offset, f"{reason}. Look with: timerd log inspect {path.parent}")


def unreadable(path: Path, error: OSError) -> Unreadable:
    """The refusal to go on without a file that can't be read."""
    reason = f"it can't be read: {error.strerror or error}"
    return Unreadable(str(path), 0, f"{reason}. Look with: timerd log inspect {path.parent}")


def _read_last(path: Path, data: bytes, header: Header) -> Ending:
    # Bytes that the file is too short for count as zeros: the marks tell whether anything is missing.
    frames, position = _walk(data, header.first)
    offset = offset_of(header, position)
    rest = data[offset:]
    clean = rest == bytes(len(rest))
    later = () if clean else frame.search(data, offset - 1, position - 1)
    synced = max(header.synced, max((found.synced for found in later), default=0))
    if synced > position:
        # Something was written after this place had been synced: these bytes were whole once, and acknowledged.
        what = "the log ends here" if clean else "a damaged frame"
        raise corrupt(path, offset, f"{what}: log position {position}, but it was on disk up to {synced}")
    if clean:
        # End. The marks know of nothing behind it but, at most, one append that was never acknowledged.
        return Ending(frames, position, None)
    # Torn. Whatever lies here belongs to the one write that no mark knows to be on disk (habits 2 and 3), or was put
    # there by somebody else. Whole frames behind it belong to the same write, else their `synced` would say more.
    return Ending(frames, position, "zeros before more data" if not data[offset] else "a damaged frame")


def _walk(data: bytes, first: int) -> tuple[list[RawFrame], int]:
    """The whole frames from the start of a segment on, and the log position at which they stop."""
    frames = []
    position = first
    while (found := frame.read(data, HEADER_BYTES + position - first, position)) is not None:
        frames.append(found)
        position = found.end
    return frames, position
