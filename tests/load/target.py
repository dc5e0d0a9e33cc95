"""The target under load: a raw HTTP server that can be slow, refuse connections, or answer 503; and its rawest form.

`Exchange` is the protocol: it reads a POST and answers what `Answerer.answer` says, after `delay_s`. `Target` takes
timers whose ids are serial numbers and marks each in a table, so that what is lost can be told afterwards without a
record of every delivery.
"""

import asyncio
import time
from datetime import datetime
from typing import Final, Protocol, cast

import msgspec

TAKEN: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
UNAVAILABLE: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
SAMPLE: Final = 8  # of so many lags one is kept
GROW: Final = 1 << 20


class Timer(msgspec.Struct, gc=False):
    """As much of a delivered timer as is looked at."""

    id: str
    generation: int
    fire_at: str
    possible_duplicate: bool = False


class Batch(msgspec.Struct):
    """A delivery."""

    timers: list[Timer]


class Answerer(Protocol):
    """Who says what is answered."""

    delay_s: float

    def answer(self, body: bytes) -> bytes: ...


class Exchange(asyncio.Protocol):
    """One connection from timerd."""

    def __init__(self, answerer: Answerer, open_now: set["Exchange"]) -> None:
        self._answerer = answerer
        self._open_now = open_now
        self._received = bytearray()
        self._end = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._open_now.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._open_now.discard(self)

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
            answer = self._answerer.answer(body)
            if self._answerer.delay_s:
                asyncio.get_running_loop().call_later(self._answerer.delay_s, self._say, answer)
            else:
                self._say(answer)

    def _say(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)


class Listener:
    """Listens for deliveries, on one port of loopback all its life. `close` cuts and refuses connections."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer
        self._open_now: set[Exchange] = set()
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/due"

    async def open(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Exchange(self._answerer, self._open_now), "127.0.0.1", self._port, reuse_address=True
        )
        self._port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for exchange in list(self._open_now):
            exchange.transport.abort()


class Target:
    """Takes timers with serial numbers for ids."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.unavailable = False
        """Answer 503 and take nothing."""
        self.fired = 0
        self.repeated = 0
        self.early = 0
        self.lags_ms: list[float] = []
        """Since the reader took them: from when a timer was due, or accepted if that was later."""
        self._seen = bytearray()
        self._decode = msgspec.json.Decoder(Batch).decode

    def answer(self, body: bytes) -> bytes:
        if self.unavailable:
            return UNAVAILABLE
        timers = self._decode(body).timers
        now_ms = time.time() * 1000
        if _ms(max([timer.fire_at for timer in timers])) > now_ms:
            self.early += 1
        numbers = [int(timer.id) for timer in timers]
        seen = self._seen
        if (last := max(numbers)) >= len(seen):
            seen.extend(bytes(last - len(seen) + GROW))
        for number in numbers:
            if seen[number]:
                self.repeated += 1
            seen[number] = 1
        self.fired += len(timers)
        self.lags_ms += [now_ms - max(_ms(t.fire_at), t.generation / 1000) for t in timers[::SAMPLE]]
        return TAKEN

    def missing(self, first: int, end: int) -> int:
        """How many of these serial numbers never came."""
        return end - first - self._seen.count(1, first, end)


def _ms(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() * 1000
