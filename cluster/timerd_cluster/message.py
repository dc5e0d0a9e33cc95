"""Messages of a shard's stream: how a turn lies in them, and how a reader puts turns together again.

STREAM.md is the authority on bytes. A turn is one message, or as many parts as it takes, which are messages one right
behind the other; the last part is the end mark. Parts that are not followed by their end are nobody's turn: their
writer died, or lost the shard, between them.

This module knows bytes. It does not know servers, and raises `BadMessage` for what no writer of this version has sent.
"""

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from timerd.engine.record import Record

VERSION: Final = 1
TURN: Final = "Timerd-Turn"
TURN_BYTES_MAX: Final = 64 << 20  # of a turn's records; more is damage
OVERHEAD_BYTES: Final = 140  # of each message: headers, subject, what the server adds
HEAD_BYTES_MAX: Final = 512  # what a message's headers and subject take at most, with the server's own

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Record])


class BadMessage(ValueError):
    """Not what a writer of this version sends."""


class Head(NamedTuple):
    """What a message says of itself."""

    epoch: int
    lsn: int
    writer: str
    """One process's time with the stream: two that try for the same epoch differ in it."""
    segment: int
    part: int
    """From 1."""
    parts: int
    """0, as `part` then: no turn but a renewal, without data; `lsn` is the last turn's."""

    @property
    def is_renewal(self) -> bool:
        """Whether it says no more than that its writer still owned the shard."""
        return self.parts == 0

    @property
    def is_end(self) -> bool:
        """Whether the turn is whole with this one."""
        return self.part == self.parts

    def encode(self, shard: int, data: bytes) -> str:
        """The value of the header `Timerd-Turn`."""
        text = f"{VERSION} {self.epoch} {self.lsn} {self.writer} {self.segment} {self.part}/{self.parts}"
        return f"{text} {_checksum(shard, text, data):08x}"


class Turn(NamedTuple):
    """A whole turn, as it was stored."""

    head: Head
    sequence: int
    """Of its last message."""
    payload: bytes

    @property
    def bytes(self) -> int:
        """About what it takes in the stream."""
        return len(self.payload) + self.head.parts * OVERHEAD_BYTES


def encode(records: Sequence[Record]) -> bytes:
    """The payload of a turn: the same bytes as in a frame of a file."""
    return _encoder.encode(records)


def decode(payload: bytes) -> list[Record]:
    """Raises BadMessage."""
    try:
        return _decoder.decode(payload)
    except ValueError as error:
        raise BadMessage(f"records that this build can't read: {error}") from error


def split(payload: bytes, part_bytes: int) -> list[bytes]:
    """The data of the messages that a turn takes, of at most `part_bytes` each."""
    assert len(payload) <= TURN_BYTES_MAX
    return [payload[at : at + part_bytes] for at in range(0, len(payload), part_bytes)] or [b""]


def read_head(shard: int, value: str | None, data: bytes) -> Head:
    """What a message says, its checksum found right. Raises BadMessage."""
    if value is None:
        raise BadMessage(f"a message without the header {TURN}")
    try:
        text, checksum = value.rsplit(" ", 1)
        version, epoch, lsn, writer, segment, place = text.split(" ")
        if int(version) != VERSION:
            raise BadMessage(f"format version {version}; this build reads version {VERSION}")
        part, parts = place.split("/")
        head = Head(int(epoch), int(lsn), writer, int(segment), int(part), int(parts))
        right = int(checksum, 16) == _checksum(shard, text, data)
    except BadMessage:
        raise
    except ValueError:
        raise BadMessage(f"the header {TURN} makes no sense: {value!r}") from None
    if not right:
        raise BadMessage(f"checksum {checksum} is wrong for turn {lsn} of epoch {epoch}")
    if not 1 <= head.part <= head.parts and not (head.part == head.parts == 0 and not data):
        raise BadMessage(f"part {head.part} of {head.parts}")
    return head


def is_same(value: str | None, ours: Head) -> bool:
    """Whether a message found where ours was to be is ours: the writer and the turn tell, the bytes need not."""
    fields = (value or "").split(" ")
    return fields[1:4] + fields[5:6] == [str(ours.epoch), str(ours.lsn), ours.writer, f"{ours.part}/{ours.parts}"]


class Reader:
    """Puts the turns of one stream together. Feed it every message, in the order of sequences."""

    def __init__(self, shard: int) -> None:
        self.epoch = 0
        self.lsn: int | None = None
        """Of the last whole turn; `epoch` as well."""
        self.sequence = 0
        """Of the last message."""
        self.segment = 0
        self.renewals: Counter[int] = Counter()
        """How many, by segment."""
        self._shard = shard
        self._parts: list[tuple[Head, bytes]] = []
        self._first = True

    @property
    def begun(self) -> bool:
        """Whether it has been fed."""
        return not self._first

    def feed(self, sequence: int, value: str | None, data: bytes) -> Turn | None:
        """The turn that is whole with this message, if one is. Raises BadMessage."""
        if not self._first and sequence != self.sequence + 1:
            raise BadMessage(f"sequence {sequence} follows {self.sequence}: messages between them are gone")
        head = read_head(self._shard, value, data)
        if head.epoch < self.epoch or head.segment < self.segment:
            raise BadMessage(f"epoch {head.epoch}, segment {head.segment} behind {self.epoch}, {self.segment}")
        if head.is_renewal:
            if self.lsn not in (None, head.lsn):
                raise BadMessage(f"a renewal of turn {head.lsn} follows turn {self.lsn}")
            self._parts.clear()
            self._first, self.sequence, self.segment = False, sequence, head.segment
            self.renewals[head.segment] += 1
            return None
        if head.part == 1:
            self._parts.clear()  # of a turn that never got its end
        elif len(self._parts) != head.part - 1 or self._parts[-1][0]._replace(part=head.part) != head:
            raise BadMessage(f"part {head.part} of turn {head.lsn} does not follow part {head.part - 1}")
        self._parts.append((head, data))
        self._first, self.sequence, self.segment = False, sequence, head.segment
        if not head.is_end:
            return None
        if self.lsn is not None and head.lsn != self.lsn + 1:
            raise BadMessage(f"turn {head.lsn} follows turn {self.lsn}")
        self.epoch, self.lsn = head.epoch, head.lsn
        payload = b"".join(data for _, data in self._parts) if head.parts > 1 else data
        self._parts.clear()
        return Turn(head, sequence, payload)


def _checksum(shard: int, text: str, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(f"{shard} {text}".encode()))
