"""A real `timerd serve` process on a free port, started, killed and started again by a test.

async with Process(tmp_path / "data") as timerd:
    await timerd.put_type("t", url=processor.url, max_lag="1s")
    await timerd.arm([{"id": "a", "type": "t", "delay": 2}])
    timerd.kill()
    await timerd.start()
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

READY_S = 60
ARMS_MAX = 5_000
ASK_S = 0.05

Pages = list[dict[str, Any]]  # the class has a method `list`, which hides the builtin behind it


class Process:
    """One data directory (or one name in a cluster), and the process that has it, if any."""

    command = "serve"

    def __init__(
        self, data: Path, *options: str, env: Mapping[str, str] | None = None, inside: Sequence[str] = ()
    ) -> None:
        """`inside`: a command that starts it, such as nsenter."""
        self.data = data
        self.inside = inside
        self.options = options
        self.env = dict(env or {})
        self.process: asyncio.subprocess.Process | None = None
        self.url = ""
        self.stderr: list[str] = []
        self.log: list[str] = []
        """What it has logged: the lines on stdout, of all starts."""
        self._readers: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Process":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process is not None and self.process.returncode is None:
            self.kill()
            await self.process.wait()
        if self._session is not None:
            await self._session.close()
        await asyncio.gather(*self._readers)

    async def start(self) -> None:
        """Start, and wait for the ready line. Raises AssertionError with what it printed if it ends instead."""
        if self.process is not None:
            await self.process.wait()
        ready = await self.spawn()
        assert await asyncio.wait_for(ready, READY_S), "".join(self.stderr[-40:] + self.log[-40:])

    async def spawn(self) -> "asyncio.Future[bool]":
        """Start; the future says whether a ready line came before the end of stderr."""
        in_cluster = "--cluster" in self.options or "TIMERD_CLUSTER" in self.env
        data = () if in_cluster else ("--data", str(self.data))
        self.process = await asyncio.create_subprocess_exec(
            *self.inside, sys.executable, "-m", "timerd", self.command,
            *data, "--port", "0", *self.options,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.env},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._readers += [
            asyncio.create_task(self._read(self.process, ready)),
            asyncio.create_task(self._read_log(self.process)),
        ]
        return ready

    async def _read(self, process: asyncio.subprocess.Process, ready: "asyncio.Future[bool]") -> None:
        assert process.stderr is not None
        async for raw in process.stderr:
            line = raw.decode(errors="replace")
            self.stderr.append(line)
            if line.startswith("timerd ready on "):
                self.url = line.split()[-1]
                if not ready.done():
                    ready.set_result(True)
        if not ready.done():
            ready.set_result(False)

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for raw in process.stdout:
            self.log.append(raw.decode(errors="replace"))

    def kill(self) -> None:
        """kill -9"""
        self.signal(signal.SIGKILL)

    async def kill_and_start(self) -> None:
        """kill -9, and start again."""
        self.kill()
        await self.start()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def rss_bytes(self) -> int:
        """Resident memory now."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def cpu_s(self) -> float:
        """Processor time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def complaints(self) -> list[str]:
        """Lines that no healthy run prints."""
        words = ("traceback", "exception", "[error", "[critical", "the log failed")
        return [line for line in self.stderr + self.log if any(word in line.lower() for word in words)]

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and we have not been told
                os.kill(self.process.pid, number)

    async def wait(self, timeout_s: float = 60) -> int:
        """The exit code."""
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), timeout_s)

    async def stop(self, timeout_s: float = 60) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return await self.wait(timeout_s)

    # ---- requests

    @property
    def session(self) -> aiohttp.ClientSession:
        """A session for requests of the test's own."""
        if self._session is None:
            # Less than the server has: what is asked of a connection that it is closing gets no answer.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """(status, decoded answer). `path` is sent as it is, percent-encoding included."""
        from yarl import URL

        if body is not None:
            options["json"] = body
        async with self.session.request(method, URL(self.url + path, encoded=True), **options) as answer:
            if "json" in answer.headers.get("Content-Type", ""):
                return answer.status, await answer.json(content_type=None)
            return answer.status, await answer.text()

    async def put_type(self, name: str, **fields: Any) -> None:
        """Put a type, with max_lag 0 unless it is said."""
        status, answer = await self.request("PUT", f"/v1/types/{name}", {"max_lag": 0, **fields})
        assert status in (200, 201), answer

    async def arm(self, timers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Arm, in requests of at most 5,000, and be acknowledged; the last answer, with the results of all."""
        results: list[dict[str, Any]] = []
        for start in range(0, len(timers), ARMS_MAX):
            part = list(timers[start : start + ARMS_MAX])
            status, answer = await self.request("POST", "/v1/timers", {"timers": part})
            assert status == 200, answer
            results += answer["results"]
        return {**answer, "results": results}

    async def stats(self, type: str) -> dict[str, Any]:
        """One type's part of /v1/stats."""
        status, answer = await self.request("GET", "/v1/stats")
        assert status == 200, answer
        return dict(answer["types"][type])

    async def dead_letters(self, query: str = "") -> list[dict[str, Any]]:
        """All dead letters, page by page."""
        return await self._pages("dead_letters", "/v1/dead-letters", query)

    async def get(self, id: str) -> dict[str, Any] | None:
        """Read one timer; `id` percent-encoded as it must be in a path."""
        status, answer = await self.request("GET", f"/v1/timers/{id}")
        assert status in (200, 404), answer
        return dict(answer) if status == 200 else None

    async def list(self, query: str = "") -> list[dict[str, Any]]:
        """All timers, page by page."""
        return await self._pages("timers", "/v1/timers", query)

    async def _pages(self, name: str, path: str, query: str) -> Pages:
        found: list[dict[str, Any]] = []
        token = ""
        while True:
            status, answer = await self.request("GET", f"{path}?page_size=1000{query}{token}")
            assert status == 200, answer
            found += answer[name]
            if "next_page_token" not in answer:
                return found
            token = f"&page_token={answer['next_page_token']}"

    async def until(self, true: Callable[[], Awaitable[bool]], timeout_s: float = 30) -> None:
        """Ask until it is true: for what shows only in answers."""
        async with asyncio.timeout(timeout_s):
            while not await true():
                await asyncio.sleep(ASK_S)
