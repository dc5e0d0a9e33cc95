"""What is no HTTP, or half of it, or too much: refused in its form, in its order, and never waited for endlessly."""

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.hostile.attacks import limit_cases
from tests.hostile.wire import JSON, Wire, head, request
from tests.support.process import Process

FAR = 2_050_000_000_000
TOO_LARGE = head("POST", "/v1/timers", JSON, "Content-Length: 20000000")


def arm(id: str, n: int = 0) -> bytes:
    return request("PUT", f"/v1/timers/{id}", {"type": "t", "fire_at": FAR + n})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def timerd(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Process]:
    async with Process(tmp_path_factory.mktemp("hostile") / "data") as process:
        await process.put_type("t", url="http://127.0.0.1:9/")
        yield process
        assert await process.stop() == 0
        assert not [line for line in process.log if "request_failed" in line]
        assert not [line for line in process.stderr if "Invalid HTTP" in line or "Traceback" in line]


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_requests_in_one_segment_are_answered_in_order(timerd: Process) -> None:
    async with await Wire.open(timerd.url) as wire:
        requests = []
        for n in range(300):
            requests += [arm("pipelined", n), request("GET", "/v1/timers/pipelined")]
        await wire.send(b"".join(requests))
        for n in range(300):
            assert (await wire.reply()).status == (201 if n == 0 else 200)
            seen = await wire.reply()
            assert seen.json()["fire_at"] == f"2034-12-17T20:26:40.{n:03}Z"


async def test_what_is_no_http_is_refused_behind_the_answers_to_what_came_before(timerd: Process) -> None:
    async with await Wire.open(timerd.url) as wire:
        await wire.send(arm("before") + request("GET", "/healthz") + b"\x16\x03\x01 no HTTP\r\n\r\n")
        assert (await wire.reply()).status == 201
        assert (await wire.reply()).json() == {"status": "ok"}
        refusal = await wire.reply()
        assert (refusal.status, refusal.problem) == (400, "malformed")
        assert "timerd-now" in refusal.headers
        assert await wire.ends() == b""


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n",
        b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        head("POST", "/v1/timers", JSON, "Content-Length: -1"),
        head("POST", "/v1/timers", JSON, "Content-Length: 1", "Content-Length: 2") + b"{}",
        head("POST", "/v1/timers", JSON, "Content-Length: 2", "Transfer-Encoding: chunked") + b"{}",
        head("POST", "/v1/timers", JSON, "Transfer-Encoding: chunked") + b"zz\r\n{}\r\n0\r\n\r\n",
        head("POST", "/v1/timers", JSON, "Transfer-Encoding: chunked") + b"2\r\n{}\r\n-1\r\n\r\n",
        head("GET", "/" + "a" * 40_000),
        head("GET", "/healthz", "X: " + "a" * 70_000),
        head("GET", "/healthz", *(f"X{n}: {n}" for n in range(10_000))),
        head("POST", "/v1/timers", JSON, "Transfer-Encoding: chunked") + b"1;" + b"x" * 100_000,
        head("POST", "/v1/timers", JSON, "Transfer-Encoding: chunked") + b"1\r\n{\r\n0\r\n" + b"x: y\r\n" * 20_000,
    ],
)
async def test_what_is_no_request_is_refused_with_a_problem(timerd: Process, data: bytes) -> None:
    async with await Wire.open(timerd.url) as wire:
        refusal = await wire.ask(data)
        assert (refusal.status, refusal.problem) == (400, "malformed")
        assert await asyncio.wait_for(wire.ends(), 3) == b""  # closed at once


async def test_a_head_of_the_size_that_is_allowed_passes(timerd: Process) -> None:
    async with await Wire.open(timerd.url) as wire:
        assert (await wire.ask(head("GET", "/healthz", "X: " + "a" * 30_000))).status == 200


async def test_a_caller_that_closes_its_half_gets_its_answers(timerd: Process) -> None:
    async with await Wire.open(timerd.url) as wire:
        await wire.send(arm("half") * 3 + request("GET", "/v1/timers/half") * 50)
        wire.writer.write_eof()
        assert [(await wire.reply()).status for _ in range(53)] == [201] + [200] * 52
        assert await wire.ends() == b""
    async with await Wire.open(timerd.url) as wire:
        await wire.send(arm("half") + arm("quarter")[:-5])
        wire.writer.write_eof()
        assert (await wire.reply()).status == 200
        assert (await wire.reply()).status == 400
        assert await wire.ends() == b""
    assert await timerd.get("quarter") is None


async def test_a_body_behind_its_refusal_is_passed_over(timerd: Process) -> None:
    async with await Wire.open(timerd.url) as wire:
        assert (await wire.ask(TOO_LARGE)).status == 413
        await wire.send(b" " * 20_000_000)
        assert (await wire.ask(request("GET", "/healthz"))).status == 200


async def test_what_does_not_come_is_not_waited_for(timerd: Process) -> None:
    async def silent(start: bytes) -> None:
        async with await Wire.open(timerd.url) as wire:
            await wire.send(start)
            assert await wire.ends() == b""

    async def dripping(data: bytes) -> None:
        async with await Wire.open(timerd.url) as wire:
            for at in range(0, len(data), 4):
                await wire.send(data[at : at + 4])
                await asyncio.sleep(0.1)
            refusal = await wire.reply()
            assert (refusal.status, refusal.problem) == (400, "malformed")
            assert await wire.ends() == b""

    async def refused() -> None:
        """A body that nobody wants, a byte now and then."""
        async with await Wire.open(timerd.url) as wire:
            assert (await wire.ask(TOO_LARGE)).status == 413
            while not wire.reader.at_eof():
                try:
                    await wire.send(b" ")
                except ConnectionError:
                    break
                await asyncio.sleep(0.1)

    async with asyncio.timeout(20):
        await asyncio.gather(
            refused(),
            silent(b""),
            silent(b"\r\n"),
            dripping(b"GET /healthz HT"),
            dripping(request("GET", "/healthz")[:-2]),
        )


@pytest.mark.parametrize("number", range(len(limit_cases())))
async def test_every_bound_at_it_and_one_beyond(timerd: Process, number: int) -> None:
    data, expected = limit_cases()[number]
    async with await Wire.open(timerd.url) as wire:
        reply = await wire.ask(data)
        assert reply.status == expected, reply.body[:300]
        assert expected < 400 or reply.problem


async def test_a_body_that_is_asked_for_first(timerd: Process) -> None:
    body = b'{"type":"t","delay":"1h"}'
    async with await Wire.open(timerd.url) as wire:
        await wire.send(head("PUT", "/v1/timers/e", JSON, f"Content-Length: {len(body)}", "Expect: 100-continue"))
        assert (await wire.reply()).status == 100
        assert (await wire.ask(body)).status == 201
        refused = head("PUT", "/v1/timers/e", "Content-Type: text/plain", "Content-Length: 9", "Expect: 100-continue")
        assert (await wire.ask(refused)).status == 415


async def test_compressed_bodies_are_of_no_supported_type(timerd: Process) -> None:
    body = gzip.compress(b'{"type":"t","delay":"1h"}')
    for method, target in (("PUT", "/v1/timers/z"), ("POST", "/v1/timers"), ("PUT", "/v1/types/t")):
        async with await Wire.open(timerd.url) as wire:
            refusal = await wire.ask(request(method, target, body, "Content-Encoding: gzip"))
            assert (refusal.status, refusal.problem) == (415, "unsupported-media-type")
            plain = request(method, target, b"{}", "Content-Encoding: identity")
            assert (await wire.ask(plain)).status in (200, 422)


async def test_old_and_odd_forms_of_http(timerd: Process) -> None:
    async with await Wire.open(timerd.url) as wire:
        old = await wire.ask(head("GET", "/healthz", version="1.0"))
        assert (old.status, old.headers["connection"]) == (200, "close")
        assert await wire.ends() == b""
    async with await Wire.open(timerd.url) as wire:
        assert (await wire.ask(head("GET", timerd.url + "/v1/status"))).status == 200
        # A protocol that is not spoken here is not changed to, and what follows is answered all the same.
        upgrade = head("GET", "/healthz", "Connection: Upgrade", "Upgrade: h2c")
        await wire.send(upgrade + request("GET", "/healthz") + arm("u"))
        assert [(await wire.reply()).status for _ in range(3)] == [200, 200, 201]
        assert (await wire.ask(b"\r\n" + request("GET", "/healthz"))).status == 200
    async with await Wire.open(timerd.url) as wire:
        wire.writer.write(arm("last")[:-20])
        assert (await wire.ask(arm("last")[-20:] + head("GET", "/healthz", "Connection: close"))).status == 201
        assert (await wire.reply()).status == 200
        assert await wire.ends() == b""
