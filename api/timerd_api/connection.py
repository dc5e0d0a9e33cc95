"""Connections: what one may cost, and in which order it is answered.

uvicorn's HTTP over httptools, with the bounds that it lacks. It knows bytes, time and the parser; it does not know what
is asked. A request itself (its body's size and pace) is bounded by who reads it, see `body.py`.

Invariants:
- A connection's requests are answered in order, and what is no HTTP is refused only after what came before it has been
  answered; the refusal is a problem like any other, and the last that is said.
- While a request waits behind another, no more of the connection is parsed or read. So many small requests in one
  segment cost a turn of the loop what one slice of them costs, and no memory grows with how fast they come.
- Every wait has an end: for the rest of a head, for the rest of a body that was answered already, for a caller that
  does not read its answer. Who connects and says nothing makes room for who does.
- A caller that has said all it has to say may close its half, and still gets its answers.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from timerd.engine.instant import format_instant
from timerd_api.problem import MALFORMED, Problem

HEAD_BYTES_MAX: Final = 32 * 1024  # target and headers of a request; an id and a page token take a few hundred
HEAD_S: Final = 10.0  # for a whole head, as for a body that makes no progress
LINGER_S: Final = 5.0  # for what was already on its way when it was refused; closed at once, the refusal might get lost
UNREAD_S: Final = 30.0  # in which a caller takes some of its answer
SLICE_BYTES: Final = 2048  # parsed before the bounds are looked at again: some ten requests, at most a hundred
FRAMING_SHARE: Final = 8  # bytes of chunk framing a byte of body may have: chunks of one byte are allowed, just so
_ENDED: Final = "the connection ended before the request did"


class Crowd:
    """All connections of a server, and those among them that have not asked anything yet, in the order they came: what
    begins as a handshake is one of them. Each stands with what ends it."""

    def __init__(self, size_max: int, now_ms: Callable[[], int]) -> None:
        self.size_max = size_max
        self.now_ms = now_ms
        self.silent: dict[object, Callable[[], object]] = {}
        self._handshakes = 0
        self._connections = 0

    def begin_handshake(self, handshake: object, end: Callable[[], object]) -> None:
        """Someone has come who has yet to begin TLS."""
        self._handshakes += 1
        self._enter(handshake, end)

    def end_handshake(self, handshake: object) -> None:
        """It has become a connection, or nothing."""
        self._handshakes -= 1
        self.silent.pop(handshake, None)

    def enter(self, connection: "Connection", connections: int) -> None:
        """A connection has been made; so many there are now."""
        self._connections = connections
        self._enter(connection, lambda: connection.transport.abort())

    def leave(self, connection: "Connection", connections: int) -> None:
        """It has ended; so many are left."""
        self._connections = connections
        self.silent.pop(connection, None)

    def _enter(self, newcomer: object, end: Callable[[], object]) -> None:
        self.silent[newcomer] = end
        if self._connections + self._handshakes > self.size_max:
            # Who has said nothing yet goes first, the oldest of them; it may be this one. It is on its way out from now
            # on, and not to be asked again while it is.
            self.silent.pop(next(iter(self.silent)))()


class Connection(HttpToolsProtocol):
    """One connection of a caller."""

    def __init__(self, *, crowd: Crowd, **options: Any) -> None:
        super().__init__(**options)
        self._crowd = crowd
        self._buffer = b""
        self._at = 0
        """What has been read but not parsed: `_buffer` from `_at` on."""
        self._open = 0
        """Requests whose head was read and whose answer has not been given."""
        self._whole = True
        """Whether the last request that began has been read to its end."""
        self._body_left = 0
        """How much of the current body can still come without anything behind it; 0 if nobody knows."""
        self._framing = 0
        """Bytes of the current request that are no body."""
        self._refusal: str | None = None
        self._ended = False
        """The caller has closed its half."""
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    # ---- the transport's calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        joined = cast(asyncio.Transport, _Joined(transport))
        super().connection_made(joined)
        self.flow: _Flow = _Flow(joined)
        self._within(HEAD_S)
        self._crowd.enter(self, len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        if self._unread is not None:
            self._unread.cancel()
        self._unset_keepalive_if_required()
        self._buffer = b""
        self.pipeline.clear()
        super().connection_lost(exc)
        self._crowd.leave(self, len(self.connections))

    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if self._refusal is not None:
            return
        if self._at < len(self._buffer):
            self._buffer = self._buffer[self._at :] + data
            self._at = 0
            self.flow.pause_reading()
            return
        self._buffer, self._at = data, 0
        self._parse()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        self._ended = True
        if self._refusal is None and not self._whole and self._at == len(self._buffer):
            self._refuse(_ENDED)
        return self._open > 0 and self.scheme == "http"  # with TLS there are no halves

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_S, self._check_reader, self._pending_bytes())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    # ---- the parser's calls

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._whole = False
        self._body_left = self._framing = 0

    def on_headers_complete(self) -> None:
        if self._crowd.silent:
            self._crowd.silent.pop(self, None)
        if self._deadline is not None:
            self._in_time()
        super().on_headers_complete()
        self._open += 1

    def on_body(self, body: bytes) -> None:
        self._framing -= len(body) * (1 + FRAMING_SHARE)
        self._body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._whole = True
        if self._deadline is not None:
            self._in_time()
        super().on_message_complete()

    # ---- the application's call, through uvicorn

    def on_response_complete(self) -> None:
        self._open -= 1
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._refusal is not None:
            if not self._open:
                self._say_refusal()
        elif self._at < len(self._buffer):
            if not self.pipeline:
                self.loop.call_soon(self._parse)
        elif self._ended and not self._open:
            self.transport.close()
        elif not self._whole and not self._open and self._deadline is None:
            self._within(LINGER_S if self._body_begun() else HEAD_S)

    # ---- parsing, a slice at a time

    def _parse(self) -> None:
        """Parse what was read, until something must wait for an answer."""
        while self._at < len(self._buffer) and not self.transport.is_closing():
            if self.pipeline:
                self.flow.hold()
                return
            part = self._buffer if self._at == 0 and len(self._buffer) <= SLICE_BYTES else self._slice()
            self._at += len(part)
            self._framing += len(part)
            try:
                self.parser.feed_data(part)
            except httptools.HttpParserUpgrade as upgrade:
                self._at -= len(part) - upgrade.args[0]  # no protocol but this is spoken here: it goes on as it began
            except httptools.HttpParserError:
                self._refuse("this is no HTTP request")
                return
            if self._framing > HEAD_BYTES_MAX and not self._whole:
                self._refuse(f"a request may have at most {HEAD_BYTES_MAX} bytes beside its body")
                return
        self._buffer, self._at = b"", 0
        self.flow.let_go()
        if self._ended and not self._whole:
            self._refuse(_ENDED)
        elif not self._open and self._deadline is None:
            self._within(HEAD_S)

    def _slice(self) -> bytes:
        """The next bytes to parse. Of a body whose length is known it may be all that has come."""
        size = SLICE_BYTES
        if len(self._buffer) - self._at > size and self._body_begun():
            if self._body_left <= 0:
                self._body_left = self._announced()
            size = max(size, self._body_left)
        if self._at == 0 and size >= len(self._buffer):
            return self._buffer
        return self._buffer[self._at : self._at + size]

    def _body_begun(self) -> bool:
        """Whether the current request's head has been read, and not yet all of it."""
        return not self._whole and self.cycle is not None and self.cycle.scope is self.scope

    def _announced(self) -> int:
        """What is left of a body by its Content-Length, which the parser has checked; 0 if it has none."""
        if self.cycle.response_complete:
            return 0
        for name, value in self.headers:
            if name == b"content-length":
                return int(value) + self._body_left
        return 0

    # ---- ends

    def _refuse(self, why: str) -> None:
        """Nothing more of this connection is read; said, once, when what came before has been answered."""
        if self._refusal is not None:
            return
        self._refusal = why
        self._buffer, self._at = b"", 0
        if self._body_begun():
            if self.cycle.response_started:  # it has its answer, which was not for want of this
                self.transport.close()
                return
            self._open -= 1
            if self.pipeline:
                self.pipeline.popleft()  # the last that came; it has not begun
            else:
                self.cycle.disconnected = True  # as the application is told; what it answers goes nowhere
                self.cycle.message_event.set()
        if not self._open:
            self._say_refusal()

    def _say_refusal(self) -> None:
        assert self._refusal is not None
        self._unset_keepalive_if_required()
        response = Problem(MALFORMED, self._refusal).response()
        status = HTTPStatus(response.status_code)
        lines = [
            f"HTTP/1.1 {status} {status.phrase}".encode(),
            *(name + b": " + value for name, value in response.raw_headers),
            b"timerd-now: " + format_instant(self._crowd.now_ms()).encode(),
            b"connection: close",
        ]
        self.transport.write(b"\r\n".join((*lines, b"", bytes(response.body))))
        if self._ended or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.let_go()
        self._within(LINGER_S)

    def _within(self, seconds: float) -> None:
        self._in_time()
        self._deadline = self.loop.call_later(seconds, self._too_late)

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self._refusal is not None or self._body_begun():
            self.transport.abort()
        elif self._whole:
            self.transport.close()  # not a word of a request
        else:
            self._refuse(f"a head must come within {HEAD_S:.0f} seconds")

    def _pending_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def _check_reader(self, before: int) -> None:
        now = self._pending_bytes()
        self._unread = self.loop.call_later(UNREAD_S, self._check_reader, now)
        if now >= before:
            self.transport.abort()


class _Flow(FlowControl):
    """uvicorn's flow control, which can be held: then reading goes on only when it is let go."""

    _held = False

    def hold(self) -> None:
        self._held = True
        self.pause_reading()

    def let_go(self) -> None:
        if self._held:
            self._held = False
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self._held:
            super().resume_reading()


class _Joined:
    """A transport that sends the head and the body of a response with one call to the system.

    uvicorn writes them one after the other, and uvloop sends each at once: two calls, two packets and two wake-ups of
    the caller for an answer of 100 bytes. What is alone is sent when the loop comes round.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held = b""

    def write(self, data: bytes) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.writelines((held, data))
        else:
            self._held = data
            self._loop.call_soon(self._flush)

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)
