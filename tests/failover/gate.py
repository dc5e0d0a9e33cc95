"""A gate on the way to a port: shut, it holds what is sent in both directions, as a network that has been cut does.

Nothing is lost within a connection: TCP would send it again. So what was held arrives late once the gate opens, as it
does in life. A gate may be shut for one process alone, which is told by the port that its connection comes from.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

PIECE = 1 << 16


def holder_of(port: int, pids: Iterable[int]) -> int | None:
    """Which of these processes has the connection that comes from this port of this machine."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rsplit(":", 1)[1], 16) == port:
            inodes.add(f"socket:[{fields[9]}]")
    for pid in pids:
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in inodes:
                        return pid
    return None


class Gate:
    """On loopback, on a free port, before `target`. `pids`: whose connections are to be told apart."""

    def __init__(self, target: int, pids: Callable[[], Iterable[int]] = tuple) -> None:
        self.port = 0
        self._target = target
        self._pids = pids
        self._all = False
        self._some: set[int] = set()
        self._changed = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def shut(self, pid: int | None = None) -> None:
        """For all, or for what one process has opened and will open."""
        if pid is None:
            self._all = True
        else:
            self._some.add(pid)

    def open(self) -> None:
        self._all = False
        self._some.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    async def _open_for(self, pid: int | None) -> None:
        while self._all or pid in self._some:
            await self._changed.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            pid = holder_of(writer.get_extra_info("peername")[1], self._pids()) if self._pids is not tuple else None
            await self._open_for(pid)
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                await asyncio.gather(self._forward(reader, to_writer, pid), self._forward(to_reader, writer, pid))
            finally:
                to_writer.close()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int | None) -> None:
        while piece := await reader.read(PIECE):
            await self._open_for(pid)
            writer.write(piece)
            await writer.drain()
        await self._open_for(pid)
        writer.close()
