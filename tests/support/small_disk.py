"""A file system of a few MiB that a test may fill: a tmpfs in a mount namespace of its own, gone with its holder."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

PIECE = 1 << 16


class SmallDisk(NamedTuple):
    """`path` is where those `inside` see it, `outside` is where the test does."""

    path: Path
    outside: Path
    inside: tuple[str, ...]


@contextlib.asynccontextmanager
async def small_disk(directory: Path, size_bytes: int) -> AsyncIterator[SmallDisk]:
    """Mount one at `directory`. Skips the test where nothing can be mounted."""
    directory.mkdir()
    script = f'mount -t tmpfs -o size={size_bytes} none "$1" && echo mounted && exec cat'
    for flags, enter in (("-m", ()), ("-rm", ("-U", "--preserve-credentials"))):
        holder = await asyncio.create_subprocess_exec(
            "unshare", flags, "--propagation", "private", "sh", "-c", script, "sh", str(directory),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert holder.stdout is not None
        if await holder.stdout.readline():
            inside = ("nsenter", "-t", str(holder.pid), "-m", *enter, "--")
            break
        await holder.wait()
    else:
        pytest.skip("no file system can be mounted here (neither as root nor in a user namespace)")
    try:
        yield SmallDisk(directory, Path(f"/proc/{holder.pid}/root{directory}"), inside)
    finally:
        assert holder.stdin is not None
        holder.stdin.close()
        await holder.wait()


def fill(file: Path, size_bytes: int | None = None) -> None:
    """Append zeros, until the disk is full if no size is given."""
    with file.open("ab", buffering=0) as out:
        piece = PIECE
        while size_bytes is None or out.tell() < size_bytes:
            try:
                out.write(bytes(piece))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                if piece == 1:
                    return
                piece //= 2
        os.fsync(out.fileno())
