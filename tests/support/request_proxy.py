"""A proxy in front of a timerd that knows requests, and does with each arm what its script says.

async with RequestProxy(timerd.url) as proxy:
    held = proxy.next(hold=True)            # the next arm waits in it, whatever its sender thinks by then
    proxy.next(drop_answer=True)            # the one after that is applied, and its sender never hears of it
    ...
    await held.let_go()                     # now it reaches timerd: a late repeat, made to order
"""

import asyncio
import contextlib
from collections import deque

from yarl import URL

LONG_S = 30


class Fault:
    """What becomes of one arm. `hold`: it waits until it is let go. `drop_answer`: the connection closes instead."""

    def __init__(self, *, hold: bool, drop_answer: bool) -> None:
        self.hold, self.drop_answer = hold, drop_answer
        self.arrived = asyncio.Event()
        self.status = 0
        """What timerd answered in the end."""
        self._free = asyncio.Event()
        self._answered = asyncio.Event()

    async def let_go(self) -> None:
        """Forward it; returns when timerd has answered."""
        self._free.set()
        await asyncio.wait_for(self._answered.wait(), LONG_S)

    async def pass_on(self) -> None:
        """Wait for leave."""
        self.arrived.set()
        if self.hold:
            await self._free.wait()

    def answered(self, head: bytes) -> None:
        self.status = int(head.split(b" ", 2)[1])
        self._answered.set()


class RequestProxy:
    """HTTP/1.1 with Content-Length, on a free port of loopback. What is held goes on though its sender went away."""

    def __init__(self, target: str) -> None:
        self._target = URL(target)
        self._script: deque[Fault] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def next(self, *, hold: bool = False, drop_answer: bool = False) -> Fault:
        """The next arm that has no fault yet gets this one."""
        fault = Fault(hold=hold, drop_answer=drop_answer)
        self._script.append(fault)
        return fault

    def forget(self) -> None:
        """The faults that no arm has met yet are none."""
        self._script.clear()

    async def __aenter__(self) -> "RequestProxy":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head, body = await read_message(reader)
                is_arm = head.startswith(b"POST /v1/timers ")
                fault = self._script.popleft() if is_arm and self._script else None
                if fault is None:
                    writer.write(b"".join(await self._forward(head + body)))
                    continue
                work = asyncio.create_task(self._faulty(fault, head + body, writer))
                self._tasks.add(work)
                await asyncio.shield(work)
                if fault.drop_answer:
                    return
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _faulty(self, fault: Fault, message: bytes, writer: asyncio.StreamWriter) -> None:
        await fault.pass_on()
        head, body = await self._forward(message)
        fault.answered(head)
        if not fault.drop_answer:
            with contextlib.suppress(ConnectionError):
                writer.write(head + body)

    async def _forward(self, message: bytes) -> tuple[bytes, bytes]:
        assert self._target.host is not None
        reader, writer = await asyncio.open_connection(self._target.host, self._target.port)
        try:
            writer.write(message)
            return await read_message(reader)
        finally:
            writer.close()


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """One request or answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return head, await reader.readexactly(int(length or b"0"))
