"""One HTTP request on a pooled connection: whether any of it has left, and another connection while nothing has.

A pooled connection may have been closed by the other side. Until the first byte is handed over that is no failure of
the request; behind it nobody can tell, and it is not sent again. It knows no targets, no nodes and no answers.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import aiohttp
from aiohttp.abc import AbstractStreamWriter

STALE_MAX: Final = 3  # closed connections that a call puts up with; a target that closes all at once leaves many

T = TypeVar("T")


class Body(aiohttp.BytesPayload):
    """A body, and whether any of its request has left: aiohttp holds the headers back until it writes the body."""

    def __init__(self, data: bytes, content_type: str) -> None:
        super().__init__(data, content_type=content_type)
        self.left = False

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        transport = writer.transport
        if transport is not None and not transport.is_closing():
            self.left = True
        await super().write_with_length(writer, content_length)


async def send(body: Body, attempt: Callable[[], Awaitable[T]]) -> T:
    """What `attempt` returns, which is made again while it meets closed connections and nothing of `body` has left.

    Raises what the last attempt raises.
    """
    for _ in range(STALE_MAX):
        try:
            return await attempt()
        except aiohttp.ClientConnectorError:
            raise
        except aiohttp.ClientConnectionError:
            if body.left:
                raise
        # The pool gave out a connection that had just been closed, and has dropped it now.
    return await attempt()
