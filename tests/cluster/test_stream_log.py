"""The log on JetStream: the conformance suite on a real server."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.cluster.nats_server import NatsServer
from tests.cluster.open_log import Opener, opener_of
from tests.storage.log_conformance import LogConformance
from timerd.ports import Log


class StreamHome:
    """A prefix on a server. A restart is a new process's connection; the old one goes on unheard."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener

    async def open(self) -> Log:
        return await self._opener.open((0, 1, 3, 7, 9))

    async def restart(self) -> Log:
        return await self.open()


class TestStreamLog(LogConformance):
    @pytest_asyncio.fixture
    async def home(self, shared_server: NatsServer) -> AsyncIterator[StreamHome]:
        opener = opener_of(shared_server)
        yield StreamHome(opener)
        await opener.close()
