"""The HTTP attempt against real servers on this machine: what arrives there, and what is said of what came back."""

import asyncio
import gzip
import os
import socket
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from timerd.deliver import HttpDeliver
from timerd.ports import Answer, Request
from timerd.signing import sign

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def deliver() -> AsyncIterator[HttpDeliver]:
    deliver = HttpDeliver()
    yield deliver
    await deliver.close()


@asynccontextmanager
async def raw_server(handle: Handler) -> AsyncIterator[str]:
    """A server that does with each connection what it is told. Its handlers end with it."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/poll"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def http_server(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return head + await reader.readexactly(length)


def to(url: str, **fields: object) -> Request:
    defaults = {"headers": {"Content-Type": "application/json"}, "body": b'{"timers":[]}'}
    return Request(url=url, **{"timeout_ms": 2000, "answer_bytes_max": 1 << 20, **defaults, **fields})  # type: ignore[arg-type]


def sockets() -> int:
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return sum(name.startswith("socket:") for name in names)


# ---- answers


async def test_an_answer_comes_back_as_it_is_and_the_request_arrives_as_it_was(deliver: HttpDeliver) -> None:
    seen: list[tuple[str, dict[str, str], bytes]] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append((request.method, dict(request.headers), await request.read()))
        return web.json_response({"results": []}, status=202, headers={"Retry-After": "5"})

    async with http_server(handle) as url:
        headers = {"Content-Type": "application/json", "User-Agent": "timerd/1", "webhook-id": "b", "X-Own": "1"}
        answer = await deliver.post(to(f"{url}/poll?a=b%2Fc", headers=headers))
    assert (answer.status, answer.body, answer.error, answer.overlong) == (202, b'{"results": []}', None, False)
    assert answer.headers["retry-after"] == "5"
    assert answer.headers["content-type"].startswith("application/json")
    ((method, arrived, body),) = seen
    assert (method, body) == ("POST", b'{"timers":[]}')
    assert set(arrived) - {"Host", "Content-Length"} == set(headers)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_answer_and_is_not_followed(deliver: HttpDeliver, status: int) -> None:
    seen: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(f"{request.method} {request.path}")
        return web.Response(status=status, headers={"Location": "/ok"})

    async with http_server(handle) as url:
        answer = await deliver.post(to(f"{url}/poll"))
    assert answer.status == status
    assert seen == ["POST /poll"]


async def test_cookies_are_not_kept(deliver: HttpDeliver) -> None:
    seen: list[str | None] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Cookie"))
        response = web.Response()
        response.set_cookie("session", "1")
        return response

    async with http_server(handle) as url:
        url = url.replace("127.0.0.1", "localhost")  # a cookie jar takes none from a bare address
        assert (await deliver.post(to(url))).status == 200
        assert (await deliver.post(to(url))).status == 200
    assert seen == [None, None]


async def test_a_proxy_of_the_environment_is_not_used(deliver: HttpDeliver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    async def handle(request: web.Request) -> web.Response:
        return web.Response()

    async with http_server(handle) as url:
        assert (await deliver.post(to(url))).status == 200


async def test_an_endless_answer_is_cut_off_and_its_connection_dropped(deliver: HttpDeliver) -> None:
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                await writer.drain()
        finally:
            ended.set()

    async with raw_server(handle) as url:
        answer = await deliver.post(to(url, answer_bytes_max=10_000))
        await asyncio.wait_for(ended.wait(), 2)
    assert (answer.status, len(answer.body), answer.overlong) == (200, 10_000, True)


async def test_an_answer_as_long_as_allowed_is_not_overlong(deliver: HttpDeliver) -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 10_000)

    async with http_server(handle) as url:
        answer = await deliver.post(to(url, answer_bytes_max=10_000))
        assert (len(answer.body), answer.overlong) == (10_000, False)
        answer = await deliver.post(to(url, answer_bytes_max=9_999))
        assert (len(answer.body), answer.overlong) == (9_999, True)


# ---- no answer


async def test_a_refused_connection_is_connect() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
        deliver = HttpDeliver()
        answer = await deliver.post(to(url))
        await deliver.close()
    assert (answer.status, answer.error) == (None, "connect")
    assert answer.detail


@pytest.mark.parametrize(
    "url", ["", "poll", "ftp://127.0.0.1/x", "http://", "http://127.0.0.1:99999/", "http://[::1", "http://a b/"]
)
async def test_a_url_that_is_none_is_connect(deliver: HttpDeliver, url: str) -> None:
    assert (await deliver.post(to(url))).error == "connect"


async def test_a_header_that_can_not_be_sent_is_connect(deliver: HttpDeliver) -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response()

    async with http_server(handle) as url:
        assert (await deliver.post(to(url, headers={"X": "a\r\nY: b"}))).error == "connect"


async def test_a_name_that_does_not_resolve_is_connect(deliver: HttpDeliver) -> None:
    assert (await deliver.post(to("http://no-such-host.invalid/"))).error == "connect"


async def test_no_answer_in_time_is_timeout(deliver: HttpDeliver) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with raw_server(handle) as url:
        assert (await deliver.post(to(url, timeout_ms=100))).error == "timeout"


async def test_a_slow_answer_is_bounded_as_a_whole(deliver: HttpDeliver) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with raw_server(handle) as url:
        started = asyncio.get_running_loop().time()
        answer = await deliver.post(to(url, timeout_ms=200))
    assert answer.error == "timeout"
    assert asyncio.get_running_loop().time() - started < 1


async def test_a_time_out_before_anything_was_sent_is_connect(deliver: HttpDeliver) -> None:
    """A listener whose accept queue is full lets no connection come about."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = []
        for _ in range(8):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            fillers.append(filler)
        await asyncio.sleep(0.05)
        answer = await deliver.post(to(f"http://127.0.0.1:{address[1]}/", timeout_ms=200))
        for filler in fillers:
            filler.close()
    assert answer.error == "connect"


async def test_a_handshake_that_never_ends_is_connect(deliver: HttpDeliver) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with raw_server(handle) as url:
        assert (await deliver.post(to(url.replace("http:", "https:"), timeout_ms=200))).error == "connect"


async def test_a_target_that_speaks_no_tls_is_connect(deliver: HttpDeliver) -> None:
    assert ssl.HAS_TLSv1_2

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with raw_server(handle) as url:
        assert (await deliver.post(to(url.replace("http:", "https:")))).error == "connect"


@pytest.mark.parametrize(
    "before_the_end",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf",
        b"this is no HTTP at all\r\n\r\n",
    ],
)
@pytest.mark.parametrize("reset", [False, True])
async def test_an_end_in_the_middle_is_lost(deliver: HttpDeliver, before_the_end: bytes, reset: bool) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(before_the_end)
        await writer.drain()
        if reset:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()

    async with raw_server(handle) as url:
        answer = await deliver.post(to(url))
    assert (answer.status, answer.error) == (None, "lost")


INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(("interim", "taken"), [(0, True), (1, True), (8, True), (9, False), (5_000, False)])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_few_interim_answers_are_taken(deliver: HttpDeliver, interim: int, taken: bool, at_once: bool) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            if at_once:
                writer.write(INTERIM * interim + OK)
                continue
            for _ in range(min(interim, 20)):
                writer.write(INTERIM)
                await asyncio.sleep(0.002)
            writer.write(OK)

    async with raw_server(handle) as url:
        for _ in range(3):  # the count begins anew with each request on a connection
            answer = await deliver.post(to(url))
            if taken:
                assert (answer.status, answer.body, answer.error) == (200, b"ok", None)
            else:
                assert (answer.status, answer.error) == (None, "lost")
                assert "interim" in answer.detail


@pytest.mark.parametrize(
    ("start", "rest", "why"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000, "interim"),
        (b"", b"HTTP/1.1 100 Continue\r\nA: " + b"x" * 8_000 + b"\r\n" * 2, "head"),
        (b"HTTP/1.1 200 OK\r\n", (b"A: " + b"x" * 4_000 + b"\r\n") * 10, "head"),
        (CHUNKED, b"1\r\nx\r\n" * 10_000, "framing"),
        (CHUNKED + b"1;", b"x" * 65_536, "framing"),
        (CHUNKED + b"0\r\n", b"A: x\r\n" * 10, ""),
    ],
)
async def test_an_endless_answer_that_is_no_body_ends_and_holds_up_nothing(
    deliver: HttpDeliver, start: bytes, rest: bytes, why: str
) -> None:
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await read_request(reader)
            writer.write(start)
            while True:
                writer.write(rest)
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            ended.set()

    longest, last = 0.0, time.perf_counter()

    async def watch() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    async with raw_server(handle) as url:
        watching = asyncio.create_task(watch())
        started = time.perf_counter()
        answer = await deliver.post(to(url, timeout_ms=10_000, answer_bytes_max=1 << 24))
        took = time.perf_counter() - started
        await asyncio.wait_for(ended.wait(), 2)
        watching.cancel()
    assert (answer.status, answer.error) == (None, "lost")
    assert why in answer.detail
    assert took < 5
    assert longest < 1


async def test_a_body_in_small_chunks_is_taken(deliver: HttpDeliver) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKED + b"8\r\n12345678\r\n" * 50_000 + b"0\r\n\r\n")

    async with raw_server(handle) as url:
        answer = await deliver.post(to(url))
    assert (answer.status, len(answer.body)) == (200, 400_000)


async def test_an_answer_nobody_waits_for_is_not_the_next_one(deliver: HttpDeliver) -> None:
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(OK)
        await asyncio.sleep(0.02)
        writer.write(OK.replace(b"ok", b"no"))
        await reader.read()

    async with raw_server(handle) as url:
        for _ in range(3):
            answer = await deliver.post(to(url))
            assert (answer.status, answer.body) == (200, b"ok")
            await asyncio.sleep(0.05)
    assert connections == 3


# ---- compressed answers

PLAIN = b'{"results":[{"id":"a","status":"ok"}]}'
_RAW = zlib.compressobj(wbits=-zlib.MAX_WBITS)
PACKED = [
    ("gzip", gzip.compress(PLAIN, mtime=0)),
    ("X-Gzip", gzip.compress(PLAIN, mtime=0)),
    ("deflate", zlib.compress(PLAIN)),
    ("deflate", _RAW.compress(PLAIN) + _RAW.flush()),
]


async def answer_of(deliver: HttpDeliver, coding: str, bodies: list[bytes], **fields: object) -> list[Answer]:
    left = list(bodies)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            body = left.pop(0)
            writer.write(CHUNKED[:-2] + f"Content-Encoding: {coding}\r\n\r\n".encode())
            writer.write((b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n")

    async with raw_server(handle) as url:
        return [await deliver.post(to(url, **fields)) for _ in bodies]


@pytest.mark.parametrize(("coding", "packed"), PACKED)
async def test_a_compressed_answer_counts_only_if_it_is_whole(deliver: HttpDeliver, coding: str, packed: bytes) -> None:
    (whole,) = await answer_of(deliver, coding, [packed])
    assert (whole.status, whole.body, whole.overlong) == (200, PLAIN, False)
    for answer in await answer_of(deliver, coding, [packed[:cut] for cut in range(len(packed))]):
        assert (answer.status, answer.error) == (None, "lost")
        assert answer.detail
    (longer,) = await answer_of(deliver, coding, [packed + b"x"])
    assert longer.error == "lost"


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, br", "gzip, gzip", "x"])
async def test_a_coding_that_is_not_read_is_lost(deliver: HttpDeliver, coding: str) -> None:
    (answer,) = await answer_of(deliver, coding, [b"{}"])
    assert (answer.status, answer.error) == (None, "lost")
    assert coding in answer.detail


async def test_a_compressed_answer_is_bounded_by_what_it_becomes(deliver: HttpDeliver) -> None:
    for packed in (gzip.compress(b"x" * 10_000_000), gzip.compress(b"x" * 10_001), gzip.compress(os.urandom(20_000))):
        (answer,) = await answer_of(deliver, "gzip", [packed], answer_bytes_max=10_000)
        assert (answer.status, answer.overlong) == (200, True)
        assert len(answer.body) <= 10_000
    (answer,) = await answer_of(deliver, "gzip", [gzip.compress(b"x" * 10_000)], answer_bytes_max=10_000)
    assert (answer.status, answer.overlong, len(answer.body)) == (200, False, 10_000)


@pytest.mark.parametrize("head", [b"HTTP/1.1 204 No\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"])
@pytest.mark.parametrize("coding", [b"identity", b"gzip"])
async def test_no_body_needs_no_decompression(deliver: HttpDeliver, head: bytes, coding: bytes) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(head + b"Content-Encoding: " + coding + b"\r\n\r\n")

    async with raw_server(handle) as url:
        answer = await deliver.post(to(url))
    assert (answer.error, answer.body) == (None, b"")


# ---- connections


async def test_connections_are_kept(deliver: HttpDeliver) -> None:
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with raw_server(handle) as url:
        for _ in range(10):
            assert (await deliver.post(to(url))).body == b"ok"
    assert connections == 1


async def test_a_kept_connection_that_was_closed_meanwhile_is_no_failure(deliver: HttpDeliver) -> None:
    arrived = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        await read_request(reader)
        arrived += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with raw_server(handle) as url:
        for _ in range(20):
            # The server closes after each answer without a word; whether that is seen before or after the connection
            # is taken from the pool is a matter of chance, and must not matter.
            answer = await deliver.post(to(url))
            assert answer.status == 200 or answer.error == "lost"
            await asyncio.sleep(0.005)
    assert arrived == 20


async def test_connections_found_closed_before_a_byte_has_left_are_replaced(deliver: HttpDeliver) -> None:
    arrived = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        while True:
            await read_request(reader)
            arrived += 1
            await asyncio.sleep(0.02)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with raw_server(handle) as url:
        await asyncio.gather(*[deliver.post(to(url)) for _ in range(3)])
        assert deliver._session is not None
        connector = deliver._session.connector
        assert connector is not None
        # What a FIN does that is read between the moment a connection leaves the pool and the moment it is written to.
        for kept in next(iter(connector._conns.values())):
            kept[0].is_connected = lambda: True  # type: ignore[method-assign]
            assert kept[0].transport is not None
            kept[0].transport.close()
        answer = await deliver.post(to(url))
    assert answer.status == 200
    assert arrived == 4


async def test_a_kept_connection_that_ends_after_the_request_left_is_lost_and_not_repeated(
    deliver: HttpDeliver,
) -> None:
    arrived = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        await read_request(reader)
        arrived += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await read_request(reader)
        arrived += 1

    async with raw_server(handle) as url:
        assert (await deliver.post(to(url))).status == 200
        assert (await deliver.post(to(url))).error == "lost"
    assert arrived == 2


async def test_time_outs_use_up_nothing(deliver: HttpDeliver) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def handle(request: web.Request) -> web.Response:
        return web.Response()

    async with http_server(handle) as good:
        assert (await deliver.post(to(good))).status == 200
        before = sockets()
        async with raw_server(hang) as url:
            answers = await asyncio.gather(*[deliver.post(to(url, timeout_ms=1_500)) for _ in range(25)])
            secure = url.replace("http:", "https:")
            answers += await asyncio.gather(*[deliver.post(to(secure, timeout_ms=1_500)) for _ in range(25)])
        assert [answer.error for answer in answers] == ["timeout"] * 25 + ["connect"] * 25
        assert (await deliver.post(to(good))).status == 200
        for _ in range(100):
            if sockets() <= before:
                break
            await asyncio.sleep(0.01)
        assert sockets() <= before


async def test_a_cancelled_call_closes_its_connection(deliver: HttpDeliver) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        begun.set()
        await reader.read()
        ended.set()

    async with raw_server(handle) as url:
        call = asyncio.create_task(deliver.post(to(url)))
        await asyncio.wait_for(begun.wait(), 2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(ended.wait(), 2)


async def test_a_slow_target_holds_up_no_other(deliver: HttpDeliver) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def handle(request: web.Request) -> web.Response:
        return web.Response()

    async with raw_server(hang) as slow, http_server(handle) as good:
        hanging: list[asyncio.Task[Answer]] = [
            asyncio.create_task(deliver.post(to(slow, timeout_ms=1000))) for _ in range(200)
        ]
        answers = await asyncio.gather(*[deliver.post(to(good)) for _ in range(50)])
        assert {answer.status for answer in answers} == {200}
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


# ---- signatures

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ="


def test_a_receiver_verifies_a_signature_with_any_of_the_secrets() -> None:
    body = '{"timers":["\u00e9"]}'.encode()
    now = int(datetime.now(UTC).timestamp())
    headers = {
        "webhook-id": "b",
        "webhook-timestamp": str(now),
        "webhook-signature": sign([SECRET, OTHER], "b", now, body),
    }
    assert headers["webhook-signature"].count("v1,") == 2
    for secret in (SECRET, OTHER):
        Webhook(secret).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body + b" ", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_bm90LXRoaXM=").verify(body, headers)


def test_a_signature_is_that_of_the_specification() -> None:
    signature = sign([SECRET], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_a", "\u00e9"])
def test_a_secret_that_can_not_sign_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="signing secret"):
        sign([secret], "b1", 1_796_000_000, b"{}")
