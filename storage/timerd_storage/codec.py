"""Records to bytes and back: the payload of a frame is one msgpack array of records.

Each record is an array whose first element is its tag (see `timerd.engine.record` and FORMAT.md). This module knows
neither frames nor files; what bytes that can't be decoded mean is for recover.py to say.
"""

from collections.abc import Sequence

import msgspec

from timerd.engine.record import Record

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Record])


def encode(records: Sequence[Record]) -> bytes:
    """The payload of the frame that holds these records."""
    return _encoder.encode(records)


def decode(payload: bytes) -> list[Record]:
    """The records of a payload. Raises ValueError for bytes that are no list of known records."""
    # msgspec's own errors are ValueErrors; a str that is not UTF-8 raises UnicodeDecodeError, which is one as well.
    return _decoder.decode(payload)
