"""Targets that hang a caller at each stage of a call, and can be made healthy on the same port.

silent = Silent()           # accepts, reads nothing, says nothing: a TLS handshake hangs on it just as well
full = FullQueue()          # its accept queue is full: Linux drops every further SYN
port = full.end()           # nothing is there any more; a healthy server may take the port

It knows sockets only; what the port speaks afterwards is the test's.
"""

import asyncio
import contextlib
import socket
from pathlib import Path

HANGS_S = 0.3
DROPPING = ("192.0.2.1", "198.51.100.1", "203.0.113.1", "10.255.255.1", "240.0.0.1")
"""Addresses at which nobody lives (RFC 5737 and others): most networks drop what is sent there."""


def listener(port: int = 0, backlog: int = 4096) -> socket.socket:
    """Listens on loopback, on a port that was in use a moment ago if need be."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(backlog)
    return listening


class Silent:
    """The kernel accepts for it, and nobody ever reads."""

    def __init__(self) -> None:
        self._socket = listener()
        self.port: int = self._socket.getsockname()[1]

    def end(self) -> int:
        """Close it with whoever waits in it; its port."""
        self._socket.close()
        return self.port


class FullQueue:
    """A listener whose accept queue is full: a connection to it is never made."""

    def __init__(self) -> None:
        self._socket = listener(backlog=0)
        self.port: int = self._socket.getsockname()[1]
        self._fillers: list[socket.socket] = []
        while not hangs("127.0.0.1", self.port, keep=self._fillers):
            assert len(self._fillers) < 64, "a queue that never fills"

    def end(self) -> int:
        """Close it; its port."""
        for filler in self._fillers:
            filler.close()
        self._socket.close()
        return self.port


def hangs(host: str, port: int, keep: list[socket.socket] | None = None) -> bool:
    """Whether a connection is neither made nor refused for a while; one that is made goes into `keep`."""
    tried = socket.socket()
    tried.settimeout(HANGS_S)
    try:
        tried.connect((host, port))
    except TimeoutError:
        tried.close()
        return True
    except OSError:
        tried.close()
        return False
    if keep is None:
        tried.close()
    else:
        keep.append(tried)
    return False


def dropping_address() -> str | None:
    """An address that drops SYNs, if this machine's network has one."""
    return next((address for address in DROPPING if hangs(address, 81)), None)


def open_sockets(pid: int | str = "self") -> int:
    """How many sockets a process holds."""
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += entry.readlink().name.startswith("socket:")
    return count


async def until_sockets(at_most: int, pid: int | str = "self", timeout_s: float = 30) -> None:
    """Wait until a process holds no more sockets than that."""
    async with asyncio.timeout(timeout_s):
        while open_sockets(pid) > at_most:
            await asyncio.sleep(0.05)
