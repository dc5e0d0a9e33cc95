"""The network between the machine and its targets, under the loop's own verbs: names, connects, bytes both ways.

`VirtualLoop` asks it where a selector loop would ask the system, so that the shipped client (aiohttp and what it rests
on) runs as it is. What it does not have: TLS, and a peer that does not read.

Model: bytes of one direction arrive in order, in pieces, each after its own latency. An end that is closed sends FIN
behind what it sent, one that is aborted sends RST. What arrives at an end that is gone is answered with RST, so a
request that crosses the FIN of an idle connection is lost, and the target has not acted. A process that is killed
closes its ends; one whose machine has lost power just falls silent. What it sent before still arrives.

`Hosts` is the other side: whom one may connect to, and who hears the requests.
"""

import asyncio
import errno
import os
import socket
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from random import Random
from typing import Any, Final, NamedTuple, Protocol

FIFO_S: Final = 1e-6  # between two arrivals at one end
FIN_LATE_S: Final = 0.8
STREAM: Final = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)


class Call:
    """One attempt of the node, as the network sees it. A task that carries it in its context writes for it."""

    def __init__(self) -> None:
        self.wrote = False
        """Bytes were handed over for it."""
        self.heard_at: float | None = None
        """When the last byte of a whole answer had come in."""


CALL: Final[ContextVar[Call | None]] = ContextVar("call", default=None)


class Heard(NamedTuple):
    """A whole request, as it came in."""

    line: str
    headers: dict[str, str]
    body: bytes
    call: Call | None


class Hosts(Protocol):
    """The other side."""

    def resolve(self, name: str) -> list[str]:
        """The addresses; raises socket.gaierror."""
        ...

    def connect(self, address: str) -> tuple[float, int | None]:
        """How long a connect takes, and the errno that ends it; None = it is made. Endless: it never ends."""
        ...

    def idle_s(self, address: str, random: Random) -> float:
        """After how long a connection that is idle is closed."""
        ...

    def heard(self, peer: "Peer", request: Heard) -> None: ...


class Network:
    """All connections of a run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, hosts: Hosts, latency_s: float) -> None:
        self.counts: Counter[str] = Counter()
        self._loop = loop
        self._seed = seed
        self._hosts = hosts
        self._latency_s = latency_s
        self._random = Random(f"{seed} network")
        self._number = 0
        self._lines: dict[Line, None] = {}
        self._connected: dict[int, str] = {}

    # ---- what the loop asks

    async def getaddrinfo(self, host: str, port: int) -> list[Any]:
        await asyncio.sleep(self._latency_s * self._random.random())
        return [(*STREAM, "", (address, port)) for address in self._hosts.resolve(host)]

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        wait_s, error = self._hosts.connect(address[0])
        if wait_s == float("inf"):
            await self._loop.create_future()
        await asyncio.sleep(wait_s)
        if error is not None:
            raise OSError(error, os.strerror(error))
        self._connected[sock.fileno()] = address[0]

    def create_connection(self, factory: Callable[[], Any], sock: socket.socket) -> tuple["Line", Any]:
        """Two ends of a connection that was made. The socket has been a name for it, and is let go of."""
        address = self._connected.pop(sock.fileno())
        sock.close()
        self._number += 1
        protocol = factory()
        random = Random(self._seed * 1_000_003 + self._number)
        line = Line(self._loop, protocol, random, self._latency_s, self._lines)
        line.peer = Peer(self._loop, line, self._hosts, address, random, self.counts)
        self._lines[line] = None
        self.counts["connections"] += 1
        protocol.connection_made(line)
        line.peer.idle()
        return line, protocol

    # ---- what becomes of the machine

    def cut_off(self, *, silent: bool) -> None:
        """The process has ended. Not silent: its kernel closes what it had."""
        for line in list(self._lines):
            line.die(silent=silent)
        self._lines.clear()

    def slept(self, seconds: float) -> None:
        """The machine was suspended; its peers were not."""
        for line in list(self._lines):
            line.peer.waited(seconds)


class Line(asyncio.Transport):
    """The machine's end of a connection."""

    peer: "Peer"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: Any,
        random: Random,
        latency_s: float,
        lines: dict["Line", None],
    ) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._random = random
        self._latency_s = latency_s
        self._lines = lines
        self._closing = False
        self._dead = False
        self._up_at = 0.0
        self._down_at = 0.0
        self._held: list[bytes] | None = None

    # what the protocol asks

    def write(self, data: Any) -> None:
        if self._closing or not data:
            return
        call = CALL.get()
        if call is not None:
            call.wrote = True
        self._loop.call_at(self._up(), self.peer.data, bytes(data), call)

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        if not self._closing:
            self._loop.call_at(self._up(), self.peer.eof)
            self._end(None)

    def abort(self) -> None:
        if not self._closing:
            self._loop.call_at(self._up(), self.peer.reset)
            self._end(None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        if self._held is None:
            self._held = []

    def resume_reading(self) -> None:
        held, self._held = self._held or [], None
        for data in held:
            self._loop.call_soon(self.arrive, data)

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    # what comes from the other side

    def down(self) -> float:
        """When the next thing from the peer arrives."""
        wait_s = self._latency_s * self._random.random()
        self._down_at = max(self._down_at + FIFO_S, self._loop.time() + wait_s)
        return self._down_at

    def arrive(self, data: bytes, call: Call | None = None) -> None:
        """Bytes. `call`: with these its answer is whole."""
        if self._closing:
            self.peer.reset()
        elif self._held is not None:
            self._held.append(data)
        else:
            if call is not None:
                call.heard_at = self._loop.time()
            self._protocol.data_received(data)

    def arrive_eof(self) -> None:
        if not self._closing and not self._protocol.eof_received():
            self.close()

    def arrive_reset(self) -> None:
        if not self._closing:
            self._end(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def die(self, *, silent: bool) -> None:
        """Its process is no more."""
        if not self._closing and not silent:
            self._loop.call_at(self._up(), self.peer.eof)
        self._closing = self._dead = True
        self._loop.call_soon(self._protocol.connection_lost, None)

    def _end(self, error: BaseException | None) -> None:
        self._closing = True
        self._lines.pop(self, None)
        self._loop.call_soon(self._lost, error)

    def _lost(self, error: BaseException | None) -> None:
        if not self._dead:
            self._protocol.connection_lost(error)

    def _up(self) -> float:
        wait_s = self._latency_s * self._random.random()
        self._up_at = max(self._up_at + FIFO_S, self._loop.time() + wait_s)
        return self._up_at


class Peer:
    """The target's end: reads requests, one at a time, and sends what it is told to."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        line: Line,
        hosts: Hosts,
        address: str,
        random: Random,
        counts: Counter[str],
    ) -> None:
        self.address = address
        self.random = random
        self._loop = loop
        self._line = line
        self._hosts = hosts
        self._counts = counts
        self._buffer = bytearray()
        self._call: Call | None = None
        self._busy = False
        self._gone = False
        self._left = False
        """The other end has closed."""
        self._idle: asyncio.TimerHandle | None = None
        self._idle_s = 0.0

    def data(self, data: bytes, call: Call | None) -> None:
        """Bytes have come in."""
        if self._gone:
            self._counts["stale"] += 1
            self._loop.call_at(self._line.down(), self._line.arrive_reset)
            return
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._call = call
        self._buffer += data
        self._parse()

    def eof(self) -> None:
        """The other end has closed, and hears nothing more."""
        self._left = True
        if not self._busy:
            self._go()

    def reset(self) -> None:
        self._left = True
        self._go()

    def idle(self) -> None:
        """Wait for a request, for some time."""
        self._busy = False
        if self._left:
            self._go()
            return
        self._idle_s = self._hosts.idle_s(self.address, self.random)
        self._idle = self._loop.call_later(self._idle_s, self._tire)
        if self._buffer:
            self._parse()

    def waited(self, seconds: float) -> None:
        """Time has gone by that the loop did not see."""
        if self._idle is not None and seconds >= self._idle_s:
            self.hang_up()

    def send(self, data: bytes, pieces: int = 1, call: Call | None = None) -> None:
        """Send bytes, in so many pieces. `call`: what it is the whole answer to."""
        if self._gone:
            return
        cuts = sorted(self.random.randrange(len(data) + 1) for _ in range(pieces - 1))
        parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]
        for n, part in enumerate(parts):
            self._loop.call_at(self._line.down(), self._line.arrive, part, call if n == len(parts) - 1 else None)

    def hang_up(self) -> None:
        """Close it, behind what was sent."""
        if not self._gone:
            self._go()
            self._loop.call_at(self._line.down(), self._line.arrive_eof)

    def _tire(self) -> None:
        """Nothing has come for too long. That it closes may be heard of late: requests cross it."""
        self._go()
        late_s = FIN_LATE_S * self.random.random() ** 2
        self._loop.call_at(self._line.down() + late_s, self._line.arrive_eof)

    def break_off(self) -> None:
        """Reset it."""
        if not self._gone:
            self._go()
            self._loop.call_at(self._line.down(), self._line.arrive_reset)

    def _go(self) -> None:
        self._gone = True
        self._busy = False
        self._buffer.clear()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _parse(self) -> None:
        if self._busy:
            return  # the next request waits for its turn
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        line, *fields = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        whole = end + 4 + int(headers.get("content-length", 0))
        if len(self._buffer) < whole:
            return
        body = bytes(self._buffer[end + 4 : whole])
        del self._buffer[:whole]
        self._busy = True
        self._hosts.heard(self, Heard(line, headers, body, self._call))
