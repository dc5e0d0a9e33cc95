"""Room: a full disk refuses arms and nothing else, and forgets nothing when it has room again."""

import asyncio
import errno
from pathlib import Path
from random import Random

import pytest
import structlog

from tests.sim.disk import FakeDisk
from tests.storage.laid import armed, fired, open_on, plain
from timerd.engine.errors import LogFailed
from timerd.ports import Frame
from timerd_storage.file_log import FileLog
from timerd_storage.room import Room

SEGMENT = 16_384
RESERVE = 20_000


async def settle() -> None:
    """Let the filling that is due be done: with a worker that works in place it needs no more than the loop's turns."""
    for _ in range(20):
        await asyncio.sleep(0)


class Clock:
    """The loop's clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)


async def arm_until_refused(log: FileLog, frames: list[Frame], reserve: int = RESERVE) -> None:
    """Arm turn by turn, until there is no room even when there was time to make some."""
    refused = 0
    while refused < 2:
        assert len(frames) < 10_000
        if await log.grant(2000, reserve, 0):
            refused = 0
            frames.append(armed(0, len(frames) + 1, 20))
            await log.append([frames[-1]])
        else:
            refused += 1
        await settle()


def take_the_rest(disk: FakeDisk) -> None:
    """Somebody else fills the disk to the last byte."""
    disk.ballast = disk.limit - disk.used


async def test_a_full_disk_refuses_arms_and_keeps_the_reserve_for_what_ends_timers() -> None:
    disk = FakeDisk(limit=400_000)
    log, _ = await open_on(disk, SEGMENT)
    frames: list[Frame] = []
    await arm_until_refused(log, frames)
    assert frames
    assert not await log.grant(2000, RESERVE, 0)
    take_the_rest(disk)
    assert not log.low()
    spent = 0
    while spent < RESERVE:
        frames.append(fired(0, len(frames) + 1, 10))
        spent += await log.append([frames[-1]])
    assert log.low()
    disk.crash(Random(1))
    disk.ballast = 0
    log, found = await open_on(disk, SEGMENT)
    assert plain(found) == plain(frames)


async def test_arms_are_taken_again_when_space_comes_back_with_no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    disk = FakeDisk(limit=600_000)
    disk.ballast = 300_000
    log, _ = await open_on(disk, SEGMENT)
    frames: list[Frame] = []
    await arm_until_refused(log, frames)
    before = len(frames)
    disk.ballast = 0
    assert not await log.grant(2000, RESERVE, 0), "no attempt so soon after the last"
    clock.now += 0.25
    await log.grant(2000, RESERVE, 0)
    await settle()
    assert not log.low()
    await arm_until_refused(log, frames)
    assert len(frames) > before + 10
    for start in (1, 2):
        disk.crash(Random(start))
        log, found = await open_on(disk, SEGMENT)
        assert plain(found) == plain(frames)


async def test_a_full_disk_is_tried_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    disk = FakeDisk(limit=200_000)
    log, _ = await open_on(disk, SEGMENT)
    await arm_until_refused(log, [])
    tries = 0

    def on_call(verb: str, path: Path) -> None:
        nonlocal tries
        tries += verb == "write"

    disk.on_call = on_call
    for _ in range(1000):
        clock.now += 0.001
        assert not await log.grant(2000, RESERVE, 0)
        await settle()
    assert 3 <= tries <= 6


async def test_trimming_on_a_full_disk_gives_room_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    disk = FakeDisk(limit=300_000)
    log, _ = await open_on(disk, SEGMENT)
    frames: list[Frame] = []
    await arm_until_refused(log, frames)
    assert await log.trim({0: len(frames) - 1}) > 0
    await settle()
    assert await log.grant(2000, RESERVE, 0)


async def test_what_is_granted_counts_until_an_append_that_began_later_has_returned() -> None:
    disk = FakeDisk(limit=300_000)
    log, _ = await open_on(disk, SEGMENT)
    granted = 0
    while granted < 100 and await log.grant(10_000, 0, 0):
        granted += 1
        await settle()
    assert 5 <= granted <= 28
    assert not await log.grant(10_000, 0, 0)
    await log.append([armed(0, 1)])
    assert await log.grant(10_000, 0, 0)


async def test_what_is_granted_and_waits_on_has_its_room_when_others_fill_the_disk() -> None:
    disk = FakeDisk(limit=4_000_000)
    log, _ = await open_on(disk, SEGMENT)
    messages = 200  # more than an append takes with it
    assert await log.grant(1000 * messages, RESERVE, 0)
    spent = 0
    for lsn in range(1, messages + 1):
        spent += await log.append([armed(0, lsn, 22)], 1000 * (messages - lsn))
        await settle()
        take_the_rest(disk)
    assert spent > 1000 * messages * 3 // 4
    assert not log.low()
    assert not log.unsettled()


async def test_what_was_granted_to_one_in_line_leaves_with_no_append_that_begins_before_he_knows() -> None:
    log, _ = await open_on(FakeDisk(), SEGMENT)
    waiting = asyncio.ensure_future(log.grant(100_000, RESERVE, 50_000))
    while not log._supply._handed_frames:
        await asyncio.sleep(0)
    await log.append([armed(0, 1)])
    assert await waiting
    assert log.unsettled(), "it is counted until an append that may have taken it along"
    await log.append([])
    assert not log.unsettled()


async def test_bodies_that_were_granted_meet_no_full_disk() -> None:
    disk = FakeDisk(limit=500_000)
    log, _ = await open_on(disk, SEGMENT)
    lsn = 0
    for _ in range(1000):
        granted = await log.grant(2500, RESERVE)
        await settle()
        if not granted:
            break
        take_the_rest(disk)
        lsn += 1
        [place] = log.place_bodies(0, [(f"id-{lsn}", bytes([lsn % 251]) * 2000)])
        await log.append([armed(0, lsn)])
        disk.ballast = 0
        await settle()
        assert await log.read_bodies([place]) == [bytes([lsn % 251]) * 2000]
    assert 50 < lsn < 1000


async def test_a_burst_is_not_refused_on_a_disk_that_has_plenty() -> None:
    log, _ = await open_on(FakeDisk(), 1 << 20)
    assert all(await asyncio.gather(*(log.grant(10_000, RESERVE) for _ in range(500)))), (
        "at once: nothing is filled yet"
    )


@pytest.mark.parametrize(("arm_bytes", "body_bytes"), [(40_000, 0), (40_000, 40_000), (300_000, 290_000)])
async def test_what_is_granted_lies_in_hand_whoever_fills_the_disk_then(arm_bytes: int, body_bytes: int) -> None:
    disk = FakeDisk(limit=4_000_000)
    log, _ = await open_on(disk, SEGMENT)
    assert await log.grant(arm_bytes, RESERVE, body_bytes), "the first one after a start, as much as it is"
    take_the_rest(disk)
    frames = [armed(0, lsn) for lsn in range(1, max(2, (arm_bytes - body_bytes) // 500))]
    places = log.place_bodies(0, [(f"id-{n}", b"x" * 5000) for n in range(body_bytes // 5000)])
    assert await log.append(frames) <= max(1000, arm_bytes - body_bytes)
    spent, lsn = 0, len(frames)
    while spent < RESERVE:
        lsn += 1
        spent += await log.append([fired(0, lsn, 10)])
    assert None not in await log.read_bodies(places)


async def test_who_waits_for_room_that_others_take_is_refused_and_meets_no_failure() -> None:
    disk = FakeDisk(limit=4_000_000)
    log, _ = await open_on(disk, SEGMENT)
    writes = 0

    def on_call(verb: str, path: Path) -> None:
        nonlocal writes
        writes += verb in ("write", "allocate")
        if writes == 500:
            take_the_rest(disk)

    disk.on_call = on_call
    async with asyncio.timeout(5):
        granted = await asyncio.gather(*(log.grant(10_000, RESERVE, 2_000) for _ in range(100)))
    count = sum(granted)
    assert 0 < count < 100
    assert granted == sorted(granted, reverse=True), "in line"
    log.place_bodies(0, [("a", b"x" * 2_000)] * count)
    await log.append([armed(0, 1)])
    await log.close()


async def test_who_waits_for_room_is_told_when_the_log_closes() -> None:
    log, _ = await open_on(FakeDisk(), SEGMENT)
    waiting = asyncio.gather(*(log.grant(100_000, RESERVE) for _ in range(20)), log.close())
    async with asyncio.timeout(5):
        await waiting
        assert not await log.grant(10_000_000, RESERVE)


async def test_starts_find_the_room_that_they_had_and_make_none_beside_it() -> None:
    disk = FakeDisk(limit=4_000_000)
    used = []
    for life in range(1, 8):
        disk.fail("unlink")
        log, _ = await open_on(disk, SEGMENT)
        assert not log.low()
        assert await log.grant(0, 200_000, 0), "on a full disk as well: blocks that are taken stay so"
        await settle()
        assert disk.used == log.usage().frame_bytes
        used.append(disk.used)
        await log.append([armed(0, life)])
        disk.ballast = disk.limit - disk.used if life < 4 else 0
        disk.crash(Random(life)) if life % 2 else disk.kill()
    assert max(used) <= used[0] + SEGMENT


async def test_who_only_says_what_is_to_be_kept_returns_when_the_rest_has_been_given_back() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, SEGMENT)
    for reserve in (500_000, 100_000, 0):
        assert await log.grant(0, reserve, 0)
        assert disk.used <= 4 * SEGMENT + 3 * reserve


async def test_a_reserve_that_shrinks_while_it_is_being_made_is_made_no_further() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, SEGMENT)
    log.keep(2_000_000)
    while disk.used < 300_000:
        await asyncio.sleep(0)
    assert log.usage().leaving_bytes == 0, "nobody gives it back"
    log.keep(100_000)
    assert log.usage().leaving_bytes > 0
    used = disk.used
    most = 0
    while log.usage().leaving_bytes:
        await asyncio.sleep(0)
        most = max(most, disk.used)
    assert most <= used + SEGMENT // 16
    assert disk.used <= 4 * SEGMENT + 3 * 100_000
    assert not log.low()


async def test_what_is_too_much_is_given_back_before_blocks_for_bodies_are_taken() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, SEGMENT)
    assert await log.grant(0, 500_000, 0)
    done: list[str] = []
    disk.on_call = lambda verb, path: done.append(verb)
    assert await log.grant(600_000, 0, 600_000)
    assert "unlink" in done
    assert "allocate" not in done[: done.index("unlink")]
    assert "allocate" in done


async def test_what_was_made_for_somebody_whom_a_full_disk_refused_goes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)  # it stands still: no attempt to make room follows
    disk = FakeDisk(limit=1_000_000)
    log, _ = await open_on(disk, SEGMENT)
    await log.grant(0, RESERVE, 0)
    before = log.usage().frame_bytes
    disk.on_call = lambda verb, path: take_the_rest(disk) if log.usage().frame_bytes > 400_000 else None
    assert not await log.grant(600_000, RESERVE, 0), "it was there when he asked"
    await settle()
    assert log.usage().frame_bytes <= before + 2 * SEGMENT + RESERVE // 2
    disk.on_call = None
    disk.ballast = 0
    await log.grant(0, 0, 0)
    assert log.usage().frame_bytes <= 4 * SEGMENT, "nor does what is given back wait for the next attempt"


@pytest.mark.parametrize("limit", range(400_000, 400_000 + SEGMENT, SEGMENT // 16))
async def test_a_last_spare_of_any_size_is_given_back_and_those_before_it(limit: int) -> None:
    disk = FakeDisk(limit=limit)
    log, _ = await open_on(disk, SEGMENT)
    assert await log.grant(0, 0, 0)
    assert not await log.grant(600_000, 0, 0)
    await settle()
    assert log.usage().frame_bytes <= 4 * SEGMENT


async def test_a_start_gives_back_the_room_that_nobody_asks_for_any_more() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, SEGMENT)
    assert await log.grant(0, 500_000, 0)
    disk.kill()
    log, _ = await open_on(disk, SEGMENT)
    await settle()
    assert disk.used > 500_000, "until the reserve is known it may be all of this"
    await log.grant(0, 0, 0)
    await settle()
    assert disk.used <= 3 * SEGMENT


async def test_a_disk_too_full_to_begin_with_grants_nothing_and_says_so() -> None:
    disk = FakeDisk(limit=SEGMENT // 2)
    log, _ = await open_on(disk, SEGMENT)
    await settle()
    assert not await log.grant(100, 0)
    assert log.low()
    await log.append([armed(0, 1)])


async def test_a_frame_larger_than_a_spare_finds_room_in_the_other_spares() -> None:
    disk = FakeDisk(limit=300_000)
    log, _ = await open_on(disk, SEGMENT)
    frames: list[Frame] = []
    await arm_until_refused(log, frames, reserve=100_000)
    take_the_rest(disk)
    frames.append(fired(0, len(frames) + 1, 600))
    assert await log.append([frames[-1]]) > SEGMENT
    disk.crash(Random(7))
    disk.ballast = 0
    _, found = await open_on(disk, SEGMENT)
    assert plain(found) == plain(frames)


async def test_a_reserve_that_shrinks_gives_its_space_back_and_does_not_flutter() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, 1 << 16)
    for reserve in (500_000, 1_000_000, 0):
        assert await log.grant(0, reserve, 0)
        await settle()
        assert disk.used <= 2 * (1 << 16) + 3 * reserve
        assert log.usage().frame_bytes == disk.used
    made = 0

    def on_call(verb: str, path: Path) -> None:
        nonlocal made
        made += verb in ("open", "unlink")

    disk.on_call = on_call
    for reserve in (800_000, 700_000, 800_000, 700_000, 750_000) * 5:
        await log.grant(0, reserve, 0)
        await settle()
    assert made <= 30, "those that the first of them took"
    frames = [armed(0, lsn, 30) for lsn in range(1, 60)]
    for frame in frames:
        await log.append([frame])
        await settle()
    disk.crash(Random(5))
    _, found = await open_on(disk, 1 << 16)
    assert plain(found) == plain(frames)


REFUSALS = [("open", errno.EMFILE), ("open", errno.ENFILE), ("sync", errno.EIO), ("write", errno.EIO)]


@pytest.mark.parametrize(("verb", "code"), [*REFUSALS, ("sync_directory", errno.EIO), ("allocate", errno.EINTR)])
async def test_what_the_system_refuses_while_room_is_made_is_met_like_a_full_disk(
    verb: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    disk = FakeDisk()
    log, _ = await open_on(disk, SEGMENT)
    frames: list[Frame] = []
    await log.append(frames)

    def refuse(called: str, path: Path) -> None:
        if called == verb and path.name != "000000000001.log":
            raise OSError(code, "planted")

    disk.on_call = refuse
    places = []
    with structlog.testing.capture_logs() as told:
        for _ in range(5):
            clock.now += 0.25
            await log.grant(100_000, RESERVE)
            await settle()
            assert not await log.grant(100_000, RESERVE), "no room in hand, and none to be had"
            frames.append(armed(0, len(frames) + 1))
            if verb not in ("sync", "write", "sync_directory"):
                places += log.place_bodies(0, [("a", b"a" * 600)]) if verb == "allocate" else []
            await log.append(frames[-1:])
    assert [each["event"] for each in told] == ["log_room_not_made"]
    assert told[0]["errno"] == errno.errorcode[code]
    disk.on_call = None
    clock.now += 0.25
    log.low()
    await settle()
    assert not log.low()
    assert await log.grant(100_000, RESERVE)
    for _ in range(50):
        frames.append(armed(0, len(frames) + 1, 30))
        await log.append(frames[-1:])
        await settle()
    disk.crash(Random(1))
    log, found = await open_on(disk, SEGMENT)
    assert plain(found) == plain(frames)
    assert None not in await log.read_bodies(places)


async def test_a_spare_that_can_not_be_deleted_fails_the_log() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, SEGMENT)
    assert await log.grant(0, 500_000, 0)
    await settle()
    disk.fail("unlink")
    await log.grant(0, 0, 0)
    await settle()
    with pytest.raises(LogFailed):
        await log.append([armed(0, 1)])


def test_room_wanted_covers_reserve_grants_and_what_segments_lose_at_their_ends() -> None:
    room = Room(segment_bytes=1 << 20, piece_bytes=1 << 16)
    idle = room.frames_wanted(0)
    assert idle == (1 << 20) - (2 << 16)
    room.reserve(1000)
    room.grant(500, 100)
    assert room.frames_wanted(0) >= idle + 1500
    assert room.bodies_wanted(50) >= 150
    room.append_begins()
    room.grant(7, 0)
    room.append_returned()
    assert room.frames_wanted(0) == idle + 2 * 1007
