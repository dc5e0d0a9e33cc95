"""A proxy before a server that loses what it is told to: requests, answers, or the connection."""

import asyncio
from contextlib import suppress


class Proxy:
    """Between one client and one server. What is held back may be let through later."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self.lose_answers = False
        self.lose_requests = False
        self.hold_appends = False  # questions go through
        self.held = asyncio.Event()
        """Set when something was held or lost."""
        self._server_port = server_port
        self._listener: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.holding: list[tuple[asyncio.StreamWriter, bytes]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"nats://timerd:t@127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    def heal(self) -> None:
        """Lose and hold nothing more; what was held goes out, late."""
        self.lose_answers = self.lose_requests = self.hold_appends = False
        for writer, data in self.holding:
            writer.write(data)
        self.holding.clear()

    def cut(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def stop(self) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.close()
            return
        self._writers += (writer, server_writer)
        for source, sink, asking in ((reader, server_writer, True), (server_reader, writer, False)):
            task = asyncio.get_running_loop().create_task(self._pump(source, sink, asking))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, asking: bool) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 20):
                if asking and self.hold_appends and b"HPUB " in data:
                    self.holding.append((sink, data))
                    self.held.set()
                elif self.lose_requests if asking else self.lose_answers:
                    self.held.set()
                else:
                    sink.write(data)
                    await sink.drain()
        sink.close()
