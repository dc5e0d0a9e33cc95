"""Disk: the verbs of files that the log needs, and the operating system's way of doing them.

The verbs are synchronous and are called from worker jobs only (`space` excepted: it reads memory). The log and the
bodies touch files through this port and nothing else, so that a simulator can stand in with a disk that crashes,
fills up and fails. Every verb raises OSError when the disk refuses.

What is promised by the disk: after `sync` has returned, the file's bytes and size survive a power cut; after
`sync_directory`, the names in it do. Before that, any of it may be lost or half there.
"""

import errno
import fcntl
import os
from pathlib import Path
from typing import NamedTuple, Protocol

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})  # what a full disk says, and a full quota


class Space(NamedTuple):
    """Bytes of a file system: what this process may still take, and its whole size."""

    free: int
    total: int


class Disk(Protocol):
    """Files by handle, directories by path."""

    def make_directory(self, path: Path) -> None:
        """Make it, and its parents, unless it is there; durable on return."""
        ...

    def list_directory(self, path: Path) -> list[str]: ...

    def open(self, path: Path, *, create: bool = False) -> int:
        """A handle for reading and writing. With `create`, the file must be new."""
        ...

    def close(self, file: int) -> None: ...

    def size(self, file: int) -> int: ...

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Less than `length` only at the end of the file."""
        ...

    def write(self, file: int, offset: int, data: bytes) -> None:
        """All of `data`, or OSError with some of it written."""
        ...

    def allocate(self, file: int, offset: int, length: int) -> None:
        """Take the blocks now: later writes there can't run out of space. The range reads as zeros where it is new."""
        ...

    def truncate(self, file: int, length: int) -> None: ...

    def sync(self, file: int) -> None:
        """Return when the file's bytes and size are durable."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Return when the names in the directory are durable."""
        ...

    def unlink(self, path: Path) -> None: ...

    def space(self, path: Path) -> Space: ...

    def lock(self, path: Path) -> int:
        """Take the lock file, which dies with its holder. Raises BlockingIOError when another has it."""
        ...


class OsDisk:
    """The disk of this machine. Safe to use from one worker thread and the loop's thread."""

    def make_directory(self, path: Path) -> None:
        if not path.is_dir():
            self.make_directory(path.parent)
            path.mkdir(exist_ok=True)
            self.sync_directory(path.parent)  # else a power cut may take the whole data directory

    def list_directory(self, path: Path) -> list[str]:
        return os.listdir(path)

    def open(self, path: Path, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        return os.open(path, flags | os.O_CREAT | os.O_EXCL if create else flags, 0o640)

    def close(self, file: int) -> None:
        os.close(file)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def read(self, file: int, offset: int, length: int) -> bytes:
        data = os.pread(file, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]  # a read may return less in the middle of a file, too
        while data:
            offset, length = offset + len(data), length - len(data)
            data = os.pread(file, length, offset)
            parts.append(data)
        return b"".join(parts)

    def write(self, file: int, offset: int, data: bytes) -> None:
        written = os.pwrite(file, data, offset)
        while written < len(data):
            written += os.pwrite(file, memoryview(data)[written:], offset + written)

    def allocate(self, file: int, offset: int, length: int) -> None:
        os.posix_fallocate(file, offset, length)

    def truncate(self, file: int, length: int) -> None:
        os.ftruncate(file, length)

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def sync_directory(self, path: Path) -> None:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def space(self, path: Path) -> Space:
        found = os.statvfs(path)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def lock(self, path: Path) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise
        return file
