"""End, Torn or Corrupt: each branch by itself."""

from pathlib import Path

import pytest

from timerd.engine.errors import CorruptLog
from timerd_storage import frame, recover, segment
from timerd_storage.recover import FileHead, Lsns
from timerd_storage.segment import HEADER_BYTES, MARK_OFFSETS, Header

PATH = Path("/data/000000000001.log")
FIRST = 700
PAYLOAD = b"\x90"  # no records


class Laid:
    """A segment as bytes: one frame an append, each append's mark and frame saying what was synced before it."""

    def __init__(self, appends: int = 3, filler: int = 500) -> None:
        self.data = bytearray(segment.encode_header(1, FIRST))
        self.positions = [FIRST]
        for lsn in range(1, appends + 1):
            at = self.positions[-1]
            self.data += frame.encode(0, lsn, at, at, PAYLOAD)
            self.mark(at, lsn % 2)
            self.positions.append(FIRST + len(self.data) - HEADER_BYTES)
        self.data += bytes(filler)

    def mark(self, position: int, turn: int) -> None:
        mark = segment.encode_mark(1, position)
        self.data[MARK_OFFSETS[turn] : MARK_OFFSETS[turn] + len(mark)] = mark

    def at(self, index: int) -> int:
        """The file offset at which frame `index` begins."""
        return HEADER_BYTES + self.positions[index] - FIRST

    def read(self, after: Header | None = None) -> recover.Ending:
        header = segment.decode_header(bytes(self.data[:HEADER_BYTES]), 1)
        assert header is not None
        return recover.read(PATH, bytes(self.data), header, after)


def test_end_when_only_zeros_follow() -> None:
    for appends in range(4):
        laid = Laid(appends)
        ending = laid.read()
        assert [raw.lsn for raw in ending.frames] == list(range(1, appends + 1))
        assert (ending.position, ending.torn) == (laid.positions[-1], None)


def test_torn_when_the_last_frame_is_bad_and_nothing_says_that_it_was_synced() -> None:
    laid = Laid()
    laid.data[laid.at(2) + 44] ^= 1
    ending = laid.read()
    assert [raw.lsn for raw in ending.frames] == [1, 2]
    assert ending.position == laid.positions[2]
    assert ending.torn == "a damaged frame"


def test_torn_when_something_lies_behind_the_last_frame() -> None:
    for rubbish in (b"\x01", b"1234567", frame.encode(0, 1, FIRST, FIRST, PAYLOAD)[:20], bytes(10) + b"1"):
        laid = Laid()
        laid.data[laid.at(3) : laid.at(3) + len(rubbish)] = rubbish
        ending = laid.read()
        assert [raw.lsn for raw in ending.frames] == [1, 2, 3]
        assert ending.torn is not None


def test_torn_when_a_later_frame_of_the_same_write_is_whole() -> None:
    laid = Laid(2, filler=0)
    at = laid.positions[-1]
    first = frame.encode(0, 3, at, at, PAYLOAD)
    second = frame.encode(1, 1, at + len(first), at, PAYLOAD)
    laid.data += bytes(len(first)) + second + bytes(100)
    ending = laid.read()
    assert [raw.lsn for raw in ending.frames] == [1, 2]
    assert ending.torn == "zeros before more data"


def test_corrupt_when_a_later_frame_says_that_the_bad_one_was_synced() -> None:
    laid = Laid()
    laid.mark(FIRST, 0)
    laid.mark(FIRST, 1)  # the frames alone prove it
    laid.data[laid.at(1) + 44] ^= 1
    with pytest.raises(CorruptLog, match="timerd log inspect /data") as caught:
        laid.read()
    assert (caught.value.path, caught.value.offset) == (str(PATH), laid.at(1))


def test_corrupt_when_a_mark_says_that_the_missing_end_was_synced() -> None:
    laid = Laid()
    laid.data[laid.at(1) :] = bytes(len(laid.data) - laid.at(1))
    with pytest.raises(CorruptLog):
        laid.read()


def test_a_file_cut_off_reads_like_one_with_zeros_there() -> None:
    laid = Laid()
    del laid.data[laid.at(2) + 7 :]
    assert laid.read().torn == "a damaged frame"
    del laid.data[laid.at(2) :]
    assert laid.read().torn is None
    del laid.data[laid.at(2) - 1 :]
    with pytest.raises(CorruptLog):
        laid.read()


def test_a_sealed_segment_must_end_exactly_where_the_next_begins() -> None:
    laid = Laid()
    end = laid.positions[-1]
    assert len(laid.read(Header(1, 2, end, (end, end))).frames) == 3
    for other in (end + 1, end - 1, laid.positions[2]):
        with pytest.raises(CorruptLog):
            laid.read(Header(1, 2, other, (other, other)))
    laid.data[laid.at(2) + 44] ^= 1
    with pytest.raises(CorruptLog):
        laid.read(Header(1, 2, end, (end, end)))


def test_a_gap_in_a_shards_lsns_is_corrupt() -> None:
    header = Header(1, 1, FIRST, (FIRST, FIRST))
    lsns = Lsns()
    for shard, lsn in ((0, 5), (1, 1), (0, 6), (1, 2)):
        lsns.take(PATH, header, frame.RawFrame(FIRST, FIRST + 45, shard, lsn, FIRST, b""))
    for shard, lsn in ((0, 8), (1, 2), (0, 6)):
        with pytest.raises(CorruptLog):
            lsns.take(PATH, header, frame.RawFrame(FIRST, FIRST + 45, shard, lsn, FIRST, b""))


def test_records_that_make_no_sense_are_corrupt() -> None:
    header = Header(1, 1, FIRST, (FIRST, FIRST))
    for payload in (b"", b"\xc1", b"\x91\x92\x63\x90", b"\x91\xa1x"):
        with pytest.raises(CorruptLog):
            recover.decode(PATH, header, frame.RawFrame(FIRST, FIRST + 45, 0, 1, FIRST, payload))


def head(number: int, first: int | None, empty: bool = True, following: int | None = None) -> FileHead:
    """A segment file with a header for `first`, or without one."""
    header = None if first is None else Header(segment.VERSION, number, first, (first, first), following)
    return FileHead(number, Path(f"/data/{segment.name_of(number)}"), header, empty)


def test_the_log_is_what_has_headers_and_spares_follow() -> None:
    files = [head(4, 0), head(5, 100), head(6, None), head(7, None)]
    assert recover.arrange(files) == (files[:2], files[2:])
    named = [head(4, 0, following=5), head(5, 100), head(6, None)]
    assert recover.arrange(named) == (named[:2], named[2:])
    assert recover.arrange([]) == ([], [])
    assert recover.arrange([head(1, None)]) == ([], [head(1, None)])


NEVER_LEFT = {
    "hole": [head(4, 0), head(6, 100)],
    "last one gone": [head(4, 0), head(5, 100), head(7, None)],
    "no header": [head(4, 0), head(5, None), head(6, 100)],
    "no header, data": [head(4, None, empty=False), head(5, 100)],
    "last without header, data": [head(4, 0), head(5, None, empty=False)],
    "only one, data": [head(1, None, empty=False)],
    "no header at all": [head(1, None), head(2, None)],
    "not the first": [head(2, None)],
    "named, without header": [head(4, 0, following=5), head(5, None), head(6, None)],
    "named, not there": [head(4, 0, following=5)],
}


@pytest.mark.parametrize("case", NEVER_LEFT)
def test_files_that_no_crash_leaves_are_corrupt(case: str) -> None:
    with pytest.raises(CorruptLog):
        recover.arrange(NEVER_LEFT[case])


def test_another_format_version_is_refused_by_name() -> None:
    file = head(1, 0)
    assert file.header is not None
    with pytest.raises(CorruptLog, match="format version 3"):
        recover.arrange([file._replace(header=file.header._replace(version=3))])
