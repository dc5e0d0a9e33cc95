"""Bodies: what the conformance suite can't see."""

import asyncio
import errno
from pathlib import Path
from random import Random

import pytest

from tests.sim.disk import FakeDisk
from tests.storage.laid import HOME, armed, open_on
from tests.storage.log_conformance import scanned
from timerd.engine.errors import CorruptLog
from timerd.engine.timer import BodyRef
from timerd_storage import body
from timerd_storage.file_log import FileLog

FIRST = HOME / body.name_of(1)


async def laid(disk: FakeDisk, count: int = 5, size: int = 1000) -> tuple[FileLog, list[BodyRef]]:
    """A log with a few bodies, appended."""
    log, _ = await open_on(disk, 1 << 16)
    places = log.place_bodies(0, [(f"id-{n}", bytes([97 + n % 26]) * size) for n in range(count)])
    await log.append([armed(0, 1)])
    return log, places


async def test_a_body_that_was_damaged_reads_as_none_and_scans_as_none() -> None:
    disk = FakeDisk()
    _, places = await laid(disk)
    disk.damage(FIRST, places[2].offset + 10, b"!")
    disk.crash(Random(1))
    log, _ = await open_on(disk)
    assert [data is None for data in await log.read_bodies(places)] == [False, False, True, False, False]
    assert [(each.place, each.data is None) for each in await scanned(log, 1)] == [
        (place, n == 2) for n, place in enumerate(places)
    ]


async def test_a_scan_goes_on_behind_a_damaged_head() -> None:
    disk = FakeDisk()
    _, places = await laid(disk)
    for at in range(places[1].offset + places[1].length + 1, places[2].offset):
        before = disk.content(FIRST)[at : at + 1]
        disk.damage(FIRST, at, bytes([before[0] ^ 1]))
        disk.crash(Random(1))
        log, _ = await open_on(disk)
        assert [each.id for each in await scanned(log, 1)] == ["id-0", "id-1", "id-3", "id-4"], at
        await log.close()
        disk.damage(FIRST, at, before)


async def test_a_scan_comes_in_chunks_of_about_a_mebibyte() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, 8 << 20)
    bodies = [(f"id-{n}", bytes([n]) * 300_000) for n in range(20)] + [("huge", b"h" * 3_000_000)]
    log.place_bodies(0, bodies)
    await log.append([armed(0, 1)])
    disk.crash(Random(1))
    log, _ = await open_on(disk)
    chunks = [chunk async for chunk in log.scan_bodies(1)]
    assert [(each.id, each.data) for chunk in chunks for each in chunk] == bodies
    assert max(sum(each.place.length for each in chunk) for chunk in chunks[:-1]) <= 1 << 20
    assert len(chunks) >= 7


async def test_a_scan_goes_on_behind_what_cannot_be_read() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, 1 << 22)
    places = log.place_bodies(0, [(f"id-{n}", b"x" * 60_000) for n in range(40)])
    await log.append([armed(0, 1)])
    await log.close()
    log, _ = await open_on(disk, 1 << 22)
    disk.fail("read")
    found = [each.place for each in await scanned(log, 1)]
    assert found == places[-len(found) :]
    assert 20 <= len(found) < 30, "a chunk of a mebibyte is skipped, and what lies behind it is found"


async def test_a_start_checks_that_files_are_there_and_long_enough() -> None:
    disk = FakeDisk()
    _, places = await laid(disk)
    disk.crash(Random(1))
    file = disk.open(FIRST)
    disk.truncate(file, places[-1].offset + places[-1].length - 1)
    disk.sync(file)
    log, _ = await open_on(disk)
    await log.check_bodies(places[:-1])
    with pytest.raises(CorruptLog, match="timerd log inspect"):
        await log.check_bodies(places)
    await log.close()
    disk.unlink(FIRST)
    disk.sync_directory(HOME)
    log, _ = await open_on(disk)
    with pytest.raises(CorruptLog, match="missing"):
        await log.check_bodies(places[:1])


async def test_room_that_was_taken_ahead_is_given_back_by_seal_and_by_start() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, 1 << 16)
    assert await log.grant(30_000, 0)
    await asyncio.sleep(0)
    [place] = log.place_bodies(0, [("a", b"a" * 600)])
    await log.append([armed(0, 1)])
    assert len(disk.content(FIRST)) > 30_000
    assert log.usage().body_bytes == len(disk.content(FIRST))
    disk.crash(Random(1))
    log, _ = await open_on(disk, 1 << 16)
    assert len(disk.content(FIRST)) == place.offset + 601
    assert log.usage().body_bytes == place.offset + 601
    assert await log.read_bodies([place]) == [b"a" * 600]


async def test_a_full_segment_counts_with_its_room_and_stays_until_an_append_has_sealed_it() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, 1 << 16)
    assert await log.grant(300_000, 0)
    await asyncio.sleep(0)
    log.place_bodies(0, [("a", b"a" * 100_000)])
    log.place_bodies(0, [("b", b"b" * 100_000)])
    log.place_bodies(0, [("c", b"c" * 100_000)])
    on_disk = sum(len(disk.content(HOME / name)) for name in disk.list_directory(HOME) if body.number_of(name))
    assert on_disk > 300_000
    assert log.usage().body_bytes >= on_disk
    before = log.body_segments()
    assert [each.sealed for each in before] == [False] * len(before)
    await log.append([])
    await asyncio.sleep(0)
    after = log.body_segments()
    assert [each.sealed for each in after[:-1]] == [True] * (len(before) - 1)
    on_disk = sum(len(disk.content(HOME / name)) for name in disk.list_directory(HOME) if body.number_of(name))
    assert log.usage().body_bytes == on_disk


async def test_an_append_of_nothing_touches_no_file_when_only_grants_wait() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, 1 << 20)
    await asyncio.sleep(0)
    assert await log.grant(100, 0, 0)
    await asyncio.sleep(0)
    calls: list[str] = []
    disk.on_call = lambda verb, _: calls.append(verb)
    await log.append([])
    assert not log.unsettled()
    assert calls == []


async def test_the_next_segment_takes_over_no_less_room_than_the_full_one_has_left() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, 1 << 16)
    bodies = log._bodies
    await bodies.prepare(300_000)
    log.place_bodies(0, [("a", b"x" * 70_000)])
    before = bodies.room
    await bodies.prepare(4_096)
    assert bodies.room >= before
    await bodies.prepare(4_096)
    assert bodies.room >= before + 4_096


async def test_a_segment_that_was_prepared_and_never_used_goes_at_the_next_start() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, 1 << 16)
    assert await log.grant(30_000, 0)
    await asyncio.sleep(0)
    assert FIRST.name in disk.list_directory(HOME)
    disk.crash(Random(4))
    log, _ = await open_on(disk, 1 << 16)
    assert log.body_segments() == []
    assert FIRST.name not in disk.list_directory(HOME)


async def test_more_segments_than_may_be_open_at_once_can_be_read() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk)
    places = []
    for lsn in range(1, 101):
        places += log.place_bodies(0, [("a", bytes([lsn]) * 20_000)])
        await log.append([armed(0, lsn)])
    assert len(log.body_segments()) == 100
    found = await log.read_bodies(places)
    assert found == [bytes([lsn]) * 20_000 for lsn in range(1, 101)]
    assert len(disk._handles) < 80


async def test_want_of_descriptors_costs_no_body() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk)
    places = []
    for lsn in range(1, 11):
        places += log.place_bodies(0, [("a", bytes([lsn]) * 20_000)])
        await log.append([armed(0, lsn)])
    disk.crash(Random(1))
    log, _ = await open_on(disk)
    table = len(disk._handles) - 5

    def on_call(verb: str, path: Path) -> None:
        if verb == "open" and len(disk._handles) >= table:
            raise OSError(errno.EMFILE, "planted")

    disk.on_call = on_call
    assert None not in await log.read_bodies(places)


async def test_a_failing_read_costs_a_body_and_not_the_log() -> None:
    disk = FakeDisk()
    log, places = await laid(disk)
    disk.fail("read")
    assert (await log.read_bodies(places)).count(None) == 1
    await log.append([armed(0, 2)])


def test_the_file_and_frame_headers_are_as_format_md_says(tmp_path: Path) -> None:
    assert body.encode_file_header(7).hex() == "74696d6572644244" + "1983b5ea" + "01000000" + "0700000000000000"
    encoded = body.encode("ab", b"payload", bytes(16))
    assert (
        encoded.hex() == "f75442b1" + "06562586" + "07000000" + "0200" + "0000" + "00" * 16 + b"abpayload".hex() + "b1"
    )
