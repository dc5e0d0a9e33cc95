"""Damage a small log in every place: no acknowledged record may be missing without a word.

Whatever one does to one place of the files, a start gives all acknowledged records, or refuses with CorruptLog; or,
only where it can't be told from a torn last write, all but the last write. A log that was stopped cleanly has no last
write in doubt, so there damage to a frame is always refused.
"""

import asyncio
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import structlog

from tests.sim.disk import FakeDisk
from tests.storage.laid import HOME, armed, fired, open_on, plain
from timerd.engine.errors import CorruptLog
from timerd.ports import Frame
from timerd_storage import frame, segment
from timerd_storage.segment import HEADER_BYTES

SEGMENT = 8192  # the smallest that holds a header and a page of frames
SEED = 11
Warnings = list[MutableMapping[str, Any]]


class Small(NamedTuple):
    """A log of a few appends, as its files lie on disk after the process was killed or stopped."""

    files: dict[Path, bytes]
    writes: list[list[Frame]]
    """Each append's frames; all acknowledged."""


async def small(appends: int, *, segments: int = 1, closed: bool = False) -> Small:
    """Appends of one to three frames, the last with re-arms; in as many segments."""
    disk = FakeDisk()
    writes: list[list[Frame]] = []

    following = dict.fromkeys(range(3), 1)
    log, _ = await open_on(disk, SEGMENT)
    for index in range(appends):
        last = index == appends - 1
        count = 1 if segments == 1 else 40
        writes.append([fired(0, index, 3)] if last else [armed(s, index, count) for s in range(1 + index % 3)])
        writes[-1] = [Frame(each.shard, following[each.shard], each.records) for each in writes[-1]]
        for each in writes[-1]:
            following[each.shard] += 1
        await log.append(writes[-1])
    await asyncio.sleep(0)  # a spare is made
    if closed:
        await log.close()
    paths = [HOME / name for name in sorted(disk.list_directory(HOME)) if segment.number_of(name)]
    return Small({path: disk.content(path) for path in paths}, writes)


def lay(files: dict[Path, bytes]) -> FakeDisk:
    """A disk that holds these files."""
    disk = FakeDisk()
    for path, content in files.items():
        handle = disk.open(path, create=True)
        disk.write(handle, 0, content)
        disk.sync(handle)
    disk.sync_directory(HOME)
    return disk


async def start(files: dict[Path, bytes]) -> tuple[list[Frame], Warnings]:
    """What a start finds in these files, and what it warns of. A second start must find the same, with no warning."""

    disk = lay(files)
    with structlog.testing.capture_logs() as first:
        log, found = await open_on(disk, SEGMENT)
    await log.close()
    disk.crash(Random(SEED))
    with structlog.testing.capture_logs() as second:
        log, again = await open_on(disk, SEGMENT)
    await log.close()
    assert plain(again) == plain(found)
    assert second == []
    return found, first


def flat(writes: list[list[Frame]]) -> list[object]:
    return list(plain([each for write in writes for each in write]))


class Verdicts:
    """Counts what became of each damaged copy, and knows what may."""

    def __init__(self, log: Small, last_in_doubt: bool = True) -> None:
        self.log = log
        self.last_in_doubt = last_in_doubt
        self.whole = self.corrupt = self.short = 0

    async def judge(self, files: dict[Path, bytes], what: str) -> None:
        try:
            found, warnings = await start(files)
        except CorruptLog as error:
            self.corrupt += "timerd log inspect" in str(error)
            return
        everything = flat(self.log.writes)
        if plain(found) == everything:
            self.whole += 1
            return
        # A group's frames are each recovered whole or not at all, so a part of the last write may be there.
        known = flat(self.log.writes[:-1])
        assert self.last_in_doubt, f"{what}: the log was stopped cleanly, and {len(found)} frames are left"
        assert len(found) >= len(known), f"{what}: {len(found)} frames are left of {len(everything)}"
        assert plain(found) == everything[: len(found)], what
        assert len(warnings) <= 1, what
        self.short += 1


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def zero(content: bytes, at: int, length: int) -> bytes:
    length = min(length, len(content) - at)
    return content[:at] + bytes(length) + content[at + length :]


DAMAGES: dict[str, tuple[Callable[[bytes, int], bytes], int]] = {
    "flip": (flip, 1),
    "bit": (lambda content, at: content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :], 1),
    "cut": (lambda content, at: content[:at], 1),
    "zeros from here": (lambda content, at: zero(content, at, len(content)), 1),
    "sector": (lambda content, at: zero(content, at, 512), 512),
    "sector, anywhere": (lambda content, at: zero(content, at, 512), 1),
    "page": (lambda content, at: zero(content, at, 4096), 4096),
    "page, anywhere": (lambda content, at: zero(content, at, 4096), 1),
}


def places(content: bytes, step: int) -> Iterator[int]:
    """Every byte that has something to say: the header, the marks, the frames, and a little of the filler."""
    end = len(content.rstrip(b"\0")) + 60
    for at in range(0, min(end, len(content)), step):
        if step > 1 or at < 40 or 505 <= at < 540 or 1015 <= at < 1050 or at >= HEADER_BYTES - 8:
            yield at


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("closed", [False, True], ids=["killed", "stopped"])
async def test_damage_at_every_byte_of_one_segment(damage: str, closed: bool) -> None:
    log = await small(5, closed=closed)
    verdicts = Verdicts(log, last_in_doubt=not closed)
    path = next(iter(log.files))
    change, step = DAMAGES[damage]
    for at in places(log.files[path], step):
        await verdicts.judge({**log.files, path: change(log.files[path], at)}, f"{damage} at {at}")
    assert verdicts.corrupt > 0


@pytest.mark.parametrize("damage", ["flip", "sector", "page"])
async def test_damage_anywhere_in_several_segments(damage: str) -> None:
    log = await small(9, segments=4)
    opened = [path for path, content in log.files.items() if segment.decode_header(content[:4096], _number(path))]
    assert len(opened) >= 3
    verdicts = Verdicts(log)
    change, step = DAMAGES[damage]
    random = Random(SEED)
    for path in opened:
        content = log.files[path]
        end = len(content.rstrip(b"\0"))
        for at in range(0, end, step) if step > 1 else sorted(random.sample(range(end), 60)):
            await verdicts.judge({**log.files, path: change(content, at)}, f"{damage} at {at} of {path.name}")
    assert verdicts.corrupt > verdicts.short


async def test_no_segment_can_go_missing_but_the_oldest_and_a_spare() -> None:
    log = await small(9, segments=4)
    paths = list(log.files)
    for path in paths[1:-1]:
        with pytest.raises(CorruptLog):
            await start({other: content for other, content in log.files.items() if other != path})
    found, _ = await start({path: log.files[path] for path in paths[:-1]})
    assert plain(found) == flat(log.writes)


LOSSES: dict[str, Callable[[bytes], bytes | None]] = {
    "emptied": lambda _: b"",
    "cut short": lambda content: content[:100],
    "zeroed": lambda content: bytes(len(content)),
    "first page zeroed, nothing behind it": lambda content: bytes(HEADER_BYTES),
    "gone": lambda _: None,
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("spares", [False, True], ids=["without its spares", "with its spares"])
@pytest.mark.parametrize("closed", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize("segments", [2, 4])
async def test_the_last_segment_can_not_be_lost_without_a_word(
    loss: str, spares: bool, closed: bool, segments: int
) -> None:
    log = await small(9 if segments > 2 else 4, segments=segments, closed=closed)
    opened = [path for path, content in log.files.items() if segment.decode_header(content[:4096], _number(path))]
    assert len(opened) >= 2
    files = {path: content for path, content in log.files.items() if path in opened or spares}
    lost = LOSSES[loss](files.pop(opened[-1]))
    if lost is not None:
        files[opened[-1]] = lost
    with pytest.raises(CorruptLog, match=r"timerd log inspect") as caught:
        await start(files)
    assert Path(caught.value.path) == opened[-1] or (loss == "gone" and spares)


async def test_a_crash_before_the_segment_before_is_told_of_its_next_leaves_a_log_that_starts() -> None:
    log = await small(9, segments=4)
    opened = [path for path, content in log.files.items() if segment.decode_header(content[:4096], _number(path))]
    last, before = opened[-1], opened[-2]
    page = log.files[last][:HEADER_BYTES]
    header = segment.decode_header(page, _number(last))
    assert header is not None
    no_next = log.files[before][: segment.NEXT_OFFSET] + bytes(2560) + log.files[before][HEADER_BYTES:]
    just_opened = segment.encode_header(header.number, header.first) + bytes(SEGMENT - HEADER_BYTES)
    for following in (bytes(16), segment.encode_next(_number(before))[:7] + bytes(9)):
        told = no_next[: segment.NEXT_OFFSET] + following + no_next[segment.NEXT_OFFSET + 16 :]
        disk = lay({**log.files, before: told, last: just_opened})
        reopened, found = await open_on(disk, SEGMENT)
        assert plain(found) == flat(log.writes)[: len(found)]
        await reopened.append([armed(9, 1)])
        disk.crash(Random(SEED))
        files = {path: disk.content(path) for path in log.files}
        with pytest.raises(CorruptLog):
            await start({**files, last: b""})


async def test_a_frame_with_re_arms_is_recovered_whole_or_not_at_all() -> None:
    log = await small(4)
    path = next(iter(log.files))
    content = log.files[path]
    end = len(content.rstrip(b"\0"))
    begin = content.rfind(frame.MARKER)
    before, everything = flat(log.writes[:-1]), flat(log.writes)
    for at in range(begin, end + 1):
        for damaged in (content[:at], zero(content, at, len(content)), content[:at] + b"\xff" * 40 + bytes(2000)):
            found, warnings = await start({**log.files, path: damaged})
            assert plain(found) == (everything if at == end else before), at
            assert len(warnings) == (0 if not damaged[at if at == end else begin :].strip(b"\0") else 1), at


@contextmanager
def told(warnings: Warnings, path: Path, offset: int) -> Iterator[None]:
    """Exactly one warning, which names file and offset."""
    yield
    assert [(each["event"], each["file"], each["offset"]) for each in warnings] == [("log_tail_cut", str(path), offset)]


async def test_a_half_written_record_behind_the_last_is_cut_off() -> None:
    log = await small(6)
    path = next(iter(log.files))
    content = log.files[path]
    end = len(content.rstrip(b"\0"))
    valid = content[content.rfind(frame.MARKER) : end]
    earlier = content[content.find(frame.MARKER) :][: len(valid)]
    tails = {
        "half a record": valid[: len(valid) // 2],
        "half an earlier record": earlier[: len(earlier) // 2],
        "one byte": b"\x07",
        "seven random bytes": Random(SEED).randbytes(7),
        "a record with its last byte changed": valid[:-1] + bytes([valid[-1] ^ 1]),
        "a whole record, copied": valid,
        "records to the end of the file": (valid * 100)[: len(content) - end],
    }
    for name, tail in tails.items():
        damaged = content[:end] + tail + content[end + len(tail) :]
        found, warnings = await start({**log.files, path: damaged})
        assert plain(found) == flat(log.writes), name
        with told(warnings, path, end):
            pass


async def test_what_is_written_behind_a_cut_survives() -> None:
    log = await small(6)
    path = next(iter(log.files))
    end = len(log.files[path].rstrip(b"\0"))
    disk = lay(log.files)
    disk.damage(path, end, b"1234567")

    reopened, found = await open_on(disk, SEGMENT)
    following = max(each.lsn for each in found if each.shard == 0) + 1
    more = [armed(0, following + n) for n in range(100)]
    for each in more:
        await reopened.append([each])
    for _ in range(2):
        disk.crash(Random(SEED))
        assert not disk.content(path)[end:].strip(b"\0"), "the tail is gone for good, not only passed over"
        _, again = await open_on(disk, SEGMENT)
        assert plain(again) == plain([*found, *more])


def _number(path: Path) -> int:
    number = segment.number_of(path.name)
    assert number is not None
    return number
