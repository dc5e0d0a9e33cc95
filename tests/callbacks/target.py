"""A target of callbacks: a plain HTTP server that keeps every request byte for byte, and answers as a script says.

async with Target() as target:
    target.answer = lambda got: Reply(503, {"Retry-After": "5"})
    await target.until(lambda: len(target.got) == 3)
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from aiohttp import web


class Got(NamedTuple):
    """One request."""

    at: float
    method: str
    target: str
    """Path and query, as they were sent."""
    headers: dict[str, str]
    names: list[str]
    """Of the headers, as they were written."""
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["timerd-timer-id"]


class Reply(NamedTuple):
    """What to answer. `drop`: close the connection instead."""

    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""
    delay_s: float = 0
    drop: bool = False


Script = Callable[[Got], Reply | Awaitable[Reply]]


class Target:
    """Listens on a free port of an address of loopback. `answer` may be replaced at any time."""

    def __init__(self, answer: Script | None = None, host: str = "127.0.0.1") -> None:
        self.answer: Script = answer or (lambda got: Reply())
        self.got: list[Got] = []
        self.open = 0
        self.open_max = 0
        self.host = host
        self.port = 0
        self._changed = asyncio.Event()
        self._runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        return [got.id for got in self.got]

    async def until(self, true: Callable[[], bool], timeout_s: float = 30) -> None:
        """Wait until it is true; looked at after every request."""
        async with asyncio.timeout(timeout_s):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def __aenter__(self) -> "Target":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the port of the time before if there was one."""
        self._runner = web.ServerRunner(web.Server(self._handle, access_log=None), shutdown_timeout=0.1)  # type: ignore[arg-type]
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, reuse_address=True, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Listen no more: connections are refused."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        at = time.time()
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        try:
            body = await request.read()
            headers = {name.lower(): value for name, value in request.headers.items()}
            got = Got(at, request.method, request.raw_path, headers, list(request.headers), body)
            self.got.append(got)
            self._changed.set()
            reply = self.answer(got)
            if not isinstance(reply, Reply):
                reply = await reply
            if reply.delay_s:
                await asyncio.sleep(reply.delay_s)
            if reply.drop:
                assert request.transport is not None
                request.transport.abort()
            return web.Response(status=reply.status, headers=reply.headers, body=reply.body)
        finally:
            self.open -= 1
            self._changed.set()
