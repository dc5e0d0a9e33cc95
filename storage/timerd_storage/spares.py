"""Spares: segment files filled with zeros ahead of their use. They are the log's reserved room.

Zeros on disk are what makes an append cheap (a sync over them changes no metadata) and certain (their blocks are
taken, so nobody who fills the disk can take them away). A file is filled in small pieces, each a worker job, so that
an append never waits for longer than one piece.

Invariants: spares are in the order of their numbers, without holes; all but the last are of full size; `filled`
counts zeros that are on disk, `size` the bytes whose blocks are taken: more than that in a file of an earlier life.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from timerd_storage import segment
from timerd_storage.disk import NO_SPACE, Disk
from timerd_storage.segment import HEADER_BYTES
from timerd_storage.worker import Worker

PIECE_BYTES_MAX: Final = 1 << 20  # written and synced in a few milliseconds
_ZEROS: Final = bytes(PIECE_BYTES_MAX)
AT_ONCE: Final = 16  # that are deleted in one job: each is an unlink and a sync of the directory
_BLOCK: Final = 4096  # a file takes whole blocks, whatever its size


@dataclass
class Spare:
    """A segment to be."""

    number: int
    path: Path
    file: int
    filled: int = 0
    size: int = 0


class Spares:
    """The spares of one log. `number` is the next file's, to be set before the first use."""

    def __init__(self, directory: Path, disk: Disk, worker: Worker, segment_bytes: int) -> None:
        self._directory = directory
        self._disk = disk
        self._worker = worker
        self._segment_bytes = segment_bytes
        self.number = 1
        self._spares: list[Spare] = []
        # One piece at a time; whoever takes a spare waits for the piece under way.
        self._turn = asyncio.Lock()

    @property
    def piece_bytes(self) -> int:
        """How much is filled in one go."""
        return min(PIECE_BYTES_MAX, self._segment_bytes // 16)

    @property
    def room(self) -> int:
        """Bytes of frames for which zeros are on disk."""
        return sum(max(0, spare.filled - HEADER_BYTES) for spare in self._spares)

    @property
    def taken(self) -> int:
        """Bytes of frames that can't meet a full disk any more."""
        return sum(max(0, spare.size - HEADER_BYTES) for spare in self._spares)

    @property
    def last_room(self) -> int:
        """What of that dropping the last spare would cost; 0 when there is none."""
        return max(0, self._spares[-1].size - HEADER_BYTES) if self._spares else 0

    @property
    def disk_bytes(self) -> int:
        """Bytes that the spares take on disk."""
        return sum(spare.size for spare in self._spares)

    async def adopt(self, path: Path) -> None:
        """Take over a spare of an earlier life. Its zeros are written anew: who knows which of them are on disk."""
        file, size = await self._worker.run(_adopt, self._disk, path, self._segment_bytes)
        self._spares.append(Spare(self.number, path, file, size=size))
        self.number += 1

    async def add_piece(self) -> None:
        """One piece more of room. Raises OSError, after which it may be called again."""
        async with self._turn:
            await self._add_piece()

    async def drop_last(self, room: int) -> None:
        """Give back the last spares that have at most so much room together, a few at a time. Raises OSError."""
        async with self._turn:
            count = 0
            for spare in reversed(self._spares[-AT_ONCE:]):
                room -= max(0, spare.size - HEADER_BYTES)
                if room < 0:
                    break
                count += 1
            if count:
                await self._drop(count)

    async def take(self, need: int, usual: int) -> Spare:
        """The next segment's file, with room for a frame of `need` bytes, and of `usual` bytes unless the disk is full.

        Waits while that much is filled, if it isn't yet: who is in a hurry asks for less, and gets a shorter segment
        when filling has fallen behind. Raises OSError with `NO_SPACE` only when dropping the spares behind it has not
        made enough room for `need` either.
        """
        async with self._turn:
            need = -(-(HEADER_BYTES + need) // _BLOCK) * _BLOCK
            while not self._spares or self._spares[0].filled < max(need, usual):
                try:
                    await self._extend_first(max(need, usual))
                except OSError as error:
                    if error.errno not in NO_SPACE:
                        raise
                    if self._spares and self._spares[0].filled >= need:
                        break  # a short segment does
                    if len(self._spares) < 2:
                        raise
                    await self._drop(1)
            return self._spares.pop(0)

    async def _add_piece(self) -> None:
        # The first that is not full: those of an earlier life lie before what would be made beside them.
        spare = next((spare for spare in self._spares if spare.filled < self._segment_bytes), None)
        if spare is None:
            await self._create()
            spare = self._spares[-1]
        await self._fill(spare, min(spare.filled + self.piece_bytes, self._segment_bytes))

    async def _extend_first(self, size: int) -> None:
        if not self._spares:
            await self._create()
        spare = self._spares[0]
        await self._fill(spare, min(spare.filled + self.piece_bytes, size))

    async def _create(self) -> None:
        path = self._directory / segment.name_of(self.number)
        file = await self._worker.run(_create, self._disk, path)
        self._spares.append(Spare(self.number, path, file))
        self.number += 1

    async def _fill(self, spare: Spare, end: int) -> None:
        await self._worker.run(_fill, self._disk, spare.file, spare.filled, end)
        spare.filled = end
        spare.size = max(spare.size, end)

    async def _drop(self, count: int) -> None:
        gone: list[Spare] = []
        try:
            await self._worker.run(_drop, self._disk, self._spares[: -count - 1 : -1], gone)
        finally:
            for spare in gone:
                self._spares.remove(spare)
                self.number -= 1

    def close(self) -> None:
        """Close the files. For a worker job, with no other one under way."""
        for spare in self._spares:
            self._disk.close(spare.file)


def _create(disk: Disk, path: Path) -> int:
    file = disk.open(path, create=True)
    try:
        disk.sync_directory(path.parent)
    except OSError:
        # Leave no file behind that the next attempt would trip over; that one makes, and syncs, the name anew.
        disk.close(file)
        disk.unlink(path)
        raise
    return file


def _adopt(disk: Disk, path: Path, size_max: int) -> tuple[int, int]:
    file = disk.open(path)
    size = disk.size(file)
    if size > size_max:
        disk.truncate(file, size_max)
    return file, min(size, size_max)


def _fill(disk: Disk, file: int, start: int, end: int) -> None:
    size = disk.size(file)  # more than `start` in a spare of an earlier life
    try:
        disk.write(file, start, _ZEROS[: end - start])
        disk.sync(file)
    except OSError:
        # Half a piece is no room, and its blocks need not be on disk. The next attempt writes all of it anew, and so
        # syncs all of it anew: what a failed sync has left out is not taken for done.
        disk.truncate(file, max(start, size))
        raise


def _drop(disk: Disk, spares: list[Spare], gone: list[Spare]) -> None:
    """From the last one on, and each for good before the next: there must be no hole."""
    for spare in spares:
        disk.unlink(spare.path)
        disk.sync_directory(spare.path.parent)
        disk.close(spare.file)
        gone.append(spare)
