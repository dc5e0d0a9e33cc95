"""A connection on which a test writes what bytes it likes, and reads whole answers.

It knows as much of HTTP as it takes to find an answer's end, and nothing of timerd.
"""

import asyncio
from typing import Any, NamedTuple

import msgspec

JSON = "Content-Type: application/json"


class Reply(NamedTuple):
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def problem(self) -> str | None:
        """The name of the problem that it is, if it is one."""
        if self.headers.get("content-type") != "application/problem+json":
            return None
        return str(self.json()["type"].rpartition("/")[2])


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, url: str) -> "Wire":
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=1 << 25))

    async def __aenter__(self) -> "Wire":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self) -> Reply:
        """The next answer. Raises IncompleteReadError or ConnectionError when there is none any more."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Reply(int(first.split()[1]), headers, body)

    async def ask(self, data: bytes) -> Reply:
        await self.send(data)
        return await self.reply()

    async def ends(self) -> bytes:
        """What still comes until the server closes."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


def head(method: str, target: str, *lines: str, version: str = "1.1") -> bytes:
    """A head to a loopback host."""
    return "\r\n".join([f"{method} {target} HTTP/{version}", "Host: 127.0.0.1", *lines, "", ""]).encode("latin-1")


def request(method: str, target: str, body: Any = None, *lines: str) -> bytes:
    """A whole request; a body that is not bytes goes as JSON."""
    if body is None:
        return head(method, target, *lines)
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return head(method, target, JSON, f"Content-Length: {len(data)}", *lines) + data
