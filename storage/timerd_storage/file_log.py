"""The log in files: one multiplexed log a directory, appended with one write and one sync a group of turns.

Frames lie in segments (segment.py), bodies in segments of their own (bodies.py); FORMAT.md is the authority on bytes,
recover.py on what they mean after a crash. All file work is jobs for one worker, in order; all state here belongs to
the loop's thread and changes only after the job that makes it true has returned.

Invariants:

1. One append at a time. Nothing counts as appended before its sync has returned.
2. Bodies are on disk before a frame that may refer to them is written.
3. A segment is synced before the next is opened; a header is synced, and then named in the segment before, which is
   synced again, before the first frame behind it is written.
4. A write or sync that failed is never repeated: the log refuses everything afterwards.
5. Files go from the oldest on, each deletion durable before the next.
"""

from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Final

import structlog

from timerd.engine.errors import DirectoryLocked, LogFailed
from timerd.engine.timer import BodyRef
from timerd.ports import Body, BodySegment, Frame, LogUsage, OldestSegment
from timerd_storage import body, codec, files, recover
from timerd_storage.bodies import Bodies
from timerd_storage.body_files import DirtyBodies
from timerd_storage.disk import Disk, Space
from timerd_storage.recover import FileHead, Lsns
from timerd_storage.room import Room
from timerd_storage.segment_file import EncodedFrame, SegmentFile
from timerd_storage.spares import Spares
from timerd_storage.supply import Supply
from timerd_storage.worker import Worker

SEGMENT_BYTES: Final = 16 << 20  # opening one costs two syncs: in one of fifty appends at the top load
SEGMENT_BYTES_MIN: Final = 64 << 10
SEGMENTS_OF_DISK: Final = 32  # a segment is at most this part of the file system, so that a small one has room to turn


class FileLog:
    """Implements `timerd.ports.Log`. Made by `open`."""

    durability = "fsync"
    replicas = 1
    shares_bodies = True
    sync = "always"
    fenced: Collection[int] = ()
    body_answers = 0  # nobody is asked who might not answer

    def __init__(self, directory: Path, disk: Disk, worker: Worker, segment_bytes: int, lock: int) -> None:
        self._directory = directory
        self._disk = disk
        self._worker = worker
        self._segment_bytes = segment_bytes
        self._lock = lock
        self._segments: list[SegmentFile] = []
        self._lsns = Lsns()
        self._spares = Spares(directory, disk, worker, segment_bytes)
        self._bodies = Bodies(directory, disk, worker, segment_bytes)
        self._room = Room(segment_bytes, self._spares.piece_bytes)
        self._supply = Supply(directory, disk, self._spares, self._bodies, self._room, self._rest)
        self._replayed = False
        self.begun = False
        self._busy = False  # an append is under way
        self._closed = False
        self._failure: BaseException | None = None

    @classmethod
    async def open(
        cls, directory: Path | str, disk: Disk, worker: Worker, segment_bytes: int | None = None
    ) -> "FileLog":
        """Lock the directory, made if need be. `disk` and `worker` stay the caller's, to be closed after the log.

        `segment_bytes` may differ from start to start; by default it is 16 MiB, or less on a small file system.
        Raises DirectoryLocked at once when another process has the directory, CorruptLog for a file of bodies that
        can't be read, and OSError.
        """
        directory = Path(directory)
        lock, names, space = await worker.run(_enter, disk, directory)
        if segment_bytes is None:
            segment_bytes = max(SEGMENT_BYTES_MIN, min(SEGMENT_BYTES, space.total // SEGMENTS_OF_DISK))
        log = cls(directory, disk, worker, segment_bytes, lock)
        try:
            await log._bodies.open([number for name in names if (number := body.number_of(name)) is not None])
        except BaseException:
            await log.close()
            raise
        return log

    async def replay(self) -> AsyncIterator[Frame]:
        """All frames still held, in the order in which they were written. Raises CorruptLog, LogFailed.

        At the end of a log with a torn last write the tail is cut off, which is durable when this ends, and one warning
        is logged.
        """
        assert not self._replayed, "a log is replayed once"
        with self._fatal():
            opened, spares = recover.arrange(await self._worker.run(files.heads, self._disk, self._directory))
        self.begun = bool(opened)
        torn = False
        for head, after in zip_longest(opened, opened[1:]):
            assert head.header is not None
            with self._fatal():
                data = await self._worker.run(files.contents, self._disk, head.path)
            ending = recover.read(head.path, data, head.header, after.header if after else None)
            held = SegmentFile(head.number, head.path, head.header.first, ending.position, len(data))
            held.turn = head.header.marks.index(min(head.header.marks))
            self._segments.append(held)
            for raw in ending.frames:
                self._lsns.take(head.path, head.header, raw)
                held.last_lsns[raw.shard] = raw.lsn
                yield Frame(raw.shard, raw.lsn, recover.decode(head.path, head.header, raw))
            if ending.torn:
                torn = True
                with self._fatal():
                    await self._worker.run(held.cut, self._disk, len(data.rstrip(b"\0")))
                structlog.get_logger().warning(
                    "log_tail_cut", file=str(held.path), offset=held.offset, reason=f"torn last write: {ending.torn}"
                )
        with self._fatal():
            await self._begin(spares, torn)
        self._replayed = True
        self._supply.start()

    async def check_bodies(self, places: Sequence[BodyRef]) -> None:
        """After replay: raise CorruptLog unless every live body's file exists and is long enough."""
        self._bodies.check(places)

    async def append(self, frames: Sequence[Frame], waiting_bytes: int = 0) -> int:
        """Write the frames, with one write and one sync for all, and return when they are durable.

        Bodies placed before are durable by then as well; with no frames and no bodies there is no file work. What was
        granted counts as used no longer, but for `waiting_bytes` that later frames will take. Returns the bytes that
        these took. Raises LogFailed, now and ever after; a cancelled append fails the log too,
        since its outcome is not known.
        """
        self._refuse_if_failed()
        with self._fatal():
            self._disk.check_lock()
        assert self._replayed, "replay comes first"
        assert not self._busy, "one append at a time"
        waiting = deque(EncodedFrame(each.shard, each.lsn, codec.encode(each.records)) for each in frames)
        for each in waiting:
            self._lsns.follow(each.shard, each.lsn)
        start = self._segments[-1].end
        dirty = self._bodies.take_dirty()
        self._supply.append_begins(waiting_bytes)
        self._busy = True
        with self._fatal():
            while waiting or dirty:
                part = self._fitting(waiting)
                if waiting and not part:
                    await self._open_next(waiting[0].length, self._segment_bytes // 4)
                    continue
                await self._worker.run(self._write, dirty, part)
                self._note(part)
                dirty = DirtyBodies()
        self._busy = False
        self._bodies.written()
        self._room.append_returned()
        self._supply.refill()
        return self._segments[-1].end - start

    def unsettled(self) -> bool:
        """Whether something was placed or granted that waits for an append: `append([])` settles it.

        Or the directory was lost, which that says. It is asked in each turn, so a process that was stopped meanwhile
        begins no delivery when it goes on.
        """
        return self._bodies.dirty or self._room.granted or self._lost()

    async def grant(self, arm_bytes: int, reserve_bytes: int, body_bytes: int | None = None) -> bool:
        """Whether `arm_bytes` more may be accepted while `reserve_bytes` and one segment stay free.

        `body_bytes` says how much of `arm_bytes` are bodies; without it, any of it may be. What is granted is in hand,
        and counts as used until an append that began afterwards has returned. Waits only while room is made that the
        disk clearly has; a refusal starts an attempt to make some.
        """
        frame_bytes = arm_bytes - (body_bytes or 0)
        return await self._supply.grant(frame_bytes, arm_bytes if body_bytes is None else body_bytes, reserve_bytes)

    def keep(self, reserve_bytes: int) -> None:
        """The reserve is this from now on; what is missing or too much of it is made or given back meanwhile."""
        self._supply.keep(reserve_bytes)

    def low(self) -> bool:
        """Whether appends are living on the reserve: nothing but what ends or shrinks timers should be written."""
        return self._supply.low()

    def place_bodies(self, shard: int, bodies: Sequence[tuple[str, bytes]]) -> list[BodyRef]:
        """Give each (id, payload) its place. They are written and synced by the next append."""
        return self._bodies.place(bodies) if bodies else []

    def is_confirmed(self) -> bool:
        """The directory is locked: nobody else has it."""
        return True

    async def confirm(self) -> bool:
        """The same."""
        return True

    async def is_current(self) -> bool:
        """The same."""
        return True

    def shard_of(self, place: BodyRef) -> int | None:
        """All shards' bodies lie in the same files."""
        return None

    async def read_bodies(self, places: Sequence[BodyRef]) -> list[bytes | None]:
        """The payloads; None for one that can't be read or fails its checksum. Bodies just placed can be read."""
        return await self._bodies.read(places)

    def body_segments(self) -> list[BodySegment]:
        """All body segments, oldest first."""
        return self._bodies.segments()

    def scan_bodies(self, number: int) -> AsyncIterator[Sequence[Body]]:
        """The bodies of one sealed segment, in chunks of about 1 MiB. One with a damaged head is not among them."""
        return self._bodies.scan(number)

    async def drop_bodies(self, number: int) -> None:
        """Delete a body segment in which nothing is live by what is durable. Raises LogFailed."""
        self._refuse_if_failed()
        with self._fatal():
            await self._bodies.drop(number)
        self._supply.space_came_back()

    def oldest(self) -> OldestSegment | None:
        """The oldest segment, unless it is the one being written."""
        return OldestSegment(dict(self._segments[0].last_lsns)) if len(self._segments) > 1 else None

    async def trim(self, needed: Mapping[int, int]) -> int:
        """Delete the oldest segments while each holds only frames before its shards' `needed` lsns. Returns how many.

        A shard that `needed` does not name still needs everything. Raises LogFailed.
        """
        self._refuse_if_failed()
        trimmed = 0
        while len(self._segments) > 1:
            oldest = self._segments[0]
            if any(lsn >= needed.get(shard, 0) for shard, lsn in oldest.last_lsns.items()):
                break
            with self._fatal():
                await self._worker.run(oldest.delete, self._disk)
            del self._segments[0]
            trimmed += 1
        if trimmed:
            self._supply.space_came_back()
        return trimmed

    def usage(self) -> LogUsage:
        """Bytes on disk, by kind, filler included."""
        spare_bytes = self._spares.disk_bytes
        frame_bytes = sum(held.size for held in self._segments) + spare_bytes
        return LogUsage(
            frame_bytes,
            self._bodies.disk_bytes,
            self._segment_bytes,
            spare_bytes,
            self._supply.leaving_bytes,
            self._supply.beyond_bytes,
        )

    async def close(self) -> None:
        """Let go of files and lock; again does nothing. Appends nothing; marks the log's end as on disk, which it is.

        Raises LogFailed when that mark can't be written; nothing is lost by it.
        """
        if self._closed:
            return
        self._closed = True
        await self._supply.stop()
        sound = self._replayed and not self._busy and not self._failure and not self._supply.failure
        self._failure = self._failure or LogFailed("the log is closed")
        with self._fatal():
            await self._worker.run(self._let_go, sound)

    def _lost(self) -> bool:
        try:
            self._disk.check_lock()
        except OSError:
            return True
        return False

    def _rest(self) -> int:
        return self._segments[-1].room if self._segments else 0

    async def _begin(self, spares: Sequence[FileHead], torn: bool) -> None:
        """Make ready for appends. Behind a cut, in a new segment: what comes now never lies where damage was.

        What was replayed may so far be in the system's cache alone, if the process before was killed and the machine
        went on: it is made durable first. Otherwise the next append would claim it to be, and a power cut refute it.
        """
        if self._segments:
            self._segments[-1].file = await self._worker.run(self._disk.open, self._segments[-1].path)
            await self._worker.run(self._disk.sync, self._segments[-1].file)
        if len(self._segments) > 1:  # perhaps it was opened, and the one before not told any more
            await self._worker.run(self._segments[-2].follow, self._disk)
        await self._worker.run(self._disk.sync_directory, self._directory)
        numbers = [held.number + 1 for held in self._segments] + [head.number for head in spares]
        self._spares.number = numbers[len(self._segments) - 1] if self._segments else min(numbers, default=1)
        for head in spares:
            await self._spares.adopt(head.path)
        if torn or not self._segments:
            await self._open_next(0, self._segment_bytes - self._spares.piece_bytes)

    async def _open_next(self, need: int, usual: int) -> None:
        """Go on in a new segment, with room for a frame of `need` bytes. All before it is on disk (invariant 3)."""
        spare = await self._spares.take(need, usual)
        before = self._segments[-1] if self._segments else None
        end = before.end if before else 0
        held = SegmentFile(spare.number, spare.path, end, end, spare.filled, spare.file)
        await self._worker.run(held.begin, self._disk)
        if before:
            await self._worker.run(before.follow, self._disk)
        self._segments.append(held)
        if before and before.file is not None:
            await self._worker.run(self._disk.close, before.file)
            before.file = None

    def _fitting(self, waiting: deque[EncodedFrame]) -> list[EncodedFrame]:
        """Take what the segment being written still holds."""
        room = self._rest()
        part = []
        while waiting and waiting[0].length <= room:
            part.append(waiting.popleft())
            room -= part[-1].length
        return part

    def _write(self, dirty: DirtyBodies, part: Sequence[EncodedFrame]) -> None:
        """A worker job."""
        if dirty:
            self._bodies.write(dirty)
        if part:
            self._segments[-1].write(self._disk, part)

    def _note(self, part: Sequence[EncodedFrame]) -> None:
        """These frames of the segment being written are on disk."""
        held = self._segments[-1]
        for each in part:
            held.last_lsns[each.shard] = each.lsn
            held.end += each.length
        held.turn ^= bool(part)

    def _let_go(self, sound: bool) -> None:
        """A worker job."""
        last = self._segments[-1] if self._segments else None
        try:
            if last and sound:
                last.finish(self._disk)
        finally:
            if last and last.file is not None:
                self._disk.close(last.file)
            self._spares.close()
            self._bodies.close()
            self._disk.close(self._lock)

    def _refuse_if_failed(self) -> None:
        failure = self._failure or self._supply.failure
        if failure:
            raise LogFailed(f"the log failed before: {failure}")

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """Whatever goes wrong in here fails the log for good (invariant 4), a cancellation included."""
        try:
            yield
        except OSError as error:
            self._failure = error
            raise LogFailed(f"{self._directory}: {error}") from error
        except BaseException as error:
            self._failure = error
            raise


def _enter(disk: Disk, directory: Path) -> tuple[int, list[str], Space]:
    disk.make_directory(directory)
    try:
        lock = disk.lock(directory / files.LOCK_NAME)
    except BlockingIOError:
        raise DirectoryLocked(f"another process has the data directory {directory}{_holder(disk, directory)}") from None
    return lock, disk.list_directory(directory), disk.space(directory)


def _holder(disk: Disk, directory: Path) -> str:
    """What the lock file says of who holds it, for people."""
    try:
        said = files.contents(disk, directory / files.LOCK_NAME)
    except (OSError, recover.Unreadable):
        return ""
    return f": {said[:200].decode(errors='replace').strip()}" if said.strip() else ""
