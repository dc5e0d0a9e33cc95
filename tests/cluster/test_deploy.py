"""The configuration that is shipped for one server; that for three carries test_three_servers.py."""

from pathlib import Path

from tests.cluster.nats_server import NatsServer, free_ports, needed, ship
from tests.cluster.open_log import opener_of


async def test_a_server_runs_on_the_shipped_configuration_and_says_that_it_syncs(tmp_path: Path) -> None:
    needed()
    server = NatsServer(tmp_path / "one", free_ports(1)[0])
    ship([server], "one.conf")
    await server.start()
    opener = opener_of(server)
    log, _ = await opener.replayed()
    assert (log.durability, log.sync) == ("fsync", "always")
    await opener.close()
    await server.kill()
