"""References: signing secrets that a type names and does not hold (`env:NAME`, `file:PATH`), read when they are needed.

What is read is used and forgotten: nothing here says, logs or stores it. A file is read by a thread of its own, so
that a disk that hangs hangs nobody else, and what was read counts for `FRESH_S`, so that a thousand deliveries a second
look once. Failures count as long.

Invariants
1. All secrets of a type are there or nothing is: a signature short of one is wrong for whom only that one convinces.
2. Of each path at most one read is under way, of all at most `READS_MAX`; nobody waits for one longer than `READ_S`.
3. Nothing but regular files is opened, and none can make an open wait.
"""

import asyncio
import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from timerd.engine.answer import clip
from timerd.engine.timer import TimerType
from timerd.signing import ENV, FILE, is_reference, secret_fault

FRESH_S: Final = 1.0  # how soon a secret that was replaced is used
READ_S: Final = 5.0  # for what takes microseconds; a disk that needs longer is taken to hang
READS_MAX: Final = 32
FILE_BYTES_MAX: Final = 4_096  # a secret is some fifty


class Unresolved(msgspec.Struct, frozen=True):
    """A secret that is not there, or can't sign."""

    reference: str
    reason: str

    @property
    def error(self) -> str:
        """For whom it keeps waiting. The reason comes first, for a path may be long."""
        return clip(f"not signed, so not sent: {self.reason}: {self.reference}")


class _File:
    """One path, and what was found there last: a secret or a reason why there is none."""

    def __init__(self) -> None:
        self.found: tuple[str | None, str] = (None, "")
        self.fresh_until = 0.0
        self.reading: asyncio.Task[None] | None = None
        self.hangs = False


class References:
    """Of one node."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._files: dict[str, _File] = {}
        self._room = asyncio.Semaphore(READS_MAX)

    async def resolve(self, type: TimerType) -> TimerType | Unresolved:
        """The type with secrets in place of references, to sign with; or the first reference that leads to none."""
        if not names_any(type):
            return type
        secrets = []
        for given in type.signing_secrets:
            secret, reason = (given, "") if not is_reference(given) else await self._find(given)
            if secret is None:
                return Unresolved(given, reason)
            secrets.append(secret)
        return msgspec.structs.replace(type, signing_secrets=tuple(secrets))

    def keep(self, types: Iterable[TimerType]) -> None:
        """Forget the files that none of these names."""
        named = {secret.removeprefix(FILE) for type in types for secret in type.signing_secrets}
        for path in self._files.keys() - named:
            if self._files[path].reading is None:
                del self._files[path]

    def close(self) -> None:
        """Wait for nothing any more."""
        for file in self._files.values():
            if file.reading is not None:
                file.reading.cancel()

    async def _find(self, reference: str) -> tuple[str | None, str]:
        if reference.startswith(ENV):
            return _checked(self._environment.get(reference.removeprefix(ENV)), "there is no such variable")
        path = reference.removeprefix(FILE)
        file = self._files.setdefault(path, _File())
        loop = asyncio.get_running_loop()
        if file.reading is None:
            if loop.time() < file.fresh_until:
                return file.found
            file.reading = loop.create_task(self._read(path, file))
        if not file.hangs:
            file.hangs = not (await asyncio.wait([file.reading], timeout=READ_S))[0]
        return (None, f"the file could not be read within {READ_S:.0f} s") if file.hangs else file.found

    async def _read(self, path: str, file: _File) -> None:
        try:
            async with self._room:
                file.found = await _in_thread(lambda: _read_secret(path))
        except RuntimeError as error:
            file.found = None, f"the file can't be read ({error})"
        else:
            file.fresh_until = asyncio.get_running_loop().time() + FRESH_S
        finally:
            file.reading = None
            file.hangs = False


def names_any(type: TimerType) -> bool:
    """Whether it has references among its secrets."""
    return any(map(is_reference, type.signing_secrets))


def _read_secret(path: str) -> tuple[str | None, str]:
    """(secret, "") or (None, reason). May take as long as the disk does."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # before it is opened: that alone can set a device going
            return None, "it is no regular file"
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None, "it is no regular file"
            data = b""
            while len(data) <= FILE_BYTES_MAX and (part := os.read(handle, FILE_BYTES_MAX + 1 - len(data))):
                data += part
        finally:
            os.close(handle)
    except OSError as error:
        return None, f"the file can't be read ({os.strerror(error.errno or 0)})"
    if len(data) > FILE_BYTES_MAX:
        return None, f"the file has more than {FILE_BYTES_MAX} bytes"
    return _checked(data.decode("ascii", "replace").rstrip("\r\n"), "")


def _checked(text: str | None, absent: str) -> tuple[str | None, str]:
    if text is None:
        return None, absent
    return (None, "it holds no signing secret, which is whsec_ and base64") if secret_fault(text) else (text, "")


async def _in_thread(job: Callable[[], tuple[str | None, str]]) -> tuple[str | None, str]:
    """What the job returns. Its thread dies with the process: one that hangs does not keep it from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[str | None, str]] = loop.create_future()

    def hand_back(found: tuple[str | None, str]) -> None:
        if not done.done():
            done.set_result(found)

    def work() -> None:
        found = job()
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody is left who waits
            loop.call_soon_threadsafe(hand_back, found)

    threading.Thread(target=work, name="timerd-secret", daemon=True).start()
    return await done
