"""Logs on a server, opened in few words; everything that was opened is closed in the end."""

import itertools
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from tests.cluster import fake_server
from tests.cluster.fake_server import FakeServer
from tests.cluster.nats_server import NatsServer
from timerd.ports import Frame
from timerd_cluster.connection import ANSWER_S, Connection
from timerd_cluster.names import Names
from timerd_cluster.stream_log import StreamLog

_prefixes = itertools.count(1)
_writers = itertools.count(1)


def boot_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Opener:
    """Opens logs of one timerd on one server, or on several by their urls."""

    def __init__(self, *urls: str) -> None:
        self.names = Names(f"t{next(_prefixes)}")
        self.answer_s = ANSWER_S
        self.lease_ms = 0  # none: nobody waits
        self.boot_ms = boot_ms
        self._urls = urls
        self._stack = AsyncExitStack()

    async def connect(self) -> Connection:
        connection = fake_server.connect(self._urls[0], self.answer_s)
        connection = connection or await Connection.connect(self._urls, "test", self.answer_s)
        self._stack.push_async_callback(connection.close)
        return connection

    async def open(
        self, shards: Sequence[int] = (0,), replicas: int = 1, segment_bytes: int = 16_384, writer: str | None = None
    ) -> StreamLog:
        connection = await self.connect()
        writer = writer or f"w{next(_writers)}"
        return await StreamLog.open(
            connection,
            self.names,
            shards,
            writer,
            replicas,
            segment_bytes,
            lease_ms=self.lease_ms,
            boot_ms=self.boot_ms,
        )

    async def replayed(self, shards: Sequence[int] = (0,), replicas: int = 1) -> tuple[StreamLog, list[Frame]]:
        log = await self.open(shards, replicas)
        return log, [frame async for frame in log.replay()]

    async def close(self) -> None:
        await self._stack.aclose()


def opener_of(server: NatsServer | FakeServer) -> Opener:
    return Opener(server.url)
