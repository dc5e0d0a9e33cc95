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
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})  # what a full disk says, and a full quota
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})  # what a full table says, the process's or the machine's
_LOST: Final = "another process may have the directory, so this one writes nothing more"
_HELD_DESCRIPTORS: Final = 8  # more than the log opens at once before it closes some


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

    def check_lock(self) -> None:
        """Raise OSError when the lock file that was taken is not at its path any more: somebody deleted or replaced it,
        and another process may have the directory since.
        """
        ...


class OsDisk:
    """The disk of this machine. Safe to use from one worker thread and the loop's thread (`space` alone).

    While a lock is held, connections that take every descriptor can't take those of the log: the directory's is open
    all along, and a few are held back, which are given up one by one when an `open` finds none left, and held again
    with the next `close`. And nothing is changed once the lock file was taken away: a process that was stopped
    meanwhile must not write over what its successor wrote.
    """

    def __init__(self) -> None:
        self._lock = self._directory = -1
        self._path: Path | None = None  # of the directory that is open
        self._locked: tuple[str, int, int] | None = None  # the lock file, its device and inode
        self._held: list[int] = []

    def make_directory(self, path: Path) -> None:
        if not path.is_dir():
            self.make_directory(path.parent)
            path.mkdir(exist_ok=True)
            self.sync_directory(path.parent)  # else a power cut may take the whole data directory

    def list_directory(self, path: Path) -> list[str]:
        return os.listdir(path)

    def open(self, path: Path, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        while True:
            try:
                return os.open(path, flags, 0o640)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not self._held:
                    raise
                os.close(self._held.pop())

    def close(self, file: int) -> None:
        if file == self._lock:
            for each in (*self._held, self._directory):
                os.close(each)
            self._held.clear()
            self._lock = self._directory = -1
            self._path = self._locked = None
        if self._path is not None and len(self._held) < _HELD_DESCRIPTORS:
            os.dup2(self._directory, file, inheritable=False)  # closes it, and nobody else gets its number
            self._held.append(file)
        else:
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
        self.check_lock()
        written = os.pwrite(file, data, offset)
        while written < len(data):
            written += os.pwrite(file, memoryview(data)[written:], offset + written)

    def allocate(self, file: int, offset: int, length: int) -> None:
        self.check_lock()
        os.posix_fallocate(file, offset, length)

    def truncate(self, file: int, length: int) -> None:
        self.check_lock()
        os.ftruncate(file, length)

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def sync_directory(self, path: Path) -> None:
        if path == self._path:
            os.fsync(self._directory)
            return
        directory = _open_directory(path)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def unlink(self, path: Path) -> None:
        self.check_lock()
        path.unlink()

    def space(self, path: Path) -> Space:
        found = os.statvfs(path)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def lock(self, path: Path) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            directory = _open_directory(path.parent)
        except OSError:
            os.close(file)
            raise
        if self._path is not None:  # of another lock that is held: one is enough
            os.close(directory)
            return file
        self._lock, self._directory, self._path = file, directory, path.parent
        found = os.fstat(file)
        self._locked = str(path), found.st_dev, found.st_ino
        with suppress(OSError):  # for people, and a full disk is no reason not to start
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        with suppress(OSError):
            while len(self._held) < _HELD_DESCRIPTORS:
                self._held.append(os.dup(directory))
        return file

    def check_lock(self) -> None:
        if self._locked is None:
            return
        path, device, inode = self._locked
        try:
            found = os.stat(path)
        except FileNotFoundError:
            raise OSError(errno.ESTALE, f"the lock file was taken away; {_LOST}", path) from None
        if (found.st_dev, found.st_ino) != (device, inode):
            raise OSError(errno.ESTALE, f"the lock file was replaced; {_LOST}", path)


def _open_directory(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
