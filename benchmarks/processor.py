"""Processors: HTTP servers that take batches and say the least that there is to say.

`Taker` counts and answers 200 with no body, `Hook` does so for callbacks, and `Lags` keeps how late each timer was.
`Rearmer` answers that all go on `interval_ms` later, and keeps lags.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final, cast

import msgspec

from benchmarks.wire import now_ms

TAKEN: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
REARMED: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class Taker:
    """Answers 200 with no body."""

    def __init__(self) -> None:
        self.timers = 0
        self.batches = 0
        self.last_at_ms = 0
        self.url = ""
        self.after_s = 0.0
        """It answers so much later."""

    def answer(self, body: bytes) -> bytes:
        self.timers += body.count(b'"generation":')
        self.batches += 1
        self.last_at_ms = now_ms()
        return TAKEN


class Hook(Taker):
    """Takes callbacks: each request is a timer."""

    def answer(self, body: bytes) -> bytes:
        self.timers += 1
        self.last_at_ms = now_ms()
        return TAKEN


class _Timer(msgspec.Struct, gc=False):
    id: str
    fire_at: str


class _Batch(msgspec.Struct):
    timers: list[_Timer]


class Lags(Taker):
    """Takes all, and keeps how late each was."""

    def __init__(self) -> None:
        super().__init__()
        self.lags_ms: list[float] = []
        self._decode = msgspec.json.Decoder(_Batch).decode

    def answer(self, body: bytes) -> bytes:
        now = now_ms()
        self.lags_ms += [now - _ms(timer.fire_at) for timer in self._decode(body).timers]
        return TAKEN


class Rearmer(Taker):
    """Fires every timer of a batch again `interval_ms` after it came."""

    def __init__(self, interval_ms: int) -> None:
        super().__init__()
        self.interval_ms = interval_ms
        self.lags_ms: list[float] = []
        self.lag_ms_max = 0.0
        self._decode = msgspec.json.Decoder(_Batch).decode

    def forget(self) -> None:
        """Begin to count anew."""
        self.timers = self.batches = 0
        self.lags_ms.clear()
        self.lag_ms_max = 0.0

    def answer(self, body: bytes) -> bytes:
        timers = self._decode(body).timers
        now = now_ms()
        self.timers += len(timers)
        self.batches += 1
        self.lags_ms += [now - _ms(timer.fire_at) for timer in timers[::25]]
        self.lag_ms_max = max(self.lag_ms_max, now - _ms(min(timer.fire_at for timer in timers)))
        end = f'","status":"rearm","fire_at":{now + self.interval_ms}}}'
        results = (end + ',{"id":"').join([timer.id for timer in timers])
        answer = ('{"results":[{"id":"' + results + end + "]}").encode()
        return REARMED % len(answer) + answer


def _ms(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() * 1000


class _Exchange(asyncio.Protocol):
    def __init__(self, processor: Taker) -> None:
        self._processor = processor
        self._received = bytearray()
        self._end = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if not self._end:
            head = received.find(b"\r\n\r\n")
            if head < 0:
                return
            lines = bytes(received[:head]).lower()
            length = lines.partition(b"content-length:")[2].partition(b"\r")[0]
            self._start, self._end = head + 4, head + 4 + int(length)
        if len(received) >= self._end:
            body = bytes(received[self._start : self._end])
            received.clear()
            self._end = 0
            answer = self._processor.answer(body)
            if self._processor.after_s:
                asyncio.get_running_loop().call_later(self._processor.after_s, self._write, answer)
            else:
                self._write(answer)

    def _write(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


@contextlib.asynccontextmanager
async def listening(processor: Taker) -> AsyncIterator[None]:
    """Serve the processor on loopback; its `url` says where."""
    server = await asyncio.get_running_loop().create_server(lambda: _Exchange(processor), "127.0.0.1", 0)
    processor.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/poll"
    try:
        yield
    finally:
        server.close()
