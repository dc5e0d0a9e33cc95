"""Frames as bytes."""

import pytest

from timerd_storage import frame

PAYLOADS = [b"a", b"b" * 100, b"", b"c" * 7]


def laid(first: int = 1000) -> tuple[bytes, list[int]]:
    """Frames behind one another from log position `first` on, and where each ends."""
    data, ends = b"", []
    for lsn, payload in enumerate(PAYLOADS, 1):
        data += frame.encode(3, lsn, first + len(data), first, payload)
        ends.append(len(data))
    return data, ends


def test_a_frame_is_read_as_it_was_written() -> None:
    data = frame.encode(3, 9, 5000, 4000, b"payload")
    found = frame.read(b"xx" + data, 2, 5000)
    assert found == frame.RawFrame(5000, 5000 + len(data), 3, 9, 4000, b"payload")


def test_the_first_bytes_are_as_format_md_says() -> None:
    fields = ["f75446b1", "31cf27c2", "01000000", "01000000", "01000000", "02" + 14 * "0", "03" + 14 * "0", 16 * "0"]
    assert frame.encode(1, 2, 3, 0, b"\x90").hex() == "".join([*fields, "90", "b1"])


def test_a_frame_that_was_copied_elsewhere_does_not_pass() -> None:
    data = frame.encode(3, 9, 5000, 4000, b"payload")
    assert frame.read(data, 0, 5001) is None
    patched = data[:28] + (5001).to_bytes(8, "little") + data[36:]
    assert frame.read(patched, 0, 5001) is None, "the checksum covers the position"


def test_no_flipped_byte_and_no_cut_passes() -> None:
    data = frame.encode(3, 9, 5000, 4000, b"payload")
    for at in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
            assert frame.read(damaged, 0, 5000) is None, at
        assert frame.read(data[:at], 0, 5000) is None, at
        assert frame.read(data[:at] + bytes(len(data) - at), 0, 5000) is None, at


def test_zeros_are_no_frame() -> None:
    assert frame.read(bytes(4096), 0, 0) is None


def test_an_absurd_length_is_refused_before_anything_is_read() -> None:
    head = frame.HEADER.pack(frame.MARKER, 0, frame.PAYLOAD_BYTES_MAX + 1, frame.TURN, 0, 1, 0, 0)
    assert frame.read(head + bytes(100), 0, 0) is None
    with pytest.raises(AssertionError):
        frame.encode(0, 1, 0, 0, bytes(frame.PAYLOAD_BYTES_MAX + 1))


def test_search_finds_the_whole_frames_behind_a_damaged_one() -> None:
    data, ends = laid()
    for at in range(ends[0]):
        damaged = data[:at] + b"\x55" + data[at + 1 :]
        if damaged != data:
            assert [found.lsn for found in frame.search(damaged, 0, 1000)] == [2, 3, 4]
    assert [found.lsn for found in frame.search(data, ends[0], 1000 + ends[0])] == [3, 4]


def test_search_is_not_taken_in_by_markers_in_payloads() -> None:
    payload = frame.MARKER * 1000
    data = b"junk" + frame.encode(0, 5, 104, 0, payload)
    assert [found.lsn for found in frame.search(data, 0, 100)] == [5]
    inner = frame.encode(0, 6, 0, 0, b"not here")
    assert [found.lsn for found in frame.search(b"junk" + frame.encode(0, 5, 104, 0, inner), 0, 100)] == [5]
