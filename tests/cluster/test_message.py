"""The bytes of a stream's messages, and what a reader makes of any run of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.laid import armed, fired
from timerd_cluster import message
from timerd_cluster.message import BadMessage, Head, Reader
from timerd_storage import codec

SHARD = 3


def sent(head: Head, data: bytes = b"x", shard: int = SHARD) -> tuple[str, bytes]:
    return head.encode(shard, data), data


def turn(lsn: int, parts: int = 1, epoch: int = 1, writer: str = "w", segment: int = 1) -> list[tuple[str, bytes]]:
    return [
        sent(Head(epoch, lsn, writer, segment, part, parts), f"{lsn}.{part};".encode()) for part in range(1, parts + 1)
    ]


def read(messages: list[tuple[str, bytes]], first: int = 1) -> list[tuple[int, int, bytes]]:
    """(lsn, sequence, payload) of the turns that are whole."""
    reader = Reader(SHARD)
    turns = [reader.feed(first + n, value, data) for n, (value, data) in enumerate(messages)]
    return [(each.head.lsn, each.sequence, each.payload) for each in turns if each is not None]


def test_the_payload_is_the_one_of_a_frame_in_a_file() -> None:
    for frame in (armed(0, 1, 3), fired(7, 2), armed(0, 3, 1, b"{}")):
        payload = message.encode(frame.records)
        assert payload == codec.encode(frame.records)
        assert message.decode(payload) == codec.decode(payload)


def test_the_bytes_of_a_message() -> None:
    """An example of STREAM.md."""
    assert Head(3, 1207, "5f2c9a0b11de", 12, 1, 1).encode(4, b"\x90") == "1 3 1207 5f2c9a0b11de 12 1/1 bd0e96ff"


def test_turns_are_read_as_they_were_sent() -> None:
    assert read(turn(7) + turn(8, 3) + turn(9), 41) == [
        (7, 41, b"7.1;"),
        (8, 44, b"8.1;8.2;8.3;"),
        (9, 45, b"9.1;"),
    ]


def renewal(lsn: int, epoch: int = 1, segment: int = 1) -> tuple[str, bytes]:
    return sent(Head(epoch, lsn, "w", segment, 0, 0), b"")


def test_renewals_are_no_turns() -> None:
    messages = [renewal(6), *turn(7), renewal(7), renewal(7), *turn(8, 2), renewal(8)]
    assert read(messages, 41) == [(7, 42, b"7.1;"), (8, 46, b"8.1;8.2;")]


def test_parts_without_an_end_are_nobodys_turn() -> None:
    unfinished = turn(2, 3)[:2]
    assert read(turn(1) + unfinished) == [(1, 1, b"1.1;")]
    assert read(turn(1) + unfinished + turn(2, 2, epoch=2, writer="v")) == [(1, 1, b"1.1;"), (2, 5, b"2.1;2.2;")]
    # two that try for the same epoch: the second one's turn has the same number and the same count of parts
    assert read(turn(1) + unfinished + turn(2, 3, writer="v")) == [(1, 1, b"1.1;"), (2, 6, b"2.1;2.2;2.3;")]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=8))
def test_any_run_of_whole_and_broken_groups_reads_as_the_whole_ones(groups: list[tuple[int, int]]) -> None:
    """(parts, how many of them are missing at the end); each group is by another writer."""
    messages, expected, lsn = [], [], 1
    for index, (parts, missing) in enumerate(groups):
        group = turn(lsn, parts, writer=f"w{index}")
        kept = group[: max(0, parts - missing)]
        messages += kept
        if len(kept) == parts:
            expected.append(lsn)
            lsn += 1
    assert [lsn for lsn, _, _ in read(messages)] == expected


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([*turn(1), *turn(3)], "turn 3 follows turn 1"),
        ([*turn(1), *turn(1)], "turn 1 follows turn 1"),
        ([*turn(1), *turn(2, epoch=2), *turn(3, epoch=1)], "epoch 1, segment 1 behind 2, 1"),
        ([*turn(1, segment=2), *turn(2, segment=1)], "epoch 1, segment 1 behind 1, 2"),
        (turn(1, 3)[1:], "part 2 of turn 1 does not follow part 1"),
        ([turn(1, 3)[0], turn(1, 3)[2]], "part 3 of turn 1 does not follow part 2"),
        ([turn(1, 2)[0], turn(1, 2, writer="v")[1]], "part 2 of turn 1 does not follow part 1"),
        ([(turn(1)[0][0], b"other")], "checksum"),
        ([(turn(1)[0][0].replace("1 1 1", "2 1 1"), b"x")], "format version 2; this build reads version 1"),
        ([*turn(1), renewal(2)], "a renewal of turn 2 follows turn 1"),
        ([sent(Head(1, 1, "w", 1, 0, 0), b"x")], "part 0 of 0"),
        ([("nonsense", b"x")], "makes no sense"),
        ([sent(Head(1, 1, "w", 1, 2, 1))], "part 2 of 1"),
        ([sent(Head(1, 1, "w", 1, 1, 1), shard=4)], "checksum"),
    ],
)
def test_what_no_writer_has_sent_is_damage(messages: list[tuple[str, bytes]], said: str) -> None:
    with pytest.raises(BadMessage, match=said):
        read(messages)


def test_a_gap_in_the_sequences_is_damage() -> None:
    reader = Reader(SHARD)
    reader.feed(5, *turn(1)[0])
    with pytest.raises(BadMessage, match="sequence 7 follows 5"):
        reader.feed(7, *turn(2)[0])


@given(st.binary(max_size=400), st.integers(1, 50))
def test_parts_put_together_are_the_payload(payload: bytes, size: int) -> None:
    parts = message.split(payload, size)
    assert b"".join(parts) == payload
    assert all(len(part) <= size for part in parts)
    assert parts[:-1] == [part for part in parts[:-1] if len(part) == size]
