"""The load generator's side of the wire: requests encoded beforehand, connections that do as little as can be done.

The generator must cost less than what it measures, so nothing here parses more of an answer than its status and length.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

import msgspec

TYPE: Final = "poll"
HOUR_MS: Final = 3_600_000
MINIMAL: Final = b"Prefer: return=minimal\r\n"


def request(method: str, path: str, body: bytes, lines: bytes = b"") -> bytes:
    """The bytes of a request with a JSON body."""
    return b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s" % (
        method.encode(),
        path.encode(),
        lines,
        len(body),
        body,
    )


def arms(
    ids: Iterable[str],
    fire_ats: Iterable[int | str],
    size: int,
    lines: bytes = MINIMAL,
    type: str = TYPE,
    requests: Iterable[bytes] | None = None,
) -> list[bytes]:
    """Arms of `size` timers a request. `requests`: what each sends, encoded, if they are callbacks."""
    items = [b'{"id":"%s","type":"%s","fire_at":%s}' % (id.encode(), type.encode(), msgspec.json.encode(at))
             for id, at in zip(ids, fire_ats, strict=True)]  # fmt: skip
    if requests is not None:
        items = [b'%s,"request":%s}' % (item[:-1], wanted) for item, wanted in zip(items, requests, strict=True)]
    return [
        request("POST", "/v1/timers", b'{"timers":[%s]}' % b",".join(items[at : at + size]), lines)
        for at in range(0, len(items), size)
    ]


def ids(count: int, prefix: str = "trigger") -> list[str]:
    return [f"{prefix}:{n:07d}" for n in range(count)]


def far(count: int, spread_ms: int = 600_000) -> list[int]:
    """Fire times an hour ahead, spread."""
    begin = now_ms() + HOUR_MS
    return [begin + n * 7_919 % spread_ms for n in range(count)]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request under way."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, port: int) -> "Connection":
        _, made = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return made

    async def ask(self, data: bytes) -> bytes:
        """Send a request; the body of its answer, which must be a success."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        head = received.find(b"\r\n\r\n")
        if head < 0:
            return
        end = head + 4 + _length(received, head)
        if len(received) < end:
            return
        whole = bytes(received[:end])
        del received[:end]
        assert self._answer is not None
        if whole[9:10] == b"2":
            self._answer.set_result(whole[head + 4 :])
        else:
            self._answer.set_exception(RuntimeError(whole.decode()))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server closed the connection"))


def _length(data: bytearray, head: int) -> int:
    at = data.find(b"content-length:", 0, head)
    return int(data[at + 15 : data.find(b"\r", at)]) if at >= 0 else 0


async def send_all(port: int, requests: list[bytes], connections: int) -> list[float]:
    """Send all, one at a time on each connection; how long each took, in seconds, ascending."""
    opened = [await Connection.open(port) for _ in range(connections)]
    took: list[float] = []

    async def work(connection: Connection, waiting: Iterator[bytes]) -> None:
        for data in waiting:
            begin = time.perf_counter()
            await connection.ask(data)
            took.append(time.perf_counter() - begin)

    waiting = iter(requests)
    try:
        await asyncio.gather(*[work(connection, waiting) for connection in opened])
    finally:
        for connection in opened:
            connection.close()
    return sorted(took)


async def call(port: int, method: str, path: str, body: Any = None) -> Any:
    """One request, encoded and decoded."""
    connection = await Connection.open(port)
    try:
        answer = await connection.ask(request(method, path, b"" if body is None else msgspec.json.encode(body)))
        return msgspec.json.decode(answer) if answer else None
    finally:
        connection.close()


async def put_type(port: int, **fields: Any) -> None:
    """The type that all timers here are of; without a processor's url it is never delivered."""
    body = {"url": "http://127.0.0.1:9/", **fields}
    await call(port, "PUT", f"/v1/types/{TYPE}", {name: value for name, value in body.items() if value is not None})


async def stats(port: int) -> dict[str, Any]:
    """The type's counts."""
    found: dict[str, Any] = (await call(port, "GET", "/v1/stats"))["types"][TYPE]
    return found
