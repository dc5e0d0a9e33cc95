"""Body frames: how payloads that lie apart from their timers are laid down in body segments.

    file:   0       8          12        16       24
            +-------+----------+---------+--------+--------------- - - -
            | magic | checksum | version | number | body frames, zeros
            +-------+----------+---------+--------+--------------- - - -

    frame:  0        4          8        12          14       16       32
            +--------+----------+--------+-----------+--------+--------+----+---------+-----+
            | marker | checksum | length | id_length | zeros  | digest | id | payload | end |
            +--------+----------+--------+-----------+--------+--------+----+---------+-----+

`length` counts the payload; `checksum` is the CRC-32 of the header behind it and the id; `digest` is the payload's
xxh3_128. A reader that has a `BodyRef` goes straight to the payload and checks the digest; only a scan needs the rest.
`end` is one byte that is not zero: so a segment's last byte that is not zero is the end of its last body.

This module knows bytes. Damage to a body is its timer's matter alone, never torn or corrupt in recover.py's sense.
"""

import re
import struct
import zlib
from typing import Final, NamedTuple

from xxhash import xxh3_128_digest

from timerd.engine.timer import BodyRef

VERSION: Final = 1
MAGIC: Final = b"timerdBD"
MARKER: Final = b"\xf7TB\xb1"
END: Final = b"\xb1"
FILE_HEADER_BYTES: Final = 24
FRAME_HEADER: Final = struct.Struct("<4sIIH2x16s")
HEAD_BYTES_MAX: Final = FRAME_HEADER.size + 0xFFFF  # of a frame up to its payload
PAYLOAD_BYTES_MAX: Final = 64 << 20
_CHECKED_FROM: Final = 8
_HEAD: Final = struct.Struct("<4sI")
_REST: Final = struct.Struct("<IH2x16s")
_FILE_HEAD: Final = struct.Struct("<8sI")
_FILE_REST: Final = struct.Struct("<IQ")
_NAME: Final = re.compile(r"(\d{12})\.bodies")

assert _FILE_HEAD.size + _FILE_REST.size == FILE_HEADER_BYTES


class BodyHead(NamedTuple):
    """The head of one body frame; offsets are in its file."""

    id: str
    digest: bytes
    offset: int
    """Where the payload begins."""
    length: int
    """Of the payload."""

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.offset + self.length + len(END)


def name_of(number: int) -> str:
    """The file name of a body segment; names sort like numbers."""
    return f"{number:012}.bodies"


def number_of(name: str) -> int | None:
    """The number in a body segment's file name, or None for another kind of file."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def digest_of(payload: bytes) -> bytes:
    """What a `BodyRef` holds and a read is checked against."""
    return xxh3_128_digest(payload)


def encode_file_header(number: int) -> bytes:
    """The first bytes of a body segment."""
    rest = _FILE_REST.pack(VERSION, number)
    return _FILE_HEAD.pack(MAGIC, zlib.crc32(rest)) + rest


def encode(id: str, payload: bytes, digest: bytes) -> bytes:
    """One body frame."""
    assert len(payload) <= PAYLOAD_BYTES_MAX
    name = id.encode()
    rest = _REST.pack(len(payload), len(name), digest) + name
    return b"".join((_HEAD.pack(MARKER, zlib.crc32(rest)), rest, payload, END))


def read_head(data: bytes, at: int, base: int) -> BodyHead | None:
    """The head of the body frame at `at` of `data`, which is a file from `base` on; None unless it is whole.

    The payload need not be in `data`.
    """
    start = at + FRAME_HEADER.size
    if start > len(data):
        return None
    marker, checksum, length, id_length, digest = FRAME_HEADER.unpack_from(data, at)
    offset = start + id_length
    if marker != MARKER or length > PAYLOAD_BYTES_MAX or offset > len(data):
        return None
    if zlib.crc32(memoryview(data)[at + _CHECKED_FROM : offset]) != checksum:
        return None
    return BodyHead(data[start:offset].decode(errors="replace"), digest, base + offset, length)


def ref_of(number: int, head: BodyHead) -> BodyRef:
    """What a timer holds of this body."""
    return BodyRef(number, head.offset, head.length, head.digest)
