"""A recording processor: a plain HTTP server that logs every POST and answers as a script says.

async with Processor() as processor:
    processor.answer = lambda delivery: Answer(500)
    await processor.until(lambda: len(processor.ids) == 10)
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from aiohttp import web


class Delivery(NamedTuple):
    """One POST (or whatever came)."""

    at: float
    """Unix seconds at which it was received."""
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    ids: list[str]


class Answer(NamedTuple):
    """What to answer. `body` is sent as JSON, `text` as it is. `drop`: close the connection instead."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = MappingProxyType({})
    delay_s: float = 0
    drop: bool = False
    text: str | None = None


Script = Callable[[Delivery], Answer | Awaitable[Answer]]


class Processor:
    """Listens on loopback, on a free port unless one is given. `answer` may be replaced at any time."""

    def __init__(self, answer: Script | None = None, port: int = 0) -> None:
        self.answer: Script = answer or (lambda delivery: Answer())
        self.deliveries: list[Delivery] = []
        self.open = 0
        self.open_max = 0
        self._port = port
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/deliver"

    @property
    def counts(self) -> Counter[str]:
        """How often each id was received."""
        return Counter(id for delivery in self.deliveries for id in delivery.ids)

    @property
    def ids(self) -> set[str]:
        return set(self.counts)

    def timers(self) -> Iterable[tuple[Delivery, dict[str, Any]]]:
        """Every (delivery, timer) received."""
        return ((delivery, timer) for delivery in self.deliveries for timer in delivery.body.get("timers", ()))

    async def until(self, true: Callable[[], bool], timeout_s: float = 30) -> None:
        """Wait until it is true; looked at after every delivery."""
        async with asyncio.timeout(timeout_s):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def __aenter__(self) -> "Processor":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the port of the time before if there was one."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        assert site._server is not None
        self._port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def stop(self) -> None:
        """Listen no more: connections are refused."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        at = time.time()
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        try:
            data = await request.read()
            body = msgspec.json.decode(data) if data else {}
            ids = [timer["id"] for timer in body.get("timers", ())]
            delivery = Delivery(at, request.method, request.path, dict(request.headers), body, ids)
            self.deliveries.append(delivery)
            self._changed.set()
            answer = self.answer(delivery)
            if not isinstance(answer, Answer):
                answer = await answer
            if answer.delay_s:
                await asyncio.sleep(answer.delay_s)
            if answer.drop:
                assert request.transport is not None
                request.transport.abort()
            if answer.body is None:
                return web.Response(status=answer.status, headers=answer.headers, text=answer.text)
            return web.json_response(answer.body, status=answer.status, headers=answer.headers)
        finally:
            self.open -= 1
            self._changed.set()
