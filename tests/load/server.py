"""The real `timerd serve` under load: pinned to a core, killed and started again, and what the kernel says of it.

Its stderr goes to a file: nobody has the time to read a pipe here, and a full one would stop the server.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SERVER_CORE: Final = 0
LOAD_CORE: Final = 1
START_S_MAX: Final = 120
LOOK_S: Final = 0.02


class Server:
    """One process at a time over one data directory."""

    def __init__(self, directory: Path, env: Mapping[str, str] | None = None) -> None:
        """`directory` gets the data directory `data` and the file `stderr`."""
        self.data = directory / "data"
        self.port = 0
        self.starts = 0
        self._stderr = directory / "stderr"
        self._env = {**os.environ, **(env or {})}
        # Under another allocator it stays so, whatever else is loaded before the program.
        preloads = [found for one in (os.environ, env or {}) if (found := one.get("LD_PRELOAD"))]
        self._env["LD_PRELOAD"] = ":".join(preloads)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> float:
        """Start it; the seconds from there to its ready line. Raises RuntimeError with what it printed instead."""
        begin = time.perf_counter()
        with self._stderr.open("ab") as out:
            at = out.seek(0, os.SEEK_END)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "timerd", "serve",
                "--data", str(self.data), "--port", str(self.port), "--log-level", "warning",
                stderr=out, env=self._env, preexec_fn=lambda: pin(SERVER_CORE),
            )  # fmt: skip
        self.starts += 1
        while True:
            for line in self._stderr.read_bytes()[at:].decode(errors="replace").splitlines():
                if line.startswith("timerd ready on "):
                    self.port = int(line.rsplit(":", 1)[1])
                    return time.perf_counter() - begin
            if not self.running or time.perf_counter() - begin > START_S_MAX:
                raise RuntimeError("timerd did not start:\n" + self._stderr.read_bytes()[at:].decode(errors="replace"))
            await asyncio.sleep(LOOK_S)

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._process is not None:
            if self.running:
                self._process.kill()
            await self._process.wait()

    async def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        self.signal(signal.SIGTERM)
        return await self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.running:
            os.kill(self.pid, number)

    def rss_bytes(self) -> int:
        """What it has resident in memory now; 0 when it does not run."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def disk_bytes(self) -> int:
        """What its data directory takes on disk."""
        total = 0
        for path in self.data.iterdir():
            try:
                total += path.stat().st_blocks * 512
            except OSError:  # deleted meanwhile
                continue
        return total

    def complaints(self) -> list[str]:
        """Lines that no healthy run prints."""
        words = ("traceback", "level=error", "level=critical", "the log failed")
        lines = self._stderr.read_text(errors="replace").splitlines() if self._stderr.exists() else []
        return [line for line in lines if any(word in line.lower() for word in words)]


def pin(core: int) -> None:
    """Run this process on that core, where there are several."""
    if (os.cpu_count() or 1) > core:
        os.sched_setaffinity(0, {core})
