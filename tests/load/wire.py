"""A caller's side of the wire: connections that do as little as can be done, and say what every answer was.

Load must cost less than what it is laid on, so no more of an answer is parsed than its status, its length and, of a
refusal, whether it says when to come back.
"""

import asyncio
from typing import Any, Final, NamedTuple, cast

import msgspec

TYPE: Final = "load"
MINIMAL: Final = b"Prefer: return=minimal\r\n"


class Reply(NamedTuple):
    """One answer. `status` 0: the connection broke before it came; -1: it did not come in time."""

    status: int
    body: bytes = b""
    retry_after: bool = False

    @property
    def taken(self) -> bool:
        return 200 <= self.status < 300


def request(method: str, path: str, body: bytes = b"", lines: bytes = b"", media_type: bytes = b"json") -> bytes:
    """The bytes of a request."""
    return b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/%s\r\n%sContent-Length: %d\r\n\r\n%s" % (
        method.encode(), path.encode(), media_type, lines, len(body), body,
    )  # fmt: skip


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request under way."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[Reply] | None = None
        self._transport: asyncio.Transport | None = None
        self.closed = False

    @classmethod
    async def open(cls, port: int) -> "Connection":
        """Raises OSError."""
        _, made = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return made

    async def ask(self, data: bytes, timeout_s: float) -> Reply:
        """Send a request; its answer. Never raises for what the server does; a late answer closes the connection."""
        if self.closed or self._transport is None:
            return Reply(0)
        answer = self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        late = asyncio.get_running_loop().call_later(timeout_s, self._give_up)
        try:
            reply: Reply = await answer
            return reply
        finally:
            late.cancel()

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        head = received.find(b"\r\n\r\n")
        if head < 0:
            return
        lines = bytes(received[:head]).lower()
        at = lines.find(b"content-length:")
        end = head + 4 + (int(lines[at + 15 : (lines + b"\r").find(b"\r", at)]) if at >= 0 else 0)
        if len(received) < end:
            return
        body = bytes(received[head + 4 : end])
        del received[:end]
        self._settle(Reply(int(lines[9:12]), body, b"\r\nretry-after:" in lines))
        if b"\r\nconnection: close" in lines:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._settle(Reply(0))

    def _give_up(self) -> None:
        self._settle(Reply(-1))
        self.close()

    def _settle(self, reply: Reply) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(reply)


class Pool:
    """Connections to one server, opened when they are needed."""

    def __init__(self, port: int, most: int) -> None:
        self.most = most
        self.port = port
        self.busy = 0
        self._idle: list[Connection] = []

    async def ask(self, data: bytes, timeout_s: float) -> Reply | None:
        """The answer; None: all connections are busy, and nothing was sent."""
        if self.busy >= self.most:
            return None
        self.busy += 1
        try:
            connection = await self._take(timeout_s)
            if connection is None:
                return Reply(0)
            reply = await connection.ask(data, timeout_s)
            if not connection.closed:
                self._idle.append(connection)
            return reply
        finally:
            self.busy -= 1

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _take(self, timeout_s: float) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        try:
            async with asyncio.timeout(timeout_s):
                return await Connection.open(self.port)
        except OSError:  # a time-out is one
            return None


async def call(port: int, method: str, path: str, body: Any = None, timeout_s: float = 60) -> Any:
    """One request on a connection of its own, encoded and decoded. Raises RuntimeError unless it succeeds."""
    try:
        connection = await Connection.open(port)
    except OSError as error:
        raise RuntimeError(str(error)) from None
    try:
        data = request(method, path, b"" if body is None else msgspec.json.encode(body))
        reply = await connection.ask(data, timeout_s)
    finally:
        connection.close()
    if not reply.taken:
        raise RuntimeError(f"{method} {path}: {reply.status} {reply.body[:200]!r}")
    return msgspec.json.decode(reply.body) if reply.body[:1] in (b"{", b"[") else reply.body
