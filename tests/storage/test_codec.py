"""Records as bytes."""

import pytest

from timerd.engine.record import (
    Armed,
    Buried,
    Cancelled,
    Checkpoint,
    Closed,
    Fired,
    Owned,
    Purged,
    Record,
    Relocated,
    Retried,
    Revived,
    Totals,
)
from timerd.engine.timer import DEAD, BodyRef, Failure, Timer
from timerd_storage import codec

PLACE = BodyRef(3, 24, 600, bytes(range(16)))
FAILURE = Failure(3, 2, 4000, 100, "connect: refused", True, 1_800_000_000_001)
TIMERS = [
    Timer(1_800_000_000_000, 1 << 50, "a", "poll"),
    Timer(1_800_000_000_000, (1 << 50) + 1, "b/\u00e9", "poll", b'{"n":1}', 1_700_000_000_000),
    Timer(1_800_000_000_000, (1 << 50) + 2, "c", "poll", PLACE, 0, FAILURE, DEAD),
]
RECORDS: list[Record] = [
    Armed(TIMERS),
    Cancelled(["a", "b"]),
    Fired("poll", ["a"], TIMERS[:1], [("gone", ["c"])], 2),
    Retried(["a"], 1000, 50, True, False, "500"),
    Buried(["a"], 1_800_000_000_000, True, True, "timeout"),
    Revived([("a", 1 << 50)]),
    Purged(["a"]),
    Relocated([("a", 1 << 50, PLACE)]),
    Checkpoint([1, 2], TIMERS, 1 << 50, 2, 3, 4, {"poll": Totals(armed=3, dropped={"gone": 1})}),
    Owned(2, 1_800_000_000_000, True),
    Closed(1_800_000_000_000),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_each_record_is_read_as_it_was_written(record: Record) -> None:
    assert codec.decode(codec.encode([record])) == [record]


def test_a_record_is_an_array_that_begins_with_its_tag() -> None:
    assert [codec.encode([record])[2] for record in RECORDS] == list(range(1, 12))
    assert codec.encode([Cancelled(["a"])]) == b"\x91\x92\x02\x91\xa1a"


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x91\x92\x63\x90", b"\x92\x92\x02\x90", b"\x91\x92\x02\x91\xa1\xff"]
)
def test_bytes_that_are_no_records_are_refused(payload: bytes) -> None:
    with pytest.raises(ValueError):
        codec.decode(payload)
