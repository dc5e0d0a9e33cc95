"""A `timerd serve` under measurement: a real process on a core of its own, and what the kernel says of it.

The process is started, killed and ended by its pid; its data lie in a temporary directory and are gone afterwards.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

SERVER_CORE: Final = 0
LOAD_CORE: Final = 1
START_S_MAX: Final = 120
QUIET_SHARE: Final = 0.1
TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Server:
    """One process at a time over one data directory."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.options = options
        self.port = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> float:
        """Start it; the seconds from there to its ready line."""
        begin = time.perf_counter()
        data = () if "--cluster" in self.options else ("--data", str(self.data))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "timerd", "serve",
            *data, "--port", str(self.port), "--log-level", "error", *self.options,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE}),
        )  # fmt: skip
        async with asyncio.timeout(START_S_MAX):
            self.port = int((await self._ready_url(self._process)).rsplit(":", 1)[1])
        return time.perf_counter() - begin

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def cpu_s(self) -> float:
        """User and system seconds of all its threads since it was started."""
        return cpu_s([self.pid])

    def rss_bytes(self) -> int:
        """What it has resident in memory now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def rss_bytes_max(self) -> int:
        """The most that it had resident at any time since it was started."""
        return int(Path(f"/proc/{self.pid}/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024

    def read_bytes(self) -> int:
        """What it has read since it was started, from files and sockets, cached or not."""
        return int(Path(f"/proc/{self.pid}/io").read_text().partition("rchar:")[2].split()[0])

    def written_bytes(self) -> int:
        """What it has given to storage since it was started."""
        text = Path(f"/proc/{self.pid}/io").read_text()
        return int(text.partition("\nwrite_bytes:")[2].split()[0])

    async def _ready_url(self, process: asyncio.subprocess.Process) -> str:
        assert process.stderr is not None
        said = []
        async for raw in process.stderr:
            line = raw.decode(errors="replace")
            if line.startswith("timerd ready on "):
                return line.split()[-1]
            said.append(line)
        raise RuntimeError("timerd did not start:\n" + "".join(said))


class Place(NamedTuple):
    """Where and when to measure."""

    data: str | None
    """Directory for the servers' data directories; None = the system's for temporary files."""
    quiet_s: float
    """How long to wait at most for a moment in which nobody else uses the server's core."""


@contextlib.asynccontextmanager
async def serving(place: Place, *options: str) -> AsyncIterator[Server]:
    """A server on an empty directory; killed at the end, since nothing of it is needed."""
    with tempfile.TemporaryDirectory(prefix="timerd-bench-", dir=place.data) as data:
        server = Server(Path(data), *options)
        try:
            await server.start()
            await quiet(place.quiet_s)
            yield server
        finally:
            await server.kill()


async def quiet(seconds: float) -> None:
    """Wait until the server's core has been idle for half a second, or so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = busy_s()
        await asyncio.sleep(0.5)
        if busy_s() - before <= QUIET_SHARE * 0.5:
            return


def cpu_s(pids: Sequence[int]) -> float:
    """User and system seconds of all threads of these processes since they were started."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_A_SECOND


def busy_s() -> float:
    """Seconds for which the server's core has been busy, with whatever."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{SERVER_CORE}":
            user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
            return (user + nice + system + irq + softirq + steal) / TICKS_A_SECOND
    return 0.0
