"""Servers and logs on them, for the tests of the cluster."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.fake_server import FakeServer
from tests.cluster.nats_server import NatsServer, free_ports, needed

BOTH = ("kv_catalog", "lease", "ensemble", "stream_log", "two_writers", "unknown_outcome")
"""Modules whose tests also run on the simulator's servers, which have to behave as a real one does."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "shared_server" in metafunc.fixturenames:
        both = metafunc.module.__name__.rpartition("test_")[2] in BOTH
        metafunc.parametrize("shared_server", ["real", "fake"] if both else ["real"], indirect=True, scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[NatsServer | FakeServer]:
    """One server for all tests of a module; each takes a prefix of its own."""
    if request.param == "fake":
        yield FakeServer()
        return
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
