"""The HTTP attempt: one POST of one batch, and what came back, as a value.

It follows no redirect, keeps no cookie, reads no proxy from the environment and knows no retry policy: every judgement
on the answer is the engine's. It has no limit of its own on connections, since a type's slots are the limit.

What it must get right is *whether the batch may have arrived*, because that is what `possible_duplicate` and the
attempt count rest on:
- nothing was handed to the kernel: `connect`, whatever the cause (a time-out while connecting included);
- something was, and no whole answer came: `lost`, or `timeout`.
A pooled connection that turns out to be closed before anything was handed over is no failure: the same call goes on
with another one. Once bytes have left it is `lost`, because nobody can tell an idle connection that was closed a
moment before from a target that died over the batch.
"""

import asyncio
from functools import lru_cache
from typing import Final

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from timerd.ports import Answer, Request

KEEP_ALIVE_S: Final = 4.0  # shorter than the 5 s after which uvicorn and node close: we let go first, and lose nothing
STALE_MAX: Final = 3  # closed connections that a call puts up with; a target that closes all at once leaves many
DNS_TTL_S: Final = 10
DETAIL_CHARS_MAX: Final = 200


class HttpDeliver:
    """`ports.Deliver` over one aiohttp session, made at the first use (it belongs to the loop that runs then)."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(self, request: Request) -> Answer:
        """See the port. Never raises for anything that the target or the URL does."""
        body = _Body(request.body)
        try:
            async with asyncio.timeout(request.timeout_ms / 1000):
                for _ in range(STALE_MAX):
                    try:
                        return await self._exchange(request, body)
                    except aiohttp.ClientConnectorError:
                        raise
                    except aiohttp.ClientConnectionError:
                        if body.left:
                            raise
                    # The pool gave out a connection that had just been closed, and has dropped it now.
                return await self._exchange(request, body)
        except TimeoutError:
            if body.left:
                return Answer(error="timeout", detail=f"no answer within {request.timeout_ms} ms")
            return Answer(error="connect", detail=f"no connection within {request.timeout_ms} ms")
        except (aiohttp.ClientError, OSError, ValueError, TypeError, LookupError) as error:
            # The last three are what a URL or a header that can't be sent raises; nothing has left then.
            detail = str(error) or type(error).__name__
            return Answer(error="lost" if body.left else "connect", detail=detail[:DETAIL_CHARS_MAX])

    async def close(self) -> None:
        """Let go of all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _exchange(self, request: Request, body: "_Body") -> Answer:
        async with self._open_session().post(
            _url(request.url), data=body, headers=request.headers, allow_redirects=False
        ) as response:
            data, overlong = await _read(response, request.answer_bytes_max)
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(status=response.status, headers=headers, body=data, overlong=overlong)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, ttl_dns_cache=DNS_TTL_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # ours is around the whole call
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
                trust_env=False,
            )
        return self._session


class _Body(aiohttp.BytesPayload):
    """The body, and whether any of the request has left: aiohttp holds the headers back until it writes the body."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, content_type="application/json")
        self.left = False

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        transport = writer.transport
        if transport is not None and not transport.is_closing():
            self.left = True
        await super().write_with_length(writer, content_length)


async def _read(response: aiohttp.ClientResponse, bytes_max: int) -> tuple[bytes, bool]:
    """The answer's body up to `bytes_max`, and whether it went on; then its connection is not used again."""
    parts: list[bytes] = []
    room = bytes_max
    async for part in response.content.iter_any():
        if len(part) > room:
            parts.append(part[:room])
            response.close()
            return b"".join(parts), True
        parts.append(part)
        room -= len(part)
    return b"".join(parts), False


@lru_cache(maxsize=1024)
def _url(text: str) -> URL:
    return URL(text)
