"""A forwarding proxy in front of a processor that can hold back what the processor says.

async with Proxy(processor.url) as proxy:
    proxy.hold()        # answers are read, and wait
    proxy.drop()        # what waits is thrown away, with its connections
"""

import asyncio
import contextlib

from yarl import URL

PIECE = 1 << 16


class Proxy:
    """TCP, on a free port of loopback."""

    def __init__(self, target: str) -> None:
        self._target = URL(target)
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.held_bytes = 0
        """Of answers that have come and wait."""

    @property
    def url(self) -> str:
        assert self._server is not None
        return str(self._target.with_port(self._server.sockets[0].getsockname()[1]))

    def hold(self) -> None:
        """Answers wait from now on."""
        self._open.clear()

    def drop(self) -> None:
        """Cut every connection, and hold nothing any more."""
        for task in self._tasks:
            task.cancel()
        self.held_bytes = 0
        self._open.set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            assert self._target.host is not None
            to_reader, to_writer = await asyncio.open_connection(self._target.host, self._target.port)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._forward(reader, to_writer, held=False))
                    both.create_task(self._forward(to_reader, writer, held=True))
            finally:
                to_writer.close()
        except (asyncio.CancelledError, ConnectionError, ExceptionGroup):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: bool) -> None:
        while piece := await reader.read(PIECE):
            if held and not self._open.is_set():
                self.held_bytes += len(piece)
                await self._open.wait()
            writer.write(piece)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()
