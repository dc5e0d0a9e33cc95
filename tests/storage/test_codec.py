"""Records as bytes."""

import pytest

from timerd.engine.move_record import (
    ARM,
    CANCEL,
    PULL,
    Adopted,
    Ceded,
    Drained,
    Entry,
    Left,
    Moved,
    Pended,
    Pending,
    Resolved,
    Seen,
    SlotMove,
)
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
SEEN = Seen(1 << 50, 2, False, PLACE)
REMEMBERED = [(Entry("a", ARM, SEEN, (1 << 50) + 1), True), (Entry("b", CANCEL, Seen(5, 0, True), 0), False)]
PENDING = [Pending("c", PULL, SEEN, "poll", TIMERS[2]), Pending("b", CANCEL, Seen(5, 0, True), "poll", None)]
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
    Ceded(2, 9, [1, 2], 1 << 50),
    Adopted(2, 0, [1, 2], 1 << 50, 7, 8),
    Moved(2, REMEMBERED),
    Pended(2, PENDING, 7, 8),
    Resolved(["c"], ["b"]),
    Drained(2, [1], 1 << 51),
    Left(2, [1]),
    Checkpoint(
        [1, 2],
        [],
        1 << 50,
        2,
        3,
        4,
        {"poll": Totals(armed=3, moved_in=1, moved_out=2)},
        [SlotMove(1, True, 2, 9, REMEMBERED), SlotMove(2, False, 2, 0, [], PENDING)],
    ),
]
TAGS = [*range(1, 12), *range(13, 20), 9]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_each_record_is_read_as_it_was_written(record: Record) -> None:
    assert codec.decode(codec.encode([record])) == [record]


def test_a_record_is_an_array_that_begins_with_its_tag() -> None:
    assert [codec.encode([record])[2] for record in RECORDS] == TAGS
    assert codec.encode([Cancelled(["a"])]) == b"\x91\x92\x02\x91\xa1a"


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x91\x92\x63\x90", b"\x92\x92\x02\x90", b"\x91\x92\x02\x91\xa1\xff"]
)
def test_bytes_that_are_no_records_are_refused(payload: bytes) -> None:
    with pytest.raises(ValueError):
        codec.decode(payload)
