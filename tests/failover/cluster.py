"""NATS servers on the shipped configuration and timerd nodes on them, on loopback, each ended by its pid.

`gated`: every way of a node to the servers and to the other nodes goes through gates, so that it can be cut off.
"""

import asyncio
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from tests.cluster.nats_server import NatsServer, cluster_of, free_ports, needed, ship, start_all, stop_all
from tests.failover.gate import Gate
from tests.support.process import Process
from timerd_cluster.connection import ApiError, Connection, NoAnswer

PREFIX = "timerd"
PLAN = f"$KV.{PREFIX}-members.plan.table"
ASK_S = 0.1
ASKED_MAX_S = 5
SETTLED_S = 60
RESTART_S = 30


class Cluster:
    """`async with Cluster(...)` has them all running, every shard owned and the shares even."""

    def __init__(
        self, home: Path, *options: str, nodes: int = 3, servers: int = 3, shards: int = 12, gated: bool = False
    ) -> None:
        needed()
        self.home = home
        self.shards = shards
        self.gated = gated
        self.options = ("--shards", str(shards), "--cluster-replicas", str(servers), *options)
        self.servers = cluster_of(home / "nats", servers)
        ship(self.servers, "three.conf" if servers == 3 else "one.conf")
        self.nodes: dict[str, Process] = {f"node-{n}": Process(home / f"node-{n}") for n in range(nodes)}
        self.to_servers: dict[str, list[Gate]] = {}
        self.to_node: dict[str, Gate] = {}
        self._watcher: Connection | None = None

    async def __aenter__(self) -> "Cluster":
        try:
            await self._start()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watcher is not None:
            with suppress(Exception):
                await self._watcher.close()
        for node in self.nodes.values():
            if node.process:
                node.signal(signal.SIGCONT)
            await node.__aexit__()
        for gate in [*(gate for gates in self.to_servers.values() for gate in gates), *self.to_node.values()]:
            await gate.stop()
        await stop_all(self.servers)

    async def _start(self) -> None:
        urls = [server.url for server in self.servers]
        if self.gated:
            await self._make_gates()
        await start_all(self.servers)
        for name, node in self.nodes.items():
            mine = urls
            node.options = ("--node", name, *self.options)
            if self.gated:
                mine = [f"nats://timerd:t@127.0.0.1:{gate.port}" for gate in self.to_servers[name]]
                port, gate = self.to_node[name]._target, self.to_node[name]
                node.options += ("--port", str(port), "--cluster-address", f"http://127.0.0.1:{gate.port}")
            node.env["TIMERD_CLUSTER"] = ",".join(mine)
        self._watcher = await Connection.connect(urls, "watcher")
        await asyncio.gather(*(node.start() for node in self.nodes.values()))
        await self.settled()

    async def _make_gates(self) -> None:
        for server in self.servers:  # else a client learns the ways around its gates
            file = server.home / "server.conf"
            file.write_text(file.read_text().replace("cluster {\n", "cluster {\n  no_advertise: true\n"))
        for name, port in zip(self.nodes, free_ports(len(self.nodes)), strict=True):
            self.to_servers[name] = [Gate(server.port) for server in self.servers]
            self.to_node[name] = Gate(port, lambda: [node.pid for node in self.nodes.values() if node.process])
            for gate in (*self.to_servers[name], self.to_node[name]):
                await gate.start()

    # ---- faults

    def cut_off(self, name: str) -> None:
        """A node reaches no server and no other node, and is not reached by them."""
        for gate in (*self.to_servers[name], self.to_node[name]):
            gate.shut()
        for other, gate in self.to_node.items():
            if other != name:
                gate.shut(self.nodes[name].pid)

    def heal(self) -> None:
        for gate in [*(gate for gates in self.to_servers.values() for gate in gates), *self.to_node.values()]:
            gate.open()

    async def restart(self, name: str) -> int:
        """Start a node until it stays, as a supervisor would; how often it was refused."""
        until = time.monotonic() + RESTART_S
        refused = 0
        while True:
            try:
                await self.nodes[name].start()
            except AssertionError:
                refused += 1
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.5)
            else:
                return refused

    # ---- looking

    @property
    def running(self) -> list[str]:
        """Nodes that have a process (it may stand still)."""
        return [name for name, node in self.nodes.items() if node.process and node.process.returncode is None]

    async def owned(self, asked: str) -> Mapping[int, tuple[str, int]]:
        """shard -> (node, epoch), as one node says it; empty if it does not say. Without what is only planned."""
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(ASKED_MAX_S):
                status, answer = await self.nodes[asked].request("GET", "/v1/shards")
                if status == 200:
                    shards = answer["shards"]
                    return {each["id"]: (each["owner"], each["epoch"]) for each in shards if each["epoch"]}
        return {}

    async def owners(self, asked: str) -> Mapping[int, str]:
        """shard -> node."""
        return {shard: owner for shard, (owner, _) in (await self.owned(asked)).items()}

    async def is_settled(self) -> str:
        """Every running node is ready, every shard owned by one of them, none has more than its share. Or why not."""
        for name in self.running:
            try:
                async with asyncio.timeout(ASKED_MAX_S):
                    status, answer = await self.nodes[name].request("GET", "/readyz")
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                return f"{name} does not answer: {error!r}"
            if status != 200:
                return f"{name} is not ready: {answer}"
            owners = await self.owners(name)
            if len(owners) != self.shards:
                return f"{name} knows owners of {sorted(owners)} only"
            shares = {other: list(owners.values()).count(other) for other in self.running}
            if sum(shares.values()) != self.shards:
                return f"{name} says {owners}, and there are {self.running}"
            if max(shares.values()) > -(-self.shards // len(self.running)):
                return f"{name} sees shares of {shares}"
        return ""

    async def settled(self, timeout_s: float = SETTLED_S) -> None:
        """Wait for it."""
        until = time.monotonic() + timeout_s
        while why := await self.is_settled():
            assert time.monotonic() < until, f"not settled after {timeout_s:.0f} s: {why}"
            await asyncio.sleep(ASK_S)

    async def shards_of(self, name: str) -> set[int]:
        """What a node owns now, by what it says itself."""
        return {shard for shard, owner in (await self.owners(name)).items() if owner == name}

    async def streams(self) -> list[Mapping[str, Any]]:
        """What is said of all streams; nothing while nobody says."""
        assert self._watcher is not None
        found: list[Mapping[str, Any]] = []
        try:
            while True:
                answer = await self._watcher.api("STREAM.LIST", {"offset": len(found)})
                found += answer["streams"] or []
                if len(found) >= answer["total"] or not answer["streams"]:
                    return found if not answer.get("missing") else []
        except (NoAnswer, ApiError):
            return []

    async def current(self, timeout_s: float = SETTLED_S) -> None:
        """Wait until every replica of every stream has caught up: two that are behind at once are no quorum."""
        async with asyncio.timeout(timeout_s):
            while True:
                streams = await self.streams()
                if streams and all(self._is_current(stream) for stream in streams):
                    return
                await asyncio.sleep(ASK_S)

    def _is_current(self, stream: Mapping[str, Any]) -> bool:
        cluster = stream.get("cluster") or {}
        others = cluster.get("replicas") or []
        return bool(
            (cluster.get("leader") or len(self.servers) == 1)
            and len(others) == stream["config"]["num_replicas"] - 1
            and all(each.get("current") and not each.get("offline") for each in others)
        )

    async def leader(self, shard: int) -> NatsServer:
        """The server that leads a shard's log."""
        assert self._watcher is not None
        async with asyncio.timeout(SETTLED_S):
            while True:
                with suppress(NoAnswer, ApiError):
                    info = await self._watcher.api(f"STREAM.INFO.{PREFIX}-log-{shard}")
                    if name := (info.get("cluster") or {}).get("leader"):
                        return self.servers[int(name[1:])]
                await asyncio.sleep(ASK_S)

    async def writers(self, shard: int) -> list[tuple[int, str]]:
        """(epoch, writer) of each message that a shard's log still has. See cluster/STREAM.md."""
        assert self._watcher is not None
        stream = f"{PREFIX}-log-{shard}"
        found: dict[tuple[int, str], None] = {}
        async with asyncio.timeout(SETTLED_S):
            while True:
                try:
                    state = (await self._watcher.api(f"STREAM.INFO.{stream}"))["state"]
                    at = int(state["first_seq"])
                    while at <= state["last_seq"]:
                        async for message in self._watcher.messages(stream, at):
                            _, epoch, _, writer, *_ = message.headers["Timerd-Turn"].split()
                            found[int(epoch), writer] = None
                            at = message.sequence + 1
                    return list(found)
                except (NoAnswer, ApiError):
                    await asyncio.sleep(ASK_S)

    async def plan(self) -> tuple[int, bytes]:
        """The plan that stands in the bucket, and its revision."""
        assert self._watcher is not None
        found = await self._watcher.message(f"KV_{PREFIX}-members", {"last_by_subj": PLAN})
        assert found is not None
        return found.sequence, found.data

    async def put_plan(self, data: bytes, revision: int) -> None:
        """Put another in its place."""
        assert self._watcher is not None
        await self._watcher.publish(PLAN, data, {"Nats-Expected-Last-Subject-Sequence": str(revision)})

    def complaints(self) -> list[str]:
        """Lines that no healthy node prints, whatever became of the others."""
        words = ("traceback", "exception", "[critical", "the log is damaged", "the log can't be read")
        return [
            f"{name}: {line.rstrip()}"
            for name, node in self.nodes.items()
            for line in node.stderr + node.log
            if any(word in line.lower() for word in words)
        ]
