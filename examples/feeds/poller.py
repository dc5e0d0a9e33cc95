"""One poll of one feed: a conditional GET, cut off in time, reduced to what there is to store.

A poll never raises for what a feed does: a bad status, a dropped connection, an endless answer and broken XML are all
a *failed poll*, and a failed poll keeps the cursor (ETag, Last-Modified) it had.

    1. A poll sends one request (redirects aside). A repeat is the next poll, at its own time.
    2. It ends within `cutoff_s` of its start, whatever the server does.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

import aiohttp

from . import feed
from .document import BYTES_MAX, BadDocument
from .store import Claimed

USER_AGENT = "timerd-feeds-example (+https://timerd.dev)"
ACCEPT = "application/atom+xml, application/rss+xml, application/xml;q=0.9, text/xml;q=0.9, */*;q=0.1"
REDIRECTS_MAX = 5
BYTES_INLINE_MAX = 256 << 10
"""Reading so much XML takes about 50 ms; what is larger would hold up the other polls and goes to a thread."""
VALIDATOR_CHARACTERS_MAX = 512
ERROR_CHARACTERS_MAX = 200


class Result(NamedTuple):
    """How a poll ended. `error` is None for a good one."""

    status: int | None
    error: str | None
    etag: str | None
    last_modified: str | None
    title: str
    entries: list[feed.Entry]


class Dropped(aiohttp.ClientError):
    """The connection ended before the answer came."""


class Poller:
    """Polls feeds. `resolve` may send a feed's address elsewhere, as the demo does to stay off the network."""

    def __init__(self, cutoff_s: float, resolve: Callable[[str], str] | None = None) -> None:
        self._cutoff_s = cutoff_s
        self._resolve = resolve or (lambda url: url)
        # Connections are not kept: the next poll of a host is minutes away. How many run at once is bounded by the
        # deliveries, so the connector has no limit of its own to queue behind.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            middlewares=[_once],
            headers={"User-Agent": USER_AGENT, "Accept": ACCEPT},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def poll(self, claimed: Claimed) -> Result:
        """Poll once."""
        try:
            async with asyncio.timeout(self._cutoff_s):
                return await self._fetch(claimed)
        except TimeoutError:
            return _failed(claimed, None, f"no whole answer within {self._cutoff_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # ValueError: an address that the client can't use, or a header that isn't one.
            return _failed(claimed, None, f"{type(error).__name__}: {error}")

    async def _fetch(self, claimed: Claimed) -> Result:
        headers = {}
        if claimed.etag:
            headers["If-None-Match"] = claimed.etag
        if claimed.last_modified:
            headers["If-Modified-Since"] = claimed.last_modified
        url = self._resolve(claimed.url)
        async with self._session.get(url, headers=headers, max_redirects=REDIRECTS_MAX) as answer:
            if answer.status == 304:
                return Result(304, None, claimed.etag, claimed.last_modified, "", [])
            if answer.status != 200:
                return _failed(claimed, answer.status, f"HTTP {answer.status}")
            body = await _read(answer)
            try:
                if len(body) > BYTES_INLINE_MAX:
                    found = await asyncio.to_thread(feed.read, body, answer.charset)
                else:
                    found = feed.read(body, answer.charset)
            except BadDocument as error:
                return _failed(claimed, 200, str(error))
            etag, last_modified = (_validator(answer.headers.get(name)) for name in ("ETag", "Last-Modified"))
            return Result(200, None, etag, last_modified, found.title, found.entries)


async def _once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request once. aiohttp sends a GET again by itself when the connection drops; the feed would see two polls,
    so the errors it does that for become one that it doesn't."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise  # Nothing was sent, and nothing is repeated.
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise Dropped(str(error)) from error


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The body, if it is not too large. What counts is the size after decompression."""
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > BYTES_MAX:
            raise aiohttp.ClientPayloadError(f"larger than {BYTES_MAX >> 20} MiB")
    return bytes(body)


def _validator(value: str | None) -> str | None:
    """A header that can be stored and sent back as it is. Raw bytes in headers become characters that can't."""
    return value if value and value.isascii() and len(value) <= VALIDATOR_CHARACTERS_MAX else None


def _failed(claimed: Claimed, status: int | None, error: str) -> Result:
    text = error.encode(errors="replace").decode()[:ERROR_CHARACTERS_MAX]
    return Result(status, text, claimed.etag, claimed.last_modified, "", [])
