"""The log in files: the conformance suite on a real disk and on one that crashes, and what is its own."""

import asyncio
import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.sim.disk import FakeDisk, InlineWorker, ProcessEnded
from tests.storage.laid import HOME, append_all, armed, open_on, plain
from tests.storage.log_conformance import Home, LogConformance, replayed
from timerd.engine.errors import DirectoryLocked, LogFailed
from timerd.ports import Log
from timerd_storage.disk import OsDisk
from timerd_storage.file_log import SEGMENT_BYTES, FileLog
from timerd_storage.worker import ThreadWorker


class RealHome:
    """A directory of this machine. A restart closes the log first, since its lock would outlive it here."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._worker: ThreadWorker | None = None
        self._log: FileLog | None = None

    async def open(self) -> Log:
        self._worker = ThreadWorker()
        self._log = await FileLog.open(self._directory, OsDisk(), self._worker, 16_384)
        return self._log

    async def restart(self) -> Log:
        assert self._log is not None
        assert self._worker is not None
        await self._log.close()
        await self._worker.close()
        return await self.open()


class CrashingHome:
    """A fake disk. A restart pulls the plug."""

    def __init__(self) -> None:
        self.disk = FakeDisk()
        self._random = Random(1)

    async def open(self) -> Log:
        return await FileLog.open(HOME, self.disk, InlineWorker(), 16_384)

    async def restart(self) -> Log:
        self.disk.crash(self._random)
        return await self.open()


class TestFileLogOnRealDisk(LogConformance):
    @pytest.fixture
    def home(self, tmp_path: Path) -> Home:
        return RealHome(tmp_path / "data")


class TestFileLogOnCrashingDisk(LogConformance):
    @pytest.fixture
    def home(self) -> Home:
        return CrashingHome()


class Calls:
    """The verbs that a disk was asked for."""

    def __init__(self, disk: FakeDisk) -> None:
        self.made: list[tuple[str, str]] = []
        disk.on_call = lambda verb, path: self.made.append((verb, path.suffix or path.name))


async def test_an_append_is_one_write_and_one_sync_however_many_frames_it_has() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, 1 << 20)
    await asyncio.sleep(0)
    calls = Calls(disk)
    await log.append([armed(shard, 1, 5) for shard in range(8)])
    assert calls.made == [("write", ".log"), ("write", ".log"), ("sync", ".log")], "the second write is the mark"


async def test_bodies_are_synced_before_the_frames_that_may_refer_to_them_are_written() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, 1 << 20)
    await asyncio.sleep(0)
    log.place_bodies(0, [("a", b"a" * 600)])
    calls = Calls(disk)
    await log.append([armed(0, 1)])
    assert calls.made.index(("sync_directory", "data")) < calls.made.index(("sync", ".bodies"))
    assert calls.made.index(("sync", ".bodies")) < calls.made.index(("write", ".log"))


async def test_frames_of_one_append_go_on_in_the_next_segment() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk)
    frames = [armed(0, lsn, 60) for lsn in range(1, 21)]
    await log.append(frames)
    assert log.oldest() is not None
    disk.crash(Random(2))
    log, found = await open_on(disk)
    assert plain(found) == plain(frames)


async def test_a_segment_grows_to_hold_its_frame() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk)
    frames = [armed(0, 1), armed(0, 2, 2000), armed(0, 3)]
    await append_all(log, frames)
    disk.crash(Random(3))
    log, found = await open_on(disk)
    assert plain(found) == plain(frames)
    assert max(len(disk.content(HOME / name)) for name in disk.list_directory(HOME)) > 4 * 16_384


async def test_the_size_of_segments_may_differ_from_start_to_start() -> None:
    disk = FakeDisk()
    frames = [armed(0, lsn, 30) for lsn in range(1, 31)]
    for start, size in enumerate((16_384, 65_536, 8_192)):
        log, found = await open_on(disk, size)
        assert plain(found) == plain(frames[: start * 10])
        await append_all(log, frames[start * 10 : start * 10 + 10])
        await log.close()
    log, found = await open_on(disk)
    assert plain(found) == plain(frames)


@pytest.mark.parametrize(
    ("disk_bytes", "segment_bytes"), [(1 << 40, SEGMENT_BYTES), (8 << 20, 256 << 10), (1 << 20, 64 << 10)]
)
async def test_a_small_file_system_gets_small_segments(disk_bytes: int, segment_bytes: int) -> None:
    log = await FileLog.open(HOME, FakeDisk(disk_bytes), InlineWorker())
    assert log.usage().segment_bytes == segment_bytes


async def test_a_second_log_is_refused_at_once_and_named_the_directory(tmp_path: Path) -> None:
    worker = ThreadWorker()
    log = await FileLog.open(tmp_path, OsDisk(), worker, 65_536)
    await replayed(log)
    with pytest.raises(DirectoryLocked, match=str(tmp_path)):
        await FileLog.open(tmp_path, OsDisk(), worker, 65_536)
    await log.append([armed(0, 1)])
    await log.close()
    log = await FileLog.open(tmp_path, OsDisk(), worker, 65_536)
    assert len(await replayed(log)) == 1
    await log.close()
    await worker.close()


@pytest.mark.parametrize("verb", ["write", "sync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_a_failed_write_or_sync_is_never_tried_again(verb: str, code: int) -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk, 1 << 20)
    await asyncio.sleep(0)
    await log.append([armed(0, 1)])
    disk.fail(verb, code=code)
    with pytest.raises(LogFailed):
        await log.append([armed(0, 2)])
    calls = Calls(disk)
    with pytest.raises(LogFailed):
        await log.append([armed(0, 2)])
    with pytest.raises(LogFailed):
        await log.trim({})
    assert calls.made == []
    await log.close()
    _, found = await open_on(disk)
    assert plain(found)[:1] == plain([armed(0, 1)])


async def test_an_append_that_can_not_have_its_next_segment_fails_the_log() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk)
    await asyncio.sleep(0)

    def on_call(verb: str, path: Path) -> None:
        if verb == "sync" and path.name != "000000000001.log":
            raise OSError(errno.EIO, "planted")

    disk.on_call = on_call

    async def append_on() -> None:
        for lsn in range(1, 1000):
            await log.append([armed(0, lsn, 20)])
            await asyncio.sleep(0)

    with pytest.raises(LogFailed):
        await append_on()


async def test_a_cancelled_append_fails_the_log() -> None:
    class Stuck(InlineWorker):
        stuck = False

        async def run(self, job, *args, **kwargs):  # type: ignore[no-untyped-def]
            if self.stuck:
                await asyncio.Event().wait()
            return await super().run(job, *args, **kwargs)

    worker = Stuck()
    log = await FileLog.open(HOME, FakeDisk(), worker, 1 << 20)
    await replayed(log)
    await asyncio.sleep(0)
    worker.stuck = True
    append = asyncio.create_task(log.append([armed(0, 1)]))
    await asyncio.sleep(0)
    append.cancel()
    with pytest.raises(asyncio.CancelledError):
        await append
    with pytest.raises(LogFailed):
        await log.append([armed(0, 2)])


async def test_spares_of_an_earlier_life_are_taken_over() -> None:
    disk = FakeDisk()
    log, _ = await open_on(disk)
    await asyncio.sleep(0)
    names = sorted(disk.list_directory(HOME))
    for start in range(5):
        disk.crash(Random(start))
        log, _ = await open_on(disk)
        await asyncio.sleep(0)
        assert sorted(disk.list_directory(HOME)) == names
    await append_all(log, [armed(0, lsn, 30) for lsn in range(1, 30)])


async def test_a_spare_whose_name_was_in_the_cache_alone_is_made_durable_before_it_is_used() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # tasks end with their process
    for seed in range(8):
        disk = FakeDisk()
        log, _ = await open_on(disk)
        made = False

        def on_call(verb: str, path: Path) -> None:
            nonlocal made
            made = made or verb == "open"
            if made and verb == "sync_directory":
                raise ProcessEnded

        disk.on_call = on_call
        with suppress(ProcessEnded):
            while not made:
                await asyncio.sleep(0)
        disk.on_call = None
        disk.kill()
        log, _ = await open_on(disk)
        frames = [armed(0, lsn, 30) for lsn in range(1, 13)]
        await append_all(log, frames)
        assert log.oldest() is not None
        assert "000000000003.log" not in disk.list_directory(HOME), "making it would sync the name of the second"
        disk.crash(Random(seed))
        _, found = await open_on(disk)
        assert plain(found) == plain(frames), seed


async def test_an_idle_log_takes_two_segments_at_most() -> None:
    disk = FakeDisk()
    segment_bytes = 65_536
    log, _ = await open_on(disk, segment_bytes)
    for lsn in range(1, 300):
        await log.append([armed(0, lsn, 30)])
        await asyncio.sleep(0)
        await log.trim({0: lsn})
        assert log.usage().frame_bytes <= 2 * segment_bytes, lsn
        assert disk.used <= 2 * segment_bytes, lsn
