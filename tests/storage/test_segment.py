"""Segment headers and names."""

from timerd_storage import segment
from timerd_storage.segment import Header


def test_a_header_is_read_as_it_was_written() -> None:
    page = segment.encode_header(7, 1234)
    assert len(page) == segment.HEADER_BYTES
    assert segment.decode_header(page, 7) == Header(segment.VERSION, 7, 1234, (1234, 1234))


def test_a_header_of_another_segment_is_none() -> None:
    assert segment.decode_header(segment.encode_header(7, 1234), 8) is None


def test_a_damaged_header_is_none_and_a_damaged_mark_leaves_the_other() -> None:
    page = segment.encode_header(7, 1234)
    for at in range(32):
        damaged = page[:at] + bytes([page[at] ^ 1]) + page[at + 1 :]
        assert segment.decode_header(damaged, 7) is None, at
    for at in range(512, 528):
        damaged = page[:at] + bytes([page[at] ^ 1]) + page[at + 1 :]
        assert segment.decode_header(damaged, 7) == Header(segment.VERSION, 7, 1234, (-1, 1234)), at
    assert segment.decode_header(page[:600], 7) is None
    assert segment.decode_header(bytes(4096), 7) is None


def test_synced_is_the_further_mark() -> None:
    page = bytearray(segment.encode_header(7, 1234))
    page[1024:1040] = segment.encode_mark(7, 5000)
    header = segment.decode_header(bytes(page), 7)
    assert header is not None
    assert header.synced == 5000


def test_next_is_read_when_it_is_whole_and_this_segments_own() -> None:
    page = bytearray(segment.encode_header(7, 1234))

    def following(content: bytes) -> int | None:
        page[segment.NEXT_OFFSET : segment.NEXT_OFFSET + segment.NEXT_BYTES] = content
        header = segment.decode_header(bytes(page), 7)
        assert header is not None
        return header.next

    whole = segment.encode_next(7)
    assert whole.hex() == "6e657874" + whole[4:8].hex() + "0800000000000000"
    assert following(whole) == 8
    assert following(bytes(16)) is None
    assert following(segment.encode_next(6)) is None
    for at in range(16):
        assert following(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]) is None


def test_names_sort_like_numbers_and_come_back() -> None:
    names = [segment.name_of(number) for number in (1, 9, 10, 11, 100, 10**9)]
    assert names == sorted(names)
    assert [segment.number_of(name) for name in names] == [1, 9, 10, 11, 100, 10**9]
    for other in ("lock", "000000000001.bodies", "000000000001.log.broken", "1.log", "catalog.sqlite"):
        assert segment.number_of(other) is None
