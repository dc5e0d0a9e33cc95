"""Bodies in bytes: how large payloads lie in a body segment, and the segment in messages.

A segment is a run of bytes: one body after the other, each behind a head. It is stored in messages, its extents, one
behind the other; where an extent ends is part of its subject, so that the list of subjects is the segment's index. A
body may lie across extents.

    0        4           6        22
    +--------+-----------+--------+----+---------+
    | length | id_length | digest | id | payload |
    +--------+-----------+--------+----+---------+

A body is read by its place (its payload's offset in the segment, and its length), and its digest tells whether it is
what was written. Heads are for scans. This module knows bytes, not servers.
"""

import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from xxhash import xxh3_128_digest

from timerd.engine.timer import BodyRef
from timerd.ports import Body

VERSION: Final = 1
BODY: Final = "Timerd-Body"
HEAD: Final = struct.Struct("<IH16s")
SHARD_BITS: Final = 14  # there are 16,384 slots, so never more shards
EPOCH_BITS: Final = 28
COUNT_BITS: Final = 20


class Extent(NamedTuple):
    """The bytes from `start` up to `end` of a segment: one message."""

    start: int
    end: int


def segment_number(shard: int, epoch: int, count: int) -> int:
    """No two owners of a shard ever write one segment, and a segment's number tells its shard."""
    assert shard < 1 << SHARD_BITS
    assert epoch < 1 << EPOCH_BITS
    assert count < 1 << COUNT_BITS
    return (shard << EPOCH_BITS | epoch) << COUNT_BITS | count


def shard_of(segment: int) -> int:
    """The shard that a segment belongs to."""
    return segment >> COUNT_BITS >> EPOCH_BITS


def encode(id: str, payload: bytes, digest: bytes) -> bytes:
    """A body as it lies in a segment, up to its payload."""
    name = id.encode()
    return HEAD.pack(len(payload), len(name), digest) + name


def digest_of(payload: bytes) -> bytes:
    """What a `BodyRef` holds and a read is checked against."""
    return xxh3_128_digest(payload)


def encode_header(start: int, data: bytes) -> str:
    """The value of the header `Timerd-Body`."""
    return f"{VERSION} {start} {zlib.crc32(data):08x}"


def is_whole(value: str | None, start: int, data: bytes) -> bool:
    """Whether a message is the extent that it should be."""
    return value == encode_header(start, data)


def covering(ends: Sequence[int], offset: int, length: int) -> list[Extent]:
    """The extents, of a segment whose extents end at `ends`, that hold a run of bytes; empty unless all of it."""
    first = bisect_right(ends, offset)
    found = []
    for index in range(first, len(ends)):
        found.append(Extent(ends[index - 1] if index else 0, ends[index]))
        if ends[index] >= offset + length:
            return found
    return []


class Scan:
    """Finds the bodies of a segment that comes in extents."""

    def __init__(self, segment: int) -> None:
        self._segment = segment
        self._rest = b""
        self._offset = 0  # of `_rest`, in the segment

    def feed(self, data: bytes) -> Iterator[Body]:
        """The bodies that end in this extent."""
        data = self._rest + data
        at = 0
        while at + HEAD.size <= len(data):
            length, id_length, digest = HEAD.unpack_from(data, at)
            begin = at + HEAD.size + id_length
            if begin + length > len(data):
                break
            payload = data[begin : begin + length]
            id = data[at + HEAD.size : begin].decode(errors="replace")
            whole = digest_of(payload) == digest
            place = BodyRef(self._segment, self._offset + begin, length, digest)
            yield Body(id, place, payload if whole else None)
            at = begin + length
        self._rest = data[at:]
        self._offset += at
