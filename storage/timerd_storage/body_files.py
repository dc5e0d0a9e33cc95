"""Body files: the file work of bodies. Every method is a worker job; nothing here is touched by the loop's thread.

Keeps the most recently used files open, so that a batch of bodies costs a read each and no more.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from timerd.engine.timer import BodyRef
from timerd.ports import Body
from timerd_storage import body
from timerd_storage.disk import NO_DESCRIPTOR, Disk
from timerd_storage.files import readable

CHUNK_BYTES: Final = 1 << 20  # of a scan, and of one read job: an append waits for no more than that
_FILES_MAX: Final = 64  # open at once; a process may have 1,024


@dataclass
class DirtyBodies:
    """What an append has to do for bodies: (segment, offset, bytes) to write, (segment, size) to seal."""

    writes: list[tuple[int, int, bytes]] = field(default_factory=list)
    seals: list[tuple[int, int]] = field(default_factory=list)
    unwritten: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """Payloads by (segment, offset)."""

    def __bool__(self) -> bool:
        return bool(self.writes or self.seals)


class BodyFiles:
    """The files of one directory, by segment number."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._files: dict[int, int] = {}  # the one used last is at the end
        self._new_name = False  # one was made, and the directory isn't synced

    def path(self, number: int) -> Path:
        """Where a segment lies."""
        return self._directory / body.name_of(number)

    def survey(self, numbers: Iterable[int]) -> dict[int, int]:
        """Segment -> size of what an earlier life left, oldest first; unused room is given back. Raises Unreadable."""
        sizes = {}
        for number in sorted(numbers):
            with readable(self.path(number)):
                sizes[number] = self._disk.size(self._file(number))
        # Only the one that was written last and one prepared to follow it can have room left.
        for number in list(sizes)[-2:]:
            sizes[number] = self._give_back(number, sizes[number])
            if not sizes[number]:
                self.drop(number)
                del sizes[number]
        return sizes

    def allocate(self, number: int, end: int) -> None:
        """Take the blocks of a segment up to `end`."""
        file = self._file(number, create=True)
        self._disk.allocate(file, 0, end)
        self._disk.sync(file)

    def write(self, dirty: DirtyBodies) -> None:
        """Write and sync."""
        for number, offset, data in dirty.writes:
            self._disk.write(self._file(number, create=True), offset, data)
        for number, size in dirty.seals:
            self._disk.truncate(self._file(number, create=True), size)
        touched = [number for number, _, _ in dirty.writes] + [number for number, _ in dirty.seals]
        for number in dict.fromkeys(touched):
            self._disk.sync(self._file(number))

    def read(self, places: Sequence[BodyRef]) -> list[bytes | None]:
        """The payloads; None for one that can't be read or isn't what was written."""
        return [self._read(place) for place in places]

    def scan(self, number: int, offset: int, size: int) -> tuple[list[Body], int]:
        """The bodies from `offset` on, about `CHUNK_BYTES` of them, and where to go on.

        What can't be read is not among them: it stays where it is, and costs the process nothing.
        """
        try:
            return self._scan(number, offset, size)
        except OSError:
            return [], min(offset + CHUNK_BYTES, size)

    def drop(self, number: int) -> None:
        """Delete a segment."""
        file = self._files.pop(number, None)
        if file is not None:
            self._disk.close(file)
        self._disk.unlink(self.path(number))
        self._disk.sync_directory(self._directory)

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            self._disk.close(file)
        self._files.clear()

    def _scan(self, number: int, offset: int, size: int) -> tuple[list[Body], int]:
        file = self._file(number)
        data = self._disk.read(file, offset, min(CHUNK_BYTES, size - offset))
        found: list[Body] = []
        at = 0
        while at < len(data):
            head = body.read_head(data, at, offset)
            if head is None:
                # Damage, or a head that goes on behind this chunk: the next round begins with it. A marker that has
                # no head behind it even then is skipped.
                if at and len(data) - at < body.HEAD_BYTES_MAX and offset + len(data) < size:
                    break
                at = _next_marker(data, at)
                continue
            if head.end - offset > len(data):
                if at:
                    break
                data = self._disk.read(file, offset, head.end - offset)
            payload = data[head.offset - offset : head.offset - offset + head.length]
            whole = len(payload) == head.length and body.digest_of(payload) == head.digest
            found.append(Body(head.id, body.ref_of(number, head), payload if whole else None))
            at = head.end - offset
        return found, offset + at

    def _read(self, place: BodyRef) -> bytes | None:
        # What can't be read costs its timer, not the process: the caller buries it.
        with suppress(OSError):
            data = self._disk.read(self._file(place.segment), place.offset, place.length)
            if len(data) == place.length and body.digest_of(data) == place.digest:
                return data
        return None

    def _file(self, number: int, *, create: bool = False) -> int:
        file = self._files.pop(number, None)
        if file is None:
            if len(self._files) >= _FILES_MAX:
                self._disk.close(self._files.pop(next(iter(self._files))))
            file = self._open(number, create)
        self._files[number] = file
        if create and self._new_name:
            self._disk.sync_directory(self._directory)
            self._new_name = False
        return file

    def _open(self, number: int, create: bool) -> int:
        while True:
            try:
                return self._disk.open(self.path(number))
            except FileNotFoundError:
                if not create:
                    raise
                file = self._disk.open(self.path(number), create=True)
                self._new_name = True
                return file
            except OSError as error:
                # Want of descriptors must not look like damage: those kept for speed are given up first.
                if error.errno not in NO_DESCRIPTOR or not self._files:
                    raise
                self._disk.close(self._files.pop(next(iter(self._files))))

    def _give_back(self, number: int, size: int) -> int:
        """Cut the zeros off a segment's end; a body never ends in one. Returns the new size."""
        with readable(self.path(number)):
            file = self._file(number)
            end = self._used(file, size)
        if end < size:
            self._disk.truncate(file, end)
            self._disk.sync(file)
        return end

    def _used(self, file: int, size: int) -> int:
        end = size
        while end:
            start = max(0, end - CHUNK_BYTES)
            used = len(self._disk.read(file, start, end - start).rstrip(b"\0"))
            if used:
                return start + used
            end = start
        return 0


def _next_marker(data: bytes, at: int) -> int:
    found = data.find(body.MARKER, at + 1)
    # A marker may straddle the chunk's end.
    return found if found != -1 else max(at + 1, len(data) - len(body.MARKER) + 1)
