"""Child processes: started with a log file, known by their ready line, ended by their own pid.

Children get a session of their own, so that a Ctrl-C in the terminal reaches the demo alone and the demo ends them in
its own order.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

READY = re.compile(r"^\w+ ready on (http://\S+)", re.MULTILINE)
READY_S_MAX = 15.0
STOP_S_MAX = 15.0
LOOK_S = 0.05
LOG_LINES_SHOWN = 15


class ChildFailed(RuntimeError):
    """A child ended, or did not get ready in time. The text ends with the last lines it wrote."""


class Child:
    """A running process that has said it is ready."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process = process
        self.url = url

    @classmethod
    async def start(cls, command: Sequence[str], log: Path) -> Self:
        """Run a command, its output going to `log`, and wait for its ready line."""
        with log.open("ab") as output:
            offset = output.tell()  # The log may hold an earlier life, with a ready line of its own.
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        child = cls(process, "")
        try:
            child.url = await child._ready(log, offset)
        except BaseException:
            await child.kill()
            raise
        return child

    async def _ready(self, log: Path, offset: int) -> str:
        try:
            async with asyncio.timeout(READY_S_MAX):
                while True:
                    text = _written(log, offset)
                    found = READY.search(text)
                    if found:
                        return found[1]
                    if self._process.returncode is not None:
                        raise ChildFailed(f"ended with code {self._process.returncode}:\n{_tail(text)}")
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            text = _tail(_written(log, offset))
            raise ChildFailed(f"not ready within {READY_S_MAX:g} s:\n{text}") from None

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def stop(self) -> int:
        """Ask it to end, wait, and insist if it doesn't. Answers its exit code."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S_MAX):
                return await self._process.wait()
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> int:
        """End it at once, as a power cut would."""
        self._signal(signal.SIGKILL)
        return await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)


def timerd_command(data: Path, host: str, port: int) -> list[str]:
    where = ["--host", host, "--port", str(port)]
    return [sys.executable, "-m", "timerd", "serve", "--data", str(data), *where]


def provider_command(urls: Path, log: Path, seed: int, slow_s: float) -> list[str]:
    arguments = ["--urls", str(urls), "--log", str(log), "--seed", str(seed), "--slow", f"{slow_s:g}"]
    return [sys.executable, "-m", "examples.feeds.provider", *arguments]


def _written(log: Path, offset: int) -> str:
    return log.read_bytes()[offset:].decode(errors="replace")


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-LOG_LINES_SHOWN:])
