"""A connection without a network: what it answers to bytes must not hang on where the network cuts them."""

import asyncio
import re
from collections.abc import Hashable
from typing import Any, Final

import uvicorn
from uvicorn.server import ServerState

from tests.api.fake_service import NOW_MS, FakeService
from timerd_api.app import create_app
from timerd_api.connection import Connection, Crowd
from timerd_api.settings import ApiSettings

LOOP = asyncio.new_event_loop()
SERVICE = FakeService()
CONFIG = uvicorn.Config(create_app(SERVICE, ApiSettings(max_body_bytes=1 << 20)), lifespan="off", log_config=None)
CONFIG.load()
TURNS_MAX = 2_000


class _Transport:
    """Takes what is written. It reads no more than it is let."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = self.paused = self.ended = False

    def write(self, data: bytes) -> None:
        assert not self.ended
        self.written += data

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def get_extra_info(self, name: str) -> Any:
        return None

    def get_write_buffer_size(self) -> int:
        return 0


async def _answers(data: bytes, cut: int) -> list[int]:
    """The statuses that it answers to `data` in pieces of `cut` bytes, followed by the end."""
    SERVICE.__init__()  # type: ignore[misc]
    transport = _Transport()
    crowd = Crowd(10, lambda: NOW_MS)
    protocol = Connection(crowd=crowd, config=CONFIG, server_state=ServerState(), app_state={}, _loop=LOOP)
    protocol.connection_made(transport)  # type: ignore[arg-type]
    at = turns = 0
    while turns < TURNS_MAX and not transport.closed and (at < len(data) or turns == 0):
        if not transport.paused:
            protocol.data_received(data[at : at + cut])
            at += cut
        turns += 1
        await asyncio.sleep(0)
    assert turns < TURNS_MAX, "it takes no more"
    if not transport.closed and not protocol.eof_received():
        transport.closed = True
    for _ in range(TURNS_MAX):
        if transport.closed or not protocol._open:
            break
        await asyncio.sleep(0)
    assert transport.closed or not protocol._open, "something was never answered"
    await asyncio.sleep(0)
    protocol.connection_lost(None)
    for task in list(protocol.tasks):
        await task
    return _statuses(bytes(transport.written))


_HEAD: Final = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")
_LENGTH: Final = re.compile(rb"(?i)^content-length: *([0-9]+)\r$", re.MULTILINE)


def _statuses(written: bytes) -> list[int]:
    """The statuses of a series of answers. Raises AssertionError for anything else.

    An answer to a HEAD says how long its body would be, and has none.
    """
    statuses, at = [], 0
    while at < len(written):
        head = _HEAD.match(written, at)
        assert head, f"no answer begins with {written[at : at + 80]!r}"
        at = head.end()
        if (status := int(head[1])) < 200:
            continue
        statuses.append(status)
        length = _LENGTH.search(head[2])
        assert length or status == 204, f"no length in {head[0]!r}"
        if length and not _HEAD.match(written, at):
            at += int(length[1])
    return statuses


def connection(data: bytes) -> Hashable:
    data = data[:8192]
    cut = 1 + (data[0] if data else 0) % 200
    if len(data) // cut > TURNS_MAX // 4:
        cut = len(data) // 100
    whole = LOOP.run_until_complete(_answers(data, max(1, len(data))))
    parts = LOOP.run_until_complete(_answers(data, cut))
    # The last of them may turn out to be none while it is being answered; then it has one answer or the other.
    assert len(whole) == len(parts), f"in one piece {whole}, in pieces of {cut} bytes {parts}"
    assert whole[:-1] == parts[:-1], f"in one piece {whole}, in pieces of {cut} bytes {parts}"
    assert whole[-1:] == parts[-1:] or 400 in (whole[-1], parts[-1]), f"{whole} or {parts}"
    return tuple(whole[:6])
