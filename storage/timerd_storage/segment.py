"""Segments: the files that frames lie in, one after another.

    0       8          12        16       24      32        512    1024   1536                4096
    +-------+----------+---------+--------+-------+-- - - --+------+------+----------- - - - -+--------- - - -
    | magic | checksum | version | number | first | zeros   | mark | mark | next, once, zeros | frames, zeros
    +-------+----------+---------+--------+-------+-- - - --+------+------+----------- - - - -+--------- - - -

    mark:   0        4          8          16
            +--------+----------+----------+
            | "mark" | checksum | position |
            +--------+----------+----------+

`first` is the log position of the segment's first frame, and exactly the end of the segment before. A mark is a log
position known to be on disk. The two marks lie in sectors of their own and are written in turn, one with each append
and under that append's sync, so that one of them is always whole and at most one append behind: it is what tells a
log whose end has gone missing from one that ends there. `next` is laid out like a mark, and is written once: when the
segment behind this one has its header on disk. It is what tells a last segment that was lost from one that never was.

Life of a segment: the file is made and filled with zeros (a *spare*, no header yet); it is opened: the header is
written and synced, then named in the segment before, and only then come frames; it is sealed when the next is opened;
it is deleted. Nothing is reused: an old life's frames could be read as new.

This module knows bytes and names. It does not know what damage means. See recover.py.
"""

import re
import struct
import zlib
from typing import Final, NamedTuple

VERSION: Final = 2
READABLE: Final = (1, VERSION)  # version 1 has the same bytes, and fewer kinds of records
HEADER_BYTES: Final = 4096  # a page: damage to one page never takes the header and frames together
MAGIC: Final = b"timerdLG"
MARK_MAGIC: Final = b"mark"
MARK_OFFSETS: Final = (512, 1024)  # a sector each, so that a torn write spoils one
NEXT_MAGIC: Final = b"next"
NEXT_OFFSET: Final = 1536  # a sector of its own, too
NEXT_BYTES: Final = 16
_HEAD: Final = struct.Struct("<8sI")
_REST: Final = struct.Struct("<IQQ")
_MARK: Final = struct.Struct("<4sIQ")
_MARK_CHECKED: Final = struct.Struct("<QQ")
_NAME: Final = re.compile(r"(\d{12})\.log")

assert _MARK.size == NEXT_BYTES


class Header(NamedTuple):
    """What the first page of a segment says."""

    version: int
    number: int
    first: int
    marks: tuple[int, int]
    """A log position each; -1 for one that can't be read."""
    next: int | None = None
    """The number of the segment that was opened behind this one; None: none, or it can't be read."""

    @property
    def synced(self) -> int:
        """The furthest position that was known to be on disk."""
        return max(self.marks)


def name_of(number: int) -> str:
    """The file name of a segment; names sort like numbers."""
    return f"{number:012}.log"


def number_of(name: str) -> int | None:
    """The number in a segment's file name, or None for another kind of file."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_header(number: int, first: int) -> bytes:
    """The first page of a segment that is opened at log position `first`."""
    rest = _REST.pack(VERSION, number, first)
    page = bytearray(HEADER_BYTES)
    header = _HEAD.pack(MAGIC, zlib.crc32(rest)) + rest
    page[: len(header)] = header
    mark = encode_mark(number, first)
    for offset in MARK_OFFSETS:
        page[offset : offset + len(mark)] = mark
    return bytes(page)


def decode_header(page: bytes, number: int) -> Header | None:
    """The header in a segment's first page, or None unless it is whole and this segment's own."""
    if len(page) < HEADER_BYTES:
        return None
    magic, checksum = _HEAD.unpack_from(page, 0)
    version, own_number, first = _REST.unpack_from(page, _HEAD.size)
    if magic != MAGIC or own_number != number or zlib.crc32(page[_HEAD.size : _HEAD.size + _REST.size]) != checksum:
        return None
    one, other = (_decode_mark(page, offset, number, MARK_MAGIC) for offset in MARK_OFFSETS)
    following = _decode_mark(page, NEXT_OFFSET, number, NEXT_MAGIC)
    return Header(version, number, first, (one, other), following if following == number + 1 else None)


def encode_mark(number: int, position: int) -> bytes:
    """A mark of segment `number`: the log is on disk up to `position`."""
    return _MARK.pack(MARK_MAGIC, zlib.crc32(_MARK_CHECKED.pack(number, position)), position)


def encode_next(number: int) -> bytes:
    """What segment `number` says once the one behind it has its header."""
    return _MARK.pack(NEXT_MAGIC, zlib.crc32(_MARK_CHECKED.pack(number, number + 1)), number + 1)


def _decode_mark(page: bytes, offset: int, number: int, expected: bytes) -> int:
    magic, checksum, position = _MARK.unpack_from(page, offset)
    whole = magic == expected and checksum == zlib.crc32(_MARK_CHECKED.pack(number, position))
    return int(position) if whole else -1
