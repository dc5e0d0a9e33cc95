"""A forwarding proxy that can hold or drop either direction of one request.

It reads whole requests and asks its script what to do with each arm. A request that is held is forwarded when it is
released, whatever its sender thinks by then: that is what makes a late repeat.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from .fake_timerd import Loop, read_request


class Fault:
    """What happens to one arm. `drop_answer`: forward it, then hang up. `silent`: forward it and never answer.

    `hold_request`: keep it until `release`; with `hang_up` the sender's connection is closed at once.
    """

    def __init__(
        self,
        *,
        drop_answer: bool = False,
        silent: bool = False,
        hold_request: bool = False,
        hang_up: bool = False,
    ) -> None:
        self.drop_answer, self.silent, self.hold_request, self.hang_up = drop_answer, silent, hold_request, hang_up
        self.release = asyncio.Event()
        self.reached = asyncio.Event()
        self.forwarded = asyncio.Event()


class FaultProxy:
    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self.script: deque[Fault | None] = deque()
        self.refusing = False

    async def start(self) -> int:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 25)
        self._server = server
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                arms = request.method == "POST" and request.target == "/v1/timers"
                fault = self.script.popleft() if arms and self.script else None
                if fault is None:
                    writer.write(await self._forward(request.raw))
                    continue
                fault.reached.set()
                if fault.hold_request:
                    task = asyncio.create_task(self._later(fault, request.raw))
                    self._tasks.add(task)
                else:
                    await self._forward(request.raw)
                    fault.forwarded.set()
                if fault.drop_answer or fault.hang_up:
                    return
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _later(self, fault: Fault, raw: bytes) -> None:
        await fault.release.wait()
        await self._forward(raw)
        fault.forwarded.set()

    async def _forward(self, raw: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 25)
        try:
            writer.write(raw)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            return head + await reader.readexactly(length)
        finally:
            writer.close()


@contextmanager
def fault_proxy(loop: Loop, url: str) -> Iterator[tuple[FaultProxy, str]]:
    async def make() -> FaultProxy:
        return FaultProxy(int(url.rpartition(":")[2]))

    proxy = loop.run(make())
    yield proxy, f"http://127.0.0.1:{loop.run(proxy.start())}"


def fault(loop: Loop, **how: bool) -> Fault:
    async def make() -> Fault:
        return Fault(**how)

    return loop.run(make())


def release(loop: Loop, fault: Fault) -> None:
    """Let a held request go, and return when the server has answered it."""

    async def go() -> None:
        fault.release.set()
        await asyncio.wait_for(fault.forwarded.wait(), 5)

    loop.run(go())
