"""Frames: how the records of one turn lie in a segment.

    0        4          8        12     13       16      20    28         36       44
    +--------+----------+--------+------+--------+-------+-----+----------+--------+---------+-----+
    | marker | checksum | length | kind | zeros  | shard | lsn | position | synced | payload | end |
    +--------+----------+--------+------+--------+-------+-----+----------+--------+---------+-----+

Integers are little-endian. `length` counts the payload. `checksum` is the CRC-32 of everything after itself but `end`.
`position` is where the frame begins in the log as a whole, counted in bytes of frames from the log's first day: bytes
that were copied or have come to lie elsewhere do not pass. `synced` is the position up to which the log was known to
be on disk when this frame was written: a later frame that says so is the proof that an earlier one had been whole.

The marker is no valid UTF-8 and holds no zero, so that neither text nor filler looks like it; it can be searched for.
`end` is one byte that is not zero, so that the last byte that is not zero is the end of the last frame, for everybody
who looks. There is no padding: the checksum, not alignment, tells a torn frame.

This module knows bytes. It does not know files, and it does not know what a bad frame means. See recover.py.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

MARKER: Final = b"\xf7TF\xb1"
END: Final = b"\xb1"
HEADER: Final = struct.Struct("<4sIIB3xIQQQ")
TURN: Final = 1  # the only kind of version 1: the records of one turn of one shard
PAYLOAD_BYTES_MAX: Final = 64 << 20  # the largest request (16 MiB) and the largest slice, with ease; more is damage
_ZEROS_FROM: Final = 13
_CHECKED_FROM: Final = 8
_HEAD: Final = struct.Struct("<4sI")
_REST: Final = struct.Struct("<IB3xIQQQ")

OVERHEAD_BYTES: Final = HEADER.size + len(END)

assert HEADER.size == 44
assert _HEAD.size + _REST.size == HEADER.size


class RawFrame(NamedTuple):
    """One whole frame, its payload not decoded."""

    position: int
    end: int
    """Exclusive, in the log: where the next frame begins."""
    shard: int
    lsn: int
    synced: int
    payload: bytes


def encode_head(shard: int, lsn: int, position: int, synced: int, payload: bytes) -> bytes:
    """What comes before the payload in a frame that will lie at `position`, in a log that is on disk up to `synced`.

    Behind the payload comes `END`. Apart, so that large payloads are copied once, by who joins a group of frames.
    """
    assert len(payload) <= PAYLOAD_BYTES_MAX
    assert synced <= position
    rest = _REST.pack(len(payload), TURN, shard, lsn, position, synced)
    return _HEAD.pack(MARKER, zlib.crc32(payload, zlib.crc32(rest))) + rest


def encode(shard: int, lsn: int, position: int, synced: int, payload: bytes) -> bytes:
    """A whole frame."""
    return encode_head(shard, lsn, position, synced, payload) + payload + END


def read(data: bytes, offset: int, position: int) -> RawFrame | None:
    """The frame at `offset` of `data`, or None unless it is whole and belongs at `position`."""
    start = offset + HEADER.size
    if start > len(data):
        return None
    marker, checksum, length, kind, shard, lsn, at, synced = HEADER.unpack_from(data, offset)
    end = start + length
    if marker != MARKER or at != position or length > PAYLOAD_BYTES_MAX or kind != TURN:
        return None
    if data[offset + _ZEROS_FROM : offset + _ZEROS_FROM + 3] != bytes(3) or synced > at:
        return None  # nothing that a writer of this version has written
    if data[end : end + 1] != END or zlib.crc32(memoryview(data)[offset + _CHECKED_FROM : end]) != checksum:
        return None
    return RawFrame(position, position + OVERHEAD_BYTES + length, shard, lsn, synced, data[start:end])


def search(data: bytes, offset: int, position: int) -> Iterator[RawFrame]:
    """All whole frames that begin behind `offset`, which is `position` of the log, whatever lies between them.

    The stored position is compared before the checksum is worked out, so that a payload full of markers costs nothing.
    """
    found = data.find(MARKER, offset + 1)
    while found != -1:
        frame = read(data, found, position + found - offset)
        found = data.find(MARKER, found + 1 if frame is None else found + frame.end - frame.position)
        if frame is not None:
            yield frame
