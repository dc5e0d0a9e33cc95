"""Bodies: payloads that lie apart from their timers, in append-only segments of their own.

A body's place is given at once, in memory; its bytes are written and synced by the next append, before the frames that
may refer to it. Until then it is read from memory. A segment is never written again after a restart: a torn body at
its end, to which no frame refers, stays there and harms nobody.

Room is taken from the file system ahead (`prepare`), so that a granted body can't meet a full disk. A segment that has
reached its size is followed by the next as soon as that has room, and at once when there is no room left in it.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

from timerd.engine.timer import BodyRef
from timerd.ports import Body, BodySegment
from timerd_storage import body
from timerd_storage.body_files import CHUNK_BYTES, BodyFiles, DirtyBodies
from timerd_storage.disk import Disk
from timerd_storage.recover import corrupt
from timerd_storage.worker import Worker


class Bodies:
    """The body segments of one log."""

    def __init__(self, directory: Path, disk: Disk, worker: Worker, segment_bytes: int) -> None:
        self._worker = worker
        self._segment_bytes = segment_bytes
        self._files = BodyFiles(directory, disk)
        self._sizes: dict[int, int] = {}  # of sealed segments, oldest first
        self._sealing: dict[int, int] = {}  # bytes on disk of those that an append is to seal: with their room
        self._number = 0  # of the segment being written; before the first, of the last one there is
        self._cursor = 0  # where its next body goes; 0 before the first
        self._room_end = 0  # its blocks are taken up to here
        self._next_room_end = 0  # of the segment behind it; 0: not prepared
        self._dirty = DirtyBodies()
        self._writing = DirtyBodies()

    async def open(self, numbers: Iterable[int]) -> None:
        """Find what an earlier life left; before any other method."""
        self._sizes = await self._worker.run(self._files.survey, numbers)
        self._number = max(self._sizes, default=0)

    @property
    def full(self) -> bool:
        """Whether the segment being written has reached its size, and no other is prepared."""
        return self._cursor >= self._segment_bytes and not self._next_room_end

    @property
    def room(self) -> int:
        """Bytes for which blocks are taken."""
        if self._next_room_end:
            return self._next_room_end - body.FILE_HEADER_BYTES
        return max(0, self._room_end - self._cursor)

    @property
    def disk_bytes(self) -> int:
        """Bytes on disk, room included."""
        sealed = sum(self._sizes.values()) + sum(self._sealing.values())
        return sealed + max(self._cursor, self._room_end) + self._next_room_end

    @property
    def dirty(self) -> bool:
        """Whether something waits for an append that has not begun."""
        return bool(self._dirty)

    def segments(self) -> list[BodySegment]:
        """All segments, oldest first."""
        found = [BodySegment(number, size, True) for number, size in self._sizes.items()]
        # Until an append has sealed it, not all of it need be on disk: it can't be scanned or dropped.
        found += [BodySegment(number, size, False) for number, size in self._sealing.items()]
        if self._cursor:
            found.append(BodySegment(self._number, max(self._cursor, self._room_end), False))
        return found

    async def prepare(self, length: int) -> None:
        """Take blocks for `length` bytes more; of the next segment, when this one has its size. Raises OSError."""
        behind = not self._cursor or self._cursor >= self._segment_bytes
        number = self._number + behind
        if behind:  # never less than what is given up for it
            end = max(self._next_room_end, body.FILE_HEADER_BYTES + max(length, self._room_end - self._cursor))
            end += length if self._next_room_end else 0
        else:
            end = max(self._cursor, self._room_end) + length
        await self._worker.run(self._files.allocate, number, end)
        if number > self._number:
            self._next_room_end = end
        elif number == self._number:
            self._room_end = max(self._room_end, end)
        elif number in self._sealing:  # it is full meanwhile, and is given this room until it is sealed
            self._sealing[number] = max(self._sealing[number], end)

    def place(self, bodies: Sequence[tuple[str, bytes]]) -> list[BodyRef]:
        """Give each (id, payload) its place; the next append writes them."""
        start = self._cursor
        parts: list[bytes] = []
        if not start or (start >= self._segment_bytes and (self._next_room_end or start >= self._room_end)):
            self._begin()
            start = 0
            parts.append(body.encode_file_header(self._number))
        cursor = start + sum(map(len, parts))
        places = []
        for id, payload in bodies:
            digest = body.digest_of(payload)
            parts.append(body.encode(id, payload, digest))
            cursor += len(parts[-1])
            place = BodyRef(self._number, cursor - len(payload) - len(body.END), len(payload), digest)
            self._dirty.unwritten[place.segment, place.offset] = payload
            places.append(place)
        self._dirty.writes.append((self._number, start, b"".join(parts)))
        self._cursor = cursor
        return places

    def take_dirty(self) -> DirtyBodies:
        """What the append that now begins has to write. `written` follows, unless the log fails."""
        assert not self._writing, "one append at a time"
        self._writing, self._dirty = self._dirty, DirtyBodies()
        return self._writing

    def write(self, dirty: DirtyBodies) -> None:
        """Write and sync. A worker job."""
        self._files.write(dirty)

    def written(self) -> None:
        """What was taken is on disk."""
        for number, size in self._writing.seals:
            del self._sealing[number]
            self._sizes[number] = size
        self._writing = DirtyBodies()

    def check(self, places: Sequence[BodyRef]) -> None:
        """Raise CorruptLog unless every place lies in a file that is there and long enough."""
        for place in places:
            size = self._sizes.get(place.segment)
            end = place.offset + place.length
            path = self._files.path(place.segment)
            if size is None:
                raise corrupt(path, 0, "live timers have their payloads in this file, and it is missing")
            if end > size:
                raise corrupt(path, size, f"the file ends here, and a live payload reaches to {end}")

    async def read(self, places: Sequence[BodyRef]) -> list[bytes | None]:
        """The payloads; None for one that can't be read or isn't what was written."""
        found = [self._unwritten(place) for place in places]
        missing = sorted((i for i, data in enumerate(found) if data is None), key=lambda i: _order(places[i]))
        while missing:
            job, length = [], 0
            while missing and length < CHUNK_BYTES:
                job.append(missing.pop())
                length += places[job[-1]].length
            read = await self._worker.run(self._files.read, [places[index] for index in job])
            for index, data in zip(job, read, strict=True):
                found[index] = data
        return found

    async def scan(self, number: int) -> AsyncIterator[Sequence[Body]]:
        """The bodies of one sealed segment, in chunks. Behind a damaged head it goes on with the next whole one."""
        offset = body.FILE_HEADER_BYTES
        size = self._sizes[number]
        while offset < size:
            found, offset = await self._worker.run(self._files.scan, number, offset, size)
            if found:
                yield found

    async def drop(self, number: int) -> None:
        """Delete a sealed segment."""
        assert number in self._sizes, "only sealed segments are dropped"
        await self._worker.run(self._files.drop, number)
        del self._sizes[number]

    def close(self) -> None:
        """Close the files. A worker job."""
        self._files.close()

    def _begin(self) -> None:
        if self._cursor:
            self._dirty.seals.append((self._number, self._cursor))  # gives the room that is left back
            self._sealing[self._number] = max(self._cursor, self._room_end)
        self._number += 1
        self._room_end, self._next_room_end = self._next_room_end, 0

    def _unwritten(self, place: BodyRef) -> bytes | None:
        key = (place.segment, place.offset)
        payload = self._dirty.unwritten.get(key)
        return self._writing.unwritten.get(key) if payload is None else payload


def _order(place: BodyRef) -> tuple[int, int]:
    return (-place.segment, -place.offset)  # they are taken from the end
