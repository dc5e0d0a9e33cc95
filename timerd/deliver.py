"""The HTTP attempt: one POST of one batch or one callback's request, and what came back, as a value.

It follows no redirect, keeps no cookie, reads no proxy from the environment and knows no retry policy: every judgement
on the answer is the engine's. It has no limit of its own on connections, since a type's slots are the limit.

What it must get right is *whether the batch may have arrived*, because that is what `possible_duplicate` and the
attempt count rest on:
- nothing was handed to the kernel: `connect`, whatever the cause (a time-out while connecting included);
- something was, and no whole answer came: `lost`, or `timeout`.
A pooled connection that turns out to be closed before anything was handed over is no failure: the same call goes on
with another one. Once bytes have left it is `lost`, because nobody can tell an idle connection that was closed a
moment before from a target that died over the batch.

Callbacks (`guarded` requests) have a pool of their own, whose connections are made past `guard`: one that was made to a
processor can never carry them. Their URL and headers leave byte for byte.

Nor may a target take more than its share of the loop, or have half an answer taken for a whole one:
- `_Protocol` bounds what is no body (interim answers, heads, chunk framing) as the bytes come;
- an answer that is compressed counts only if it decompresses to its very end. We never ask for one, but the absence of
  `Accept-Encoding` forbids none either. aiohttp's own decompression takes a gzip stream that just stops for whole.
"""

import asyncio
import ssl
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader
from yarl import URL

from timerd.engine.address import Targets
from timerd.guard import ForbiddenAddress, GuardedResolver, LookUp, open_socket
from timerd.ports import Answer, Request
from timerd.sending import Body, send
from timerd.wording import wording

KEEP_ALIVE_S: Final = 4.0  # shorter than the 5 s after which uvicorn and node close: we let go first, and lose nothing
STALLED_S: Final = 0.1  # a deadline that is seen so late was not looked for: the process stood still
READ_S: Final = 0.5  # what reading everything that came meanwhile may take then
DNS_TTL_S: Final = 10
DETAIL_CHARS_MAX: Final = 200
INTERIM_MAX: Final = 8  # answers 1xx to one request; we ask for none, and a few hints on the way are all that is usual
HEAD_BYTES_MAX: Final = 64 * 1024  # all heads of one answer; servers themselves rarely take more than 16 KiB
SLICE_BYTES: Final = 8 * 1024  # what is parsed before the bounds are looked at again; a read brings up to 256 KiB
FRAMING_BYTES_MAX: Final = 64 * 1024  # chunk sizes, extensions and trailers; beyond it, as much again as the body has


class HttpDeliver:
    """`ports.Deliver` over two aiohttp sessions, made at their first use (they belong to the loop that runs then)."""

    def __init__(
        self,
        targets: Targets | None = None,
        callback_tls: ssl.SSLContext | None = None,
        look_up: LookUp | None = None,
    ) -> None:
        """`targets`: where guarded requests may go (None: to public addresses). `callback_tls`: what verifies, and
        perhaps is shown to, https targets of theirs. `look_up`: in place of the system's name service."""
        self._targets = targets or Targets()
        self._callback_tls = callback_tls
        self._look_up = look_up
        self._session: aiohttp.ClientSession | None = None
        self._guarded: aiohttp.ClientSession | None = None

    async def post(self, request: Request) -> Answer:
        """See the port. Never raises for anything that the target or the URL does."""
        body = Body(request.body, "application/json")
        try:
            async with _within(request.timeout_ms / 1000):
                return await send(body, lambda: self._exchange(request, body))
        except TimeoutError:
            if body.left:
                return Answer(error="timeout", detail=f"no answer within {request.timeout_ms} ms")
            return Answer(error="connect", detail=f"no connection within {request.timeout_ms} ms")
        except (aiohttp.ClientError, OSError, ValueError, TypeError, LookupError) as error:
            # The last three are what a URL or a header that can't be sent raises; nothing has left then.
            if isinstance(cause := getattr(error, "os_error", error), ForbiddenAddress):
                return Answer(error="forbidden", detail=str(cause)[:DETAIL_CHARS_MAX])
            return Answer(error="lost" if body.left else "connect", detail=wording(error)[:DETAIL_CHARS_MAX])

    async def close(self) -> None:
        """Let go of all connections."""
        for session in (self._session, self._guarded):
            if session is not None:
                await session.close()
        self._session = self._guarded = None

    async def _exchange(self, request: Request, body: Body) -> Answer:
        if request.guarded:
            session, url = self._open_guarded(), URL(request.url, encoded=True)
        else:
            session, url = self._open_session(), _url(request.url)
        async with session.request(
            request.method, url, data=body, headers=request.headers, allow_redirects=False
        ) as response:
            data, overlong = await _read(response, request.answer_bytes_max)
            headers = {name.lower(): value for name, value in response.headers.items()}
            coding = headers.get("content-encoding", "").strip().lower()
            if coding not in ("", "identity") and not _is_bodiless(response.status, headers):
                data, overlong = _decompressed(data, overlong, coding, request.answer_bytes_max)
            return Answer(status=response.status, headers=headers, body=data, overlong=overlong)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = _session(_Connector())
        return self._session

    def _open_guarded(self) -> aiohttp.ClientSession:
        if self._guarded is None:
            connector = _Connector(
                resolver=GuardedResolver(self._targets, self._look_up),
                socket_factory=partial(open_socket, self._targets),
                ssl=self._callback_tls or True,
            )
            self._guarded = _session(connector, "Content-Type")
        return self._guarded


def _session(connector: "_Connector", *not_added: str) -> aiohttp.ClientSession:
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),  # ours is around the whole call
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", *not_added),
        trust_env=False,
        auto_decompress=False,  # see _decompressed
    )
    # aiohttp sends GET, HEAD, PUT and DELETE a second time by itself when a connection ends over them. An attempt is
    # one request. There is no public place for that either; its own test server sets it, and our tests hold it.
    session._retry_connection = False
    return session


@asynccontextmanager
async def _within(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError when it takes longer.

    When the process stood still beyond that (SIGSTOP, a paused machine), an answer that came in time may lie there
    unread, and timers come before sockets: it is given a moment, so that no timer is delivered twice for our pause.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    async with asyncio.timeout(None) as limit:

        def end() -> None:
            now = loop.time()
            limit.reschedule(now + READ_S if now - deadline > STALLED_S else now)

        alarm = loop.call_at(deadline, end)
        try:
            yield
        finally:
            alarm.cancel()


class _Connector(aiohttp.TCPConnector):
    """A connector whose connections are bounded. aiohttp has no public place for that; the tests hold it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(limit=0, keepalive_timeout=KEEP_ALIVE_S, ttl_dns_cache=DNS_TTL_S, **options)
        factory: Any = partial(_Protocol, loop=self._loop)
        self._factory = factory


class _Protocol(ResponseHandler):
    """A connection that ends itself, and the call on it, when the target sends more than an answer may have.

    aiohttp bounds a line and the number of headers, but reads any number of interim answers, and reads them without
    letting anything else run as long as there are more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._begin()

    def _begin(self) -> None:
        self._interim = 0
        self._head_bytes = 0
        self._body: StreamReader | None = None
        self._framed_bytes = 0
        self._over = False

    def set_response_params(self, **options: Any) -> None:
        self._begin()  # a request goes out next
        super().set_response_params(**options)

    def data_received(self, data: bytes) -> None:
        for at in range(0, len(data) or 1, SLICE_BYTES):
            part = data[at : at + SLICE_BYTES]
            if self._body is None:
                self._head_bytes += len(part)  # of the last one some may be body, which is why a slice is small
                if self._head_bytes > HEAD_BYTES_MAX:
                    self._end("its head does not end")
            else:
                self._framed_bytes += len(part)
                if self._framed_bytes > FRAMING_BYTES_MAX + 2 * self._body.total_bytes:
                    self._end("it is hardly anything but chunk framing")
            if self._over:
                return
            super().data_received(part)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        if self._over:
            return
        message, body = data
        if 100 <= message.code < 200 and message.code != 101:
            self._interim += 1
            if self._interim > INTERIM_MAX:
                self._end(f"there are more than {INTERIM_MAX} interim answers")
                return
        elif self._body is not None:
            self._end("there is more than one")  # whose it is meant to be, nobody knows
            return
        else:
            self._body = body
        super().feed_data(data, size)

    def _end(self, why: str) -> None:
        if self._over:
            return
        self._over = True
        if self.transport is not None:
            self.transport.abort()
        error = aiohttp.ClientPayloadError(f"the answer is none: {why}")
        self.set_exception(error)
        if self._body is not None and not self._body.is_eof():
            self._body.set_exception(error)


def _is_bodiless(status: int, headers: dict[str, str]) -> bool:
    """Whether an answer says by itself that it has no body; a Content-Encoding means nothing then."""
    return status in (204, 304) or headers.get("content-length", "").strip() == "0"


def _decompressed(data: bytes, overlong: bool, coding: str, bytes_max: int) -> tuple[bytes, bool]:
    """What `data` was before it was compressed, up to `bytes_max`, and whether it went on.

    Raises ClientPayloadError unless it is one whole stream with nothing behind it. What is cut off for its length
    already needs no end: it counts for nothing but its first words.
    """
    if coding in ("gzip", "x-gzip"):
        window = 16 + zlib.MAX_WBITS
    elif coding == "deflate":  # by the book with a zlib header, and often without
        window = zlib.MAX_WBITS if data[:1] and data[0] & 0xF == 8 else -zlib.MAX_WBITS
    else:
        raise aiohttp.ClientPayloadError(f"the answer has the Content-Encoding {coding!r}; none was asked for")
    stream = zlib.decompressobj(window)
    try:
        plain = stream.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise aiohttp.ClientPayloadError(f"the answer is no {coding}: {error}") from None
    if overlong or len(plain) > bytes_max:
        return plain[:bytes_max], True
    if not stream.eof or stream.unused_data:
        raise aiohttp.ClientPayloadError(f"the answer is no whole {coding} stream")
    return plain, False


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
