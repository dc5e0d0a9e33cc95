"""Through a real server: what the wire and uvicorn make of paths, chunks and limits."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn

from tests.api.fake_service import NOW_MS, FakeService
from timerd_api.app import create_app
from timerd_api.settings import ApiSettings

SOON = NOW_MS + 60_000
ARM = b'{"timers":[{"id":"a","type":"poll","fire_at":%d}]}' % SOON


@pytest.fixture(params=["httptools", "h11"])
def parser(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def port(service: FakeService, parser: str) -> AsyncIterator[int]:
    settings = ApiSettings(max_body_bytes=100_000, max_bodies_in_progress_bytes=150_000, body_grace_ms=1_000)
    config = uvicorn.Config(
        create_app(service, settings), http=parser, loop="none", lifespan="off", access_log=False, log_level="warning"
    )  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(server._serve([listener]))
        while not server.started:
            await asyncio.sleep(0)
        yield listener.getsockname()[1]
        server.should_exit = True
        await serving


class Connection:
    """A connection on which bytes are written as they are given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        assert any(line.startswith(b"timerd-now: 2026-11-30t08:00:00.000z") for line in lines)
        lengths = [line.split(b":")[1] for line in lines if line.startswith(b"content-length:")]
        body = await self.reader.readexactly(int(lengths[0])) if lengths else b""
        return int(head.split()[1]), body


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


def head(method: str, target: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode("latin-1")


JSON = "Content-Type: application/json"


async def test_paths_arrive_as_they_were_sent(port: int, service: FakeService) -> None:
    put = b'{"type":"poll","delay":"1h"}'
    async with connected(port) as connection:
        for segment, id in [
            ("a%2Fb", "a/b"), ("a%252Fb", "a%2Fb"), ("a%3Ffoo", "a?foo"), ("%23", "#"), ("a:fire", "a:fire"),
            ("%F0%9F%99%82", "🙂"), ("%C3%A9", "é"), ("...", "..."), ("a;b", "a;b"), ("a+b", "a+b"), ("%25", "%"),
        ]:  # fmt: skip
            service.timers.clear()
            await connection.write(head("PUT", f"/v1/timers/{segment}", JSON, f"Content-Length: {len(put)}") + put)
            status, _ = await connection.answer()
            assert status == 201
            assert list(service.timers) == [id]
            await connection.write(head("GET", f"/v1/timers/{segment}"))
            assert (await connection.answer())[0] == 200
            await connection.write(head("POST", f"/v1/timers/{segment}:fire"))
            assert (await connection.answer())[0] == 200
        for segment, status in [("..", 422), ("%2e%2E", 422), (".", 422), ("%00", 422), ("%ff", 400), ("%", 400)]:
            await connection.write(head("GET", f"/v1/timers/{segment}"))
            assert (await connection.answer())[0] == status
        await connection.write(head("GET", "/v1/timers?id_prefix=a%2Fb&page_size=3"))
        assert (await connection.answer())[0] == 200
        assert service.asked[-1][2] == 3


async def test_a_slow_body_in_chunks(port: int, service: FakeService) -> None:
    async with connected(port) as slow, connected(port) as other:
        await slow.write(head("POST", "/v1/timers", JSON, "Transfer-Encoding: chunked"))
        for at in range(0, len(ARM), 7):
            piece = ARM[at : at + 7]
            await slow.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await other.write(head("GET", "/healthz"))
            assert (await other.answer())[0] == 200
        assert service.asked == []
        await slow.write(b"0\r\n\r\n")
        assert (await slow.answer())[0] == 200
    assert "a" in service.timers


async def test_too_large_is_said_before_the_body_has_come(port: int, service: FakeService) -> None:
    async with connected(port) as announced:
        await announced.write(head("POST", "/v1/timers", JSON, "Content-Length: 100001"))
        assert (await announced.answer())[0] == 413
    async with connected(port) as chunked:
        await chunked.write(head("POST", "/v1/timers", JSON, "Transfer-Encoding: chunked"))
        for _ in range(11):
            await chunked.write(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        assert (await chunked.answer())[0] == 413
    async with connected(port) as good:
        await good.write(head("POST", "/v1/timers", JSON, f"Content-Length: {len(ARM)}") + ARM)
        assert (await good.answer())[0] == 200


async def test_bodies_in_progress_are_bounded_together(port: int) -> None:
    async with connected(port) as first, connected(port) as second:
        await first.write(head("POST", "/v1/timers", JSON, "Content-Length: 90000") + b" " * 80_000)
        for _ in range(5):  # the first body's bytes have been taken once another request has been answered
            await second.write(head("GET", "/healthz"))
            await second.answer()
        await second.write(head("POST", "/v1/timers", JSON, "Content-Length: 90000") + b" " * 90_000)
        status, body = await second.answer()
        assert (status, b"overloaded" in body) == (503, True)
        first.writer.close()
        await first.writer.wait_closed()
    status = 503
    while status == 503:  # until the server has noticed
        async with connected(port) as third:
            await third.write(head("POST", "/v1/timers", JSON, "Content-Length: 90000") + b" " * 90_000)
            status, _ = await third.answer()
    assert status == 400


async def test_bodies_that_never_end_are_given_up_and_their_room_is_free_again(port: int, service: FakeService) -> None:
    async with contextlib.AsyncExitStack() as held:
        senders = [await held.enter_async_context(connected(port)) for _ in range(4)]
        await senders[0].write(head("POST", "/v1/timers", JSON, "Content-Length: 90000") + b" " * 89_999)
        await senders[1].write(head("POST", "/v1/timers", JSON, "Transfer-Encoding: chunked") + b"2710\r\n ")
        await senders[2].write(head("PUT", "/v1/types/poll", JSON, "Content-Length: 10"))
        await senders[3].write(head("PUT", "/v1/timers/a", JSON, "Content-Length: 10") + b"{")
        async with connected(port) as good:  # a small one comes in all the time
            await good.write(head("POST", "/v1/timers", JSON, f"Content-Length: {len(ARM)}") + ARM)
            assert (await good.answer())[0] == 200
        async with asyncio.timeout(5):
            for sender in senders:
                status, body = await sender.answer()
                assert (status, b"too slowly" in body) == (400, True)
                assert await sender.reader.read() == b""  # closed
        async with connected(port) as large:
            await large.write(head("POST", "/v1/timers", JSON, "Content-Length: 90000") + b" " * 90_000)
            status, body = await large.answer()
            assert (status, b"empty" in body) == (400, True)


async def test_head_has_no_body(port: int) -> None:
    async with connected(port) as connection:
        await connection.write(head("HEAD", "/v1/types/poll"))
        start = await connection.reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in start
        await connection.write(head("GET", "/healthz"))
        assert (await connection.answer()) == (200, b'{"status":"ok"}')
