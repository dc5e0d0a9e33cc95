"""One poll against the provider: every kind of answer, good and bad, and the cut-off."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from examples.feeds.poller import Poller, Result
from examples.feeds.provider import Provider, address
from examples.feeds.publication import TROUBLE, Kind, Publication
from examples.feeds.store import Claimed

URL = "https://a.example/?x=1&y=ü#z"
CUTOFF_S = 0.4

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def claimed(etag: str | None = None, last_modified: str | None = None, url: str = URL) -> Claimed:
    return Claimed("a", url, 5_000, 0, etag, last_modified)


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def providing(kind: Kind, seed: int = 1) -> AsyncIterator[tuple[Poller, io.StringIO]]:
    log = io.StringIO()
    app = web.Application()
    app.router.add_get("/", Provider({URL: Publication(URL, kind, seed, 0)}, log, slow_s=5.0).handle)
    async with served(app) as base, Poller(CUTOFF_S, lambda url: address(base, url)) as poller:
        yield poller, log


def logged(log: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


@pytest.mark.parametrize("seed", range(8))
async def test_a_feed_is_read_once_and_then_unmodified(seed: int) -> None:
    async with providing(Kind.QUIET, seed) as (poller, log):
        first = await poller.poll(claimed())
        assert (first.status, first.error, first.title) == (200, None, URL)
        assert first.entries
        second = await poller.poll(claimed(first.etag, first.last_modified))
        assert second == Result(304, None, first.etag, first.last_modified, "", [])
        assert [line["how"] for line in logged(log)] == ["whole", "unmodified"]


async def test_a_feed_without_validators_is_read_again() -> None:
    async with providing(Kind.BARE) as (poller, _):
        first, second = await poller.poll(claimed()), await poller.poll(claimed())
        assert (first.etag, first.last_modified) == (None, None)
        assert first.status == second.status == 200


@pytest.mark.parametrize("kind", list(TROUBLE))
async def test_trouble_is_a_failed_poll_that_keeps_the_cursor(kind: Kind) -> None:
    async with providing(kind) as (poller, log):
        for _ in range(12):
            result = await poller.poll(claimed('"e"', "Mon, 30 Nov 2026 08:00:00 GMT"))
            line = logged(log)[-1]
            assert line["failed"] == (result.error is not None), (line, result)
            if result.error:
                assert (result.etag, result.last_modified) == ('"e"', "Mon, 30 Nov 2026 08:00:00 GMT")
                assert not result.entries
        lines = logged(log)
        assert len(lines) == 12, "a poll is one request, also when the connection drops"
        assert any(line["how"] == kind.value for line in lines)


async def test_a_slow_answer_is_cut_off_in_time() -> None:
    async with providing(Kind.SLOW) as (poller, log):
        began = asyncio.get_running_loop().time()
        while not logged(log) or not logged(log)[-1]["failed"]:
            began = asyncio.get_running_loop().time()
            result = await poller.poll(claimed())
        assert result.error == "no whole answer within 0.4 s"
        assert CUTOFF_S <= asyncio.get_running_loop().time() - began < CUTOFF_S + 0.5


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"<rss>" * 200_000)


async def circle(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound(request.path)


def text(body: bytes) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    return answer


BOMB = b'<!DOCTYPE rss [<!ENTITY a "aaaa">]><rss><channel><title>&a;</title></channel></rss>'


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (endless, "larger than 8 MiB"),
        (circle, "TooManyRedirects"),
        (text(b"<html><body>Sorry</body></html>"), "not a feed"),
        (text(b""), "not well-formed"),
        (text(BOMB), "declares entities"),
        (text(b"<rss version='2.0'/>"), "no channel"),
    ],
)
async def test_what_is_no_feed_fails_with_a_reason(handler: Handler, error: str) -> None:
    app = web.Application()
    app.router.add_get("/", handler)
    async with served(app) as base, Poller(5.0) as poller:
        result = await poller.poll(claimed(url=base))
        assert error in (result.error or "")


@pytest.mark.parametrize("etag", [b'"\xff\xfe"', b'"' + b"x" * 600 + b'"', b""])
async def test_a_validator_that_can_t_be_sent_back_is_not_kept(etag: bytes) -> None:
    body = b"<rss><channel><title>t</title></channel></rss>"
    head = b"HTTP/1.1 200 OK\r\nETag: " + etag + b"\r\nContent-Length: %d\r\n\r\n" % len(body)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, Poller(5.0) as poller:
        port = server.sockets[0].getsockname()[1]
        result = await poller.poll(claimed(url=f"http://127.0.0.1:{port}/"))
    assert (result.error, result.etag) == (None, None)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://nowhere.invalid/", "http://a..b/", "http://[::1/", ""])
async def test_an_address_that_can_t_be_reached_is_a_failed_poll(url: str) -> None:
    async with Poller(5.0) as poller:
        assert (await poller.poll(claimed(url=url))).error


async def test_entries_are_found_in_every_format() -> None:
    formats = set()
    for seed in range(24):
        publication = Publication(URL, Kind.STEADY, seed, 0)
        early, late = publication.answer(1, None, None), publication.answer(60_000, None, None)
        formats.add((early.headers["Content-Type"], early.body[:9]))
        async with _fixed(early.body) as first, _fixed(late.body) as second:
            known = {entry.guid for entry in first.entries}
            assert first.title == URL
            assert known
            assert {entry.guid for entry in second.entries} - known
    assert len(formats) == 4


@asynccontextmanager
async def _fixed(body: bytes) -> AsyncIterator[Result]:
    app = web.Application()
    app.router.add_get("/", text(body))
    async with served(app) as base, Poller(5.0) as poller:
        yield await poller.poll(claimed(url=base))
