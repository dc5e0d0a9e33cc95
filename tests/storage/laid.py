"""Logs laid down for tests: records, frames, and a log on a fake disk, in few words."""

from collections.abc import Sequence
from pathlib import Path

from tests.sim.disk import FakeDisk, InlineWorker
from timerd.engine.record import Armed, Fired, Record
from timerd.engine.timer import Timer
from timerd.ports import Frame
from timerd_storage.file_log import FileLog

FIRE_AT = 1_800_000_000_000
GENERATION = 1 << 50
HOME = Path("/data")


def timers(count: int, seed: int = 0, payload: bytes | None = None) -> list[Timer]:
    return [Timer(FIRE_AT + i, GENERATION + seed * 1000 + i, f"id-{seed}-{i}", "poll", payload) for i in range(count)]


def armed(shard: int, lsn: int, count: int = 1, payload: bytes | None = None) -> Frame:
    """A turn that armed timers; no two alike."""
    return Frame(shard, lsn, [Armed(timers(count, shard * 100_000 + lsn, payload))])


def fired(shard: int, lsn: int, count: int = 2) -> Frame:
    """A turn in which a batch fired and was armed anew."""
    again = timers(count, shard * 100_000 + lsn)
    records: list[Record] = [Fired("poll", [f"gone-{i}" for i in range(count)], again), Armed(timers(1, lsn))]
    return Frame(shard, lsn, records)


async def open_on(disk: FakeDisk, segment_bytes: int = 16_384) -> tuple[FileLog, list[Frame]]:
    """A log on a fake disk, replayed."""
    log = await FileLog.open(HOME, disk, InlineWorker(), segment_bytes)
    return log, [frame async for frame in log.replay()]


async def append_all(log: FileLog, frames: Sequence[Frame]) -> None:
    """One append each."""
    for frame in frames:
        await log.append([frame])


def plain(frames: Sequence[Frame]) -> list[tuple[int, int, list[Record]]]:
    """Frames as values that compare."""
    return [(frame.shard, frame.lsn, list(frame.records)) for frame in frames]
