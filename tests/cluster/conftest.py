"""Servers and logs on them, for the tests of the cluster."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.nats_server import NatsServer, free_ports, needed


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsServer]:
    """One server for all tests of a module; each takes a prefix of its own."""
    needed()
    server = NatsServer(tmp_path_factory.mktemp("nats") / "one", free_ports(1)[0])
    await server.start()
    yield server
    await server.kill()


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """One server for one test, which may kill it."""
    needed()
    server = NatsServer(tmp_path / "one", free_ports(1)[0])
    await server.start()
    yield server
    await server.kill()
