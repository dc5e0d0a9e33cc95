"""Handshakes: what becomes of TLS connections before they are connections.

A handshake is counted, and bounded in time, as a connection is that has not asked anything yet; so that a crowd of them
leaves descriptors for everybody else. The event loop's own servers do neither: they give a handshake a minute, and tell
nobody of it before it has ended.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from timerd_api.connection import HEAD_S, Connection, Crowd

HANDSHAKE_S: Final = HEAD_S
PAUSE_S: Final = 0.1  # until the next try to accept where there is no descriptor left to do it with


class TlsListener:
    """Accepts at a socket and begins TLS with whom it accepts. It stands where uvicorn has its `asyncio.Server`."""

    def __init__(
        self, listener: socket.socket, backlog: int, tls: ssl.SSLContext, make: Callable[[], Connection], crowd: Crowd
    ) -> None:
        listener.setblocking(False)
        listener.listen(backlog)
        self._listener = listener
        self._tls = tls
        self._make = make
        self._crowd = crowd
        self._loop = asyncio.get_running_loop()
        self._shaking: set[asyncio.Task[None]] = set()
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Accept no more, and break off the handshakes that are under way."""
        self._accepting.cancel()
        for task in self._shaking:
            task.cancel()

    async def wait_closed(self) -> None:
        """Until that is done."""
        await asyncio.gather(self._accepting, *self._shaking, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(PAUSE_S)
                continue
            task = self._loop.create_task(self._shake(accepted))
            self._shaking.add(task)
            task.add_done_callback(partial(self._ended, accepted))
            self._crowd.begin_handshake(task, task.cancel)

    def _ended(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._shaking.discard(task)
        self._crowd.end_handshake(task)
        if task.cancelled():
            accepted.close()  # it may not have begun; else this is the transport's, and nothing is left to close
        else:
            task.result()  # what is no fault of the other side is one of ours, and logged as one

    async def _shake(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError):  # an SSLError is one too; the transport has closed it
            await self._loop.connect_accepted_socket(
                self._make, accepted, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S
            )
