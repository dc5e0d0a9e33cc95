"""A disk that keeps apart what is cached and what is synced, and can crash, fill up and fail.

Fault model:

- A write is in the cache at once, and on disk when `sync` of its file has returned. A new or a deleted name is on disk
  when `sync_directory` has returned.
- `kill()` ends all processes: handles and locks are void, and the cache stays as it is.
- `crash(random)` is a power cut: it ends all processes and decides for everything not synced what became of
  it. Of a file's writes since its last sync, in one of two ways at random: a prefix of them is kept, the last of them
  torn at any byte; or each page of 512 bytes of them is kept or lost by itself, as a device with a cache does. Of the
  names, any subset. A file that no name leads to is gone with its synced bytes.
- `limit` bounds the bytes of all files; `ballast` is what others have taken of it. Writes and allocations that need
  more get ENOSPC, with what still fitted in. Overwriting never does.
- `on_call(verb, path)` is asked before every verb and may raise, or note what happens.

Synced bytes never rot; tests that want damage call `damage`.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import ParamSpec, TypeVar

from timerd_storage.disk import Space

PAGE = 512
P = ParamSpec("P")
T = TypeVar("T")


class _File:
    """An inode: its bytes as processes see them, as the disk has them, and how the two differ."""

    def __init__(self) -> None:
        self.cached = bytearray()
        self.synced = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []  # (offset, data), or (length, None) for a new length


class FakeDisk:
    """Implements `timerd_storage.disk.Disk`."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.limit = limit
        self.ballast = 0
        self.on_call: Callable[[str, Path], None] | None = None
        self.crashes = 0
        self._names: dict[Path, _File] = {}
        self._durable_names: dict[Path, _File] = {}
        self._handles: dict[int, tuple[Path, _File]] = {}
        self._locks: dict[int, Path] = {}
        self._next_handle = 1

    # What tests do

    def kill(self) -> None:
        """kill -9 for every process."""
        self._handles.clear()
        self._locks.clear()

    def crash(self, random: Random) -> None:
        """Pull the plug."""
        self.crashes += 1
        self.kill()
        changed = sorted(p for p in {*self._names, *self._durable_names} if self._durable_of(p) is not self._of(p))
        for path in changed:
            if random.random() < 0.5:
                self._keep_name(path)
        self._names = dict(self._durable_names)
        for path in sorted(self._names):
            _settle(self._names[path], random)

    def damage(self, path: Path, offset: int, data: bytes) -> None:
        """Overwrite bytes behind everybody's back."""
        file = self._names[path]
        for content in (file.cached, file.synced):
            content[offset : offset + len(data)] = data

    def content(self, path: Path) -> bytes:
        """A file as processes see it."""
        return bytes(self._names[path].cached)

    @property
    def used(self) -> int:
        """Bytes in all files."""
        return sum(len(file.cached) for file in self._names.values())

    def fail(self, verb: str, number: int = 1, code: int = errno.EIO) -> None:
        """Let the `number`th call of `verb` from now on raise, and no other."""
        calls = 0

        def on_call(called: str, path: Path) -> None:
            nonlocal calls
            calls += called == verb
            if called == verb and calls == number:
                raise OSError(code, os.strerror(code), str(path))

        self.on_call = on_call

    # The port

    def make_directory(self, path: Path) -> None:
        self._call("make_directory", path)

    def list_directory(self, path: Path) -> list[str]:
        self._call("list_directory", path)
        return [name.name for name in self._names if name.parent == path]

    def open(self, path: Path, *, create: bool = False) -> int:
        self._call("open", path)
        if create and path in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        if create:
            self._names[path] = _File()
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._handle(path, self._names[path])

    def close(self, file: int) -> None:
        del self._handles[file]
        self._locks.pop(file, None)

    def size(self, file: int) -> int:
        return len(self._file("size", file).cached)

    def read(self, file: int, offset: int, length: int) -> bytes:
        return bytes(self._file("read", file).cached[offset : offset + length])

    def write(self, file: int, offset: int, data: bytes) -> None:
        found = self._file("write", file)
        room = len(found.cached) + self._free() - offset
        _apply(found.cached, offset, data[: max(0, room)])
        found.pending.append((offset, data[: max(0, room)]))
        if room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def allocate(self, file: int, offset: int, length: int) -> None:
        found = self._file("allocate", file)
        more = offset + length - len(found.cached)
        if more > self._free():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if more > 0:
            _apply(found.cached, offset + length, None)
            found.pending.append((offset + length, None))

    def truncate(self, file: int, length: int) -> None:
        found = self._file("truncate", file)
        _apply(found.cached, length, None)
        found.pending.append((length, None))

    def sync(self, file: int) -> None:
        found = self._file("sync", file)
        for offset, data in found.pending:
            _apply(found.synced, offset, data)
        found.pending.clear()

    def sync_directory(self, path: Path) -> None:
        self._call("sync_directory", path)
        for name in {*self._names, *self._durable_names}:
            if name.parent == path:
                self._keep_name(name)

    def unlink(self, path: Path) -> None:
        self._call("unlink", path)
        del self._names[path]

    def space(self, path: Path) -> Space:
        return Space(self._free(), self.limit)

    def lock(self, path: Path) -> int:
        self._call("lock", path)
        if path in self._locks.values():
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(path))
        handle = self._handle(path, self._names.setdefault(path, _File()))
        self._locks[handle] = path
        return handle

    def check_lock(self) -> None:
        """Nobody takes lock files away here."""

    def _of(self, path: Path) -> _File | None:
        return self._names.get(path)

    def _durable_of(self, path: Path) -> _File | None:
        return self._durable_names.get(path)

    def _keep_name(self, path: Path) -> None:
        if path in self._names:
            self._durable_names[path] = self._names[path]
        else:
            self._durable_names.pop(path, None)

    def _free(self) -> int:
        return max(0, self.limit - self.ballast - self.used)

    def _handle(self, path: Path, file: _File) -> int:
        self._next_handle += 1
        self._handles[self._next_handle] = (path, file)
        return self._next_handle

    def _file(self, verb: str, handle: int) -> _File:
        if handle not in self._handles:
            raise OSError(errno.EBADF, f"{verb}: its process has ended")
        path, file = self._handles[handle]
        self._call(verb, path)
        return file

    def _call(self, verb: str, path: Path) -> None:
        if self.on_call is not None:
            self.on_call(verb, path)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    """One change of a file: bytes at an offset, or (None) a new length."""
    if data is None:
        del content[offset:]
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is not None:
        content[offset : offset + len(data)] = data


def _settle(file: _File, random: Random) -> None:
    """Decide what became of a file's writes since its last sync."""
    if random.random() < 0.5:
        kept = random.randint(0, len(file.pending))
        for index, (offset, data) in enumerate(file.pending[:kept]):
            torn = data is not None and index == kept - 1 and random.random() < 0.5
            _apply(file.synced, offset, data[: random.randint(0, len(data))] if torn and data is not None else data)
    else:
        for offset, data in file.pending:
            if data is None:
                _apply(file.synced, offset, data)
                continue
            at = offset
            while at < offset + len(data):
                end = min(offset + len(data), at - at % PAGE + PAGE)
                if random.random() < 0.5:
                    _apply(file.synced, at, data[at - offset : end - offset])
                at = end
    file.pending.clear()
    file.cached = bytearray(file.synced)


class ProcessEnded(BaseException):
    """What code of a process meets that a crash has ended."""


class InlineWorker:
    """Does each job in place, when no time is to pass. Implements `timerd_storage.worker.Worker`.

    One a process: after `kill`, or a job that raised `ProcessEnded`, no job of it is done any more.
    """

    def __init__(self) -> None:
        self._alive = True

    def kill(self) -> None:
        self._alive = False

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if not self._alive:
            raise ProcessEnded
        try:
            return job(*args, **kwargs)
        except ProcessEnded:
            self._alive = False
            raise
