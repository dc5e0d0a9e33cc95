"""One, two and three nodes over three NATS servers, and one node on files beside them: what a timer costs each process.

Nodes share core 0; the servers, the load and the processor share core 1. So this shows what work there is and who has
it, not what three machines can do: CPU a timer is the figure, a rate is only what two cores come to. The load is fixed:
so many arms over all nodes in turn, so many fires of one instant, so many re-armed by their answer every two seconds.
"""

import asyncio
import contextlib
import importlib.util
import os
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks import wire
from benchmarks.figure import Figure, gather
from benchmarks.processor import Rearmer, Taker, listening
from benchmarks.server import LOAD_CORE, Place, Server, cpu_s, quiet
from tests.cluster.nats_server import NatsServer, cluster_of, free_ports, start_all, stop_all
from timerd_cluster.connection import Connection

ARMS: Final = 100_000
FIRES: Final = 50_000
REARMED: Final = 40_000
INTERVAL_MS: Final = 2_000
REARM_S: Final = 6
IDLE_S: Final = 4
AHEAD_MS: Final = 2_000  # time to arm what fires, beside three times what the arms before it took
BUDGET_S: Final = 170
"""No round begins that would probably end later."""
NODES_MAX: Final = 3 if importlib.util.find_spec("timerd.ownership") else 1

Costs = dict[str, tuple[float, str, float]]


class Watch:
    """CPU of some processes, and what the streams hold, between two moments."""

    def __init__(self, nodes: Sequence[int], servers: Sequence[int], streams: "Streams | None") -> None:
        self._nodes, self._servers, self._streams = nodes, servers, streams
        self.nodes_s = self.servers_s = self.took_s = 0.0
        self.messages = self.bytes = 0

    async def __aenter__(self) -> "Watch":
        self._begin = (time.perf_counter(), cpu_s(self._nodes), cpu_s(self._servers))
        self._stored = await self._streams.stored() if self._streams else (0, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        begin, nodes, servers = self._begin
        self.took_s = time.perf_counter() - begin
        self.nodes_s, self.servers_s = cpu_s(self._nodes) - nodes, cpu_s(self._servers) - servers
        if self._streams is not None:
            messages, size = await self._streams.stored()
            self.messages, self.bytes = messages - self._stored[0], size - self._stored[1]

    def costs(self, name: str, timers: int) -> Costs:
        """What each timer cost."""
        found = {
            f"{name}: nodes": (self.nodes_s / timers * 1e6, "us", 0.0),
            f"{name}: rate": (timers / self.took_s, "/s", 0.0),
        }
        if self._streams is not None:
            found[f"{name}: each NATS server"] = (self.servers_s / len(self._servers) / timers * 1e6, "us", 0.0)
            found[f"{name}: timers a message"] = (timers / max(1, self.messages), "", 0.0)
            found[f"{name}: bytes sent to NATS"] = (self.bytes / timers, "bytes", 0.0)
        return found


class Streams:
    """How much the streams of one prefix have taken."""

    def __init__(self, connection: Connection, servers: Sequence[str], prefix: str) -> None:
        self._connection, self._servers, self._prefix = connection, servers, prefix

    async def stored(self) -> tuple[int, int]:
        """Messages, by the sequences of the log streams; bytes, by what clients have sent to the servers."""
        messages = 0
        found = await self._connection.api("STREAM.NAMES", {"subject": f"{self._prefix}.log.*"})
        for name in found["streams"] or ():
            messages += (await self._connection.api(f"STREAM.INFO.{name}"))["state"]["last_seq"]
        size = 0
        async with aiohttp.ClientSession() as session:
            for url in self._servers:
                async with session.get(f"{url}/connz?limit=1024") as answer:
                    size += sum(each["in_bytes"] for each in (await answer.json())["connections"])
        return messages, size


class Setting:
    """Some nodes, wherever they keep their log."""

    def __init__(self, name: str, nodes: list[Server], servers: list[NatsServer], streams: Streams | None) -> None:
        self.name, self.nodes, self.streams = name, nodes, streams
        self.servers = [server.pid for server in servers]
        self.ports = [node.port for node in nodes]
        self._armed_s = 0.0

    def watch(self) -> Watch:
        """The same for all figures."""
        return Watch([node.pid for node in self.nodes], self.servers, self.streams)

    async def send(self, requests: list[bytes]) -> None:
        """Over all nodes in turn, four connections each."""
        count = len(self.ports)
        sends = [wire.send_all(port, requests[at::count], 4) for at, port in enumerate(self.ports)]
        await asyncio.gather(*sends)

    async def costs(self) -> Costs:
        """All figures, one after the other."""
        return {**await self._idle(), **await self._arm(), **await self._fire(), **await self._rearm()}

    async def _idle(self) -> Costs:
        """What a shard costs while nothing happens: renewals of its lease, the nodes' heartbeats. And memory."""
        memory = sum(node.rss_bytes() for node in self.nodes) / len(self.nodes)
        costs: Costs = {f"{self.name}: idle: memory of a node": (memory / 1e6, "MB", 0.0)}
        if self.streams is None:
            return costs
        shards = len((await wire.call(self.ports[0], "GET", "/v1/shards"))["shards"])
        async with self.watch() as watch:
            await asyncio.sleep(IDLE_S)
        us = 1e6 / IDLE_S / shards
        return costs | {
            f"{self.name}: idle: nodes": (watch.nodes_s * us, "us a shard and second", 0.0),
            f"{self.name}: idle: each NATS server": (
                watch.servers_s / len(self.servers) * us,
                "us a shard and second",
                0.0,
            ),
        }

    async def _put(self, type: str, **fields: Any) -> None:
        await wire.call(self.ports[0], "PUT", f"/v1/types/{type}", {"url": "http://127.0.0.1:9/", **fields})
        for port in self.ports[1:]:  # seen by all within about a second
            async with asyncio.timeout(10):
                while not await _knows(port, type):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    async def _arm(self) -> Costs:
        await self._put("far")
        key = f"{len(self.ports)}far"
        warm = wire.arms(wire.ids(5_000, f"{key}w"), wire.far(5_000), 1_000, type="far")
        requests = wire.arms(wire.ids(ARMS, key), wire.far(ARMS), 1_000, type="far")
        await self.send(warm)
        async with self.watch() as watch:
            await self.send(requests)
        self._armed_s = watch.took_s
        return watch.costs(f"{self.name}: arm", ARMS)

    async def _fire(self) -> Costs:
        taker = Taker()
        async with listening(taker):
            type = f"due{len(self.ports)}"
            await self._put(type, url=taker.url, max_lag=0, batch_size=800)
            due_at = wire.now_ms() + AHEAD_MS + round(3_000 * self._armed_s * FIRES / ARMS)
            await self.send(wire.arms(wire.ids(FIRES, type), [due_at] * FIRES, 1_000, type=type))
            assert wire.now_ms() < due_at - 200, "the machine is too busy to arm them in time"
            await asyncio.sleep((due_at - 100 - wire.now_ms()) / 1000)
            async with self.watch() as watch, asyncio.timeout(60):
                while taker.timers < FIRES:  # noqa: ASYNC110 - looking costs less than being told
                    await asyncio.sleep(0.005)
                await self._recorded(type, FIRES)
        return watch.costs(f"{self.name}: fire", FIRES)

    async def _recorded(self, type: str, count: int) -> None:
        while (await wire.call(self.ports[0], "GET", "/v1/stats"))["types"][type]["fired"] < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def _rearm(self) -> Costs:
        rearmer = Rearmer(INTERVAL_MS)
        async with listening(rearmer):
            type = f"loop{len(self.ports)}"
            await self._put(type, url=rearmer.url, max_lag=0.5, batch_size=800)
            begin = wire.now_ms() + 1_500
            fire_ats = [begin + n * INTERVAL_MS // REARMED for n in range(REARMED)]
            await self.send(wire.arms(wire.ids(REARMED, type), fire_ats, 1_000, type=type))
            await asyncio.sleep(INTERVAL_MS / 1000)
            rearmer.forget()
            async with self.watch() as watch:
                await asyncio.sleep(REARM_S)
            timers = rearmer.timers
            await wire.call(self.ports[0], "POST", f"/v1/types/{type}:pause")
        return watch.costs(f"{self.name}: fire and re-arm", max(1, timers))


async def _knows(port: int, type: str) -> bool:
    return type in {each["name"] for each in (await wire.call(port, "GET", "/v1/types"))["types"]}


@contextlib.asynccontextmanager
async def _nats(home: Path) -> AsyncIterator[tuple[list[NatsServer], list[str]]]:
    monitors = free_ports(3)
    servers = cluster_of(home, 3)
    for server, port in zip(servers, monitors, strict=True):
        path = server.home / "server.conf"
        path.write_text(f"http: 127.0.0.1:{port}\n{path.read_text()}")
    await start_all(servers)
    try:
        for server in servers:
            os.sched_setaffinity(server.pid, {LOAD_CORE})
        yield servers, [f"http://127.0.0.1:{port}" for port in monitors]
    finally:
        await stop_all(servers)


async def _round(place: Place, number: int, home: Path, servers: list[NatsServer], monitors: list[str]) -> Costs:
    data = Path(tempfile.mkdtemp(dir=home))
    file = Server(data / "files")
    await file.start()
    try:
        await quiet(place.quiet_s)
        costs = await Setting("on files", [file], [], None).costs()
    finally:
        await file.kill()
    prefix = f"r{number}"
    urls = ",".join(server.url for server in servers)
    connection = await Connection.connect([servers[0].url], "benchmark")
    nodes: list[Server] = []
    try:
        for count in range(1, NODES_MAX + 1):
            options = ["--cluster", urls, "--cluster-prefix", prefix, "--node", f"n{count}"]
            nodes.append(Server(data / f"n{count}", *options))
            await nodes[-1].start()
            if NODES_MAX > 1:
                await _formed(nodes)
            await quiet(place.quiet_s)
            streams = Streams(connection, monitors, prefix)
            costs |= await Setting(f"{count} node{'s' * (count > 1)}", list(nodes), servers, streams).costs()
    finally:
        for node in nodes:
            await node.kill()
        await connection.close()
    return costs


async def _formed(nodes: list[Server]) -> None:
    """Wait until all of them see all of them, and each has shards."""
    async with asyncio.timeout(60):
        for node in nodes:
            while True:
                found = (await wire.call(node.port, "GET", "/v1/nodes"))["nodes"]
                if len(found) == len(nodes) and all(each["shards"] for each in found):
                    break
                await asyncio.sleep(0.1)
        await asyncio.sleep(1)  # what was moved settles


async def run(place: Place, rounds: int) -> list[Figure]:
    """Medians over as many of `rounds` as there is time for."""
    begun = time.monotonic()
    found: list[Costs] = []
    with tempfile.TemporaryDirectory(dir=place.data, prefix="timerd-cluster-") as home:
        async with _nats(Path(home)) as (servers, monitors):
            for number in range(rounds):
                one = time.monotonic()
                found.append(await _round(place, number, Path(home), servers, monitors))
                if time.monotonic() - begun + (time.monotonic() - one) > BUDGET_S:
                    break
    return _derived(gather(found))


def _derived(figures: list[Figure]) -> list[Figure]:
    """What a message costs a node, and what is left of a timer's cost without it.

    An arm costs a node that has all shards what it does on files, and its part of a message. With more nodes there is
    also what an arm costs more that another node has to be asked for.
    """
    values = {figure.name: figure.values for figure in figures}
    files, one = values["on files: arm: nodes"], values["1 node: arm: nodes"]
    shared = values["1 node: arm: timers a message"]
    message = [max(0.0, more - less) * timers for more, less, timers in zip(one, files, shared, strict=True)]
    figures.append(Figure("a message costs a node", "us", message))
    for count in range(1, NODES_MAX + 1):
        name = f"{count} node{'s' * (count > 1)}"

        def beside(what: str, name: str = name) -> list[float]:
            costs, shared = values[f"{name}: {what}: nodes"], values[f"{name}: {what}: timers a message"]
            return [cost - each / timers for cost, each, timers in zip(costs, message, shared, strict=True)]

        figures += [
            Figure(f"{name}: {what} beside its message", "us", beside(what)) for what in ("fire", "fire and re-arm")
        ]
        if count > 1:
            extra = zip(beside("arm"), files, strict=True)
            share = (count - 1) / count
            figures.append(Figure(f"{name}: a forwarded arm costs more", "us", [(a - b) / share for a, b in extra]))
    return figures
