"""Segment files as the disk has them: listing, heads, whole contents. The read side shared by the log and its tools.

Every function is a worker job, or belongs to a tool that has no loop. Nothing here changes a file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timerd_storage import segment
from timerd_storage.disk import Disk
from timerd_storage.recover import FileHead, is_opened, unreadable
from timerd_storage.segment import HEADER_BYTES

LOCK_NAME = "lock"


def heads(disk: Disk, directory: Path) -> list[FileHead]:
    """All segment files of a directory, in the order of their numbers. Raises Unreadable."""
    found = {segment.number_of(name): name for name in disk.list_directory(directory)}
    return [_head(disk, number, directory / found[number]) for number in sorted(n for n in found if n is not None)]


def contents(disk: Disk, path: Path) -> bytes:
    """A whole file. Raises Unreadable."""
    with readable(path):
        file = disk.open(path)
        try:
            return disk.read(file, 0, disk.size(file))
        finally:
            disk.close(file)


def size(disk: Disk, path: Path) -> int:
    """Of a file. Raises Unreadable."""
    with readable(path):
        file = disk.open(path)
        try:
            return disk.size(file)
        finally:
            disk.close(file)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Whatever the system says in here is about this file: a directory or a broken link of its name, too."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) from error


def _head(disk: Disk, number: int, path: Path) -> FileHead:
    with readable(path):
        return _read_head(disk, number, path)


def _read_head(disk: Disk, number: int, path: Path) -> FileHead:
    file = disk.open(path)
    try:
        head = FileHead(number, path, segment.decode_header(disk.read(file, 0, HEADER_BYTES), number), False)
        if is_opened(head):
            return head
        rest = disk.read(file, HEADER_BYTES, max(0, disk.size(file) - HEADER_BYTES))
        return head._replace(empty=rest == bytes(len(rest)))
    finally:
        disk.close(file)
