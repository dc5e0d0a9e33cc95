"""One segment of the log as its writer knows it, and the file work on it.

The fields belong to the loop's thread. The methods that take a disk are worker jobs: they read the fields, which
nobody changes while a job is under way, and change none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from timerd_storage import frame, segment
from timerd_storage.disk import Disk
from timerd_storage.segment import HEADER_BYTES, MARK_OFFSETS


class EncodedFrame(NamedTuple):
    """A frame on its way: all but its place."""

    shard: int
    lsn: int
    payload: bytes

    @property
    def length(self) -> int:
        """Bytes that it takes in a segment."""
        return frame.OVERHEAD_BYTES + len(self.payload)


@dataclass(slots=True)
class SegmentFile:
    """A segment that has a header, or is about to get one."""

    number: int
    path: Path
    first: int
    end: int
    """Exclusive: the log position of the next frame."""
    size: int
    """Of the file, filler included."""
    file: int | None = None
    """Open only while it is the one being written."""
    turn: int = 0
    """Which of the two marks the next append writes."""
    last_lsns: dict[int, int] = field(default_factory=dict)

    @property
    def offset(self) -> int:
        """Where the next frame goes in the file."""
        return HEADER_BYTES + self.end - self.first

    @property
    def room(self) -> int:
        """Bytes of frames that it still holds."""
        return self.size - self.offset

    def begin(self, disk: Disk) -> None:
        """Give the file its header. Synced before any frame, so that a file with frames and no header is damage."""
        assert self.file is not None
        disk.write(self.file, 0, segment.encode_header(self.number, self.first))
        disk.sync(self.file)

    def follow(self, disk: Disk) -> None:
        """Say, durably, that the segment behind this one has its header on disk, which it has; before any frame is."""
        file = disk.open(self.path) if self.file is None else self.file
        try:
            disk.write(file, segment.NEXT_OFFSET, segment.encode_next(self.number))
            disk.sync(file)
        finally:
            if self.file is None:
                disk.close(file)

    def write(self, disk: Disk, frames: Sequence[EncodedFrame]) -> None:
        """Write the frames behind one another, with one sync."""
        assert self.file is not None
        position = self.end
        parts: list[bytes] = []
        for each in frames:
            head = frame.encode_head(each.shard, each.lsn, position, self.end, each.payload)
            parts += (head, each.payload, frame.END)
            position += each.length
        disk.write(self.file, self.offset, b"".join(parts))
        # Under the same sync, so that it costs no wait: what was on disk before this append.
        self._mark(disk, self.file)

    def finish(self, disk: Disk) -> None:
        """Mark the end as on disk, which it is. After this even damage to the last frame is known to be damage."""
        assert self.file is not None
        self._mark(disk, self.file)

    def cut(self, disk: Disk, used: int) -> None:
        """Put zeros from the end up to the file offset `used`, so that what lies there can't be read later.

        Not synced: that is done before anything is appended, with what was replayed.
        """
        file = disk.open(self.path)
        try:
            disk.write(file, self.offset, bytes(used - self.offset))
        finally:
            disk.close(file)

    def delete(self, disk: Disk) -> None:
        """Delete the file, durably."""
        disk.unlink(self.path)
        disk.sync_directory(self.path.parent)

    def _mark(self, disk: Disk, file: int) -> None:
        disk.write(file, MARK_OFFSETS[self.turn], segment.encode_mark(self.number, self.end))
        disk.sync(file)
