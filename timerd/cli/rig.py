"""A timerd to play with: a `timerd serve` of its own on a temporary directory, and a processor that counts.

What `timerd demo` and `timerd bench` stand on. Everything is on loopback and gone afterwards.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web


class Rig:
    """A running server and its processor."""

    def __init__(self, url: str, pid: int, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.pid = pid
        self.batches = 0
        self.received = 0
        self.early = 0
        self.lags_ms: list[float] = []
        self.processor_url = ""
        self._session = session
        self._due: dict[str, int] = {}
        self._came = asyncio.Event()

    async def put_type(self, name: str, **fields: Any) -> None:
        """Put a type that is delivered to this rig's processor."""
        await self.call("PUT", f"/v1/types/{name}", {"url": self.processor_url, **fields})

    async def arm(self, type: str, due: dict[str, int]) -> None:
        """Arm ids at Unix ms, and know when they should come."""
        self._due.update(due)
        timers = [{"id": id, "type": type, "fire_at": fire_at} for id, fire_at in due.items()]
        await self.call("POST", "/v1/timers", {"timers": timers}, {"Prefer": "return=minimal"})

    async def until_received(self, count: int) -> None:
        """Wait until so many timers have come."""
        while self.received < count:
            self._came.clear()
            await self._came.wait()

    async def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """One request; its decoded answer."""
        async with self._session.request(method, self.url + path, json=body, headers=headers) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def deliver(self, request: web.Request) -> web.Response:
        """The processor: note what came, and be content."""
        now = time.time() * 1000
        body = json.loads(await request.read())
        self.batches += 1
        for timer in body["timers"]:
            lag = now - self._due.pop(timer["id"], now)
            self.early += lag < 0
            self.lags_ms.append(lag)
        self.received += len(body["timers"])
        self._came.set()
        return web.Response()


@contextlib.asynccontextmanager
async def rig(*options: str) -> AsyncIterator[Rig]:
    """Start both, and end both."""
    with tempfile.TemporaryDirectory(prefix="timerd-") as data:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "timerd", "serve", "--data", data, "--port", "0", "--log-level", "error", *options,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            url = await _ready_url(process)
            async with aiohttp.ClientSession() as session:
                made = Rig(url, process.pid, session)
                async with _listening(made):
                    yield made
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _ready_url(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    lines = []
    async for raw in process.stderr:
        line = raw.decode(errors="replace")
        if line.startswith("timerd ready on "):
            return line.split()[-1]
        lines.append(line)
    raise RuntimeError("timerd did not start:\n" + "".join(lines))


@contextlib.asynccontextmanager
async def _listening(made: Rig) -> AsyncIterator[None]:
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/deliver", made.deliver)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        made.processor_url = f"http://127.0.0.1:{runner.addresses[0][1]}/deliver"
        yield
    finally:
        await runner.cleanup()
