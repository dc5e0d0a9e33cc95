"""Several nodes in one process on virtual time, each with its front, joined by a wire that can be told to misbehave.

Each shard has a log in memory, which the node that takes it opens anew. Questions pass as bytes, as they would between
machines. One name alone makes a node by itself, without a front, with the same shards.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import msgspec

from tests.sim.clock import SimClock
from tests.sim.knobs import virtual_loop
from timerd import boot
from timerd.engine.ring import build_table, slot_of
from timerd.engine.settings import Settings
from timerd.front import Front
from timerd.node import Node
from timerd.parts import Parts
from timerd.ports import Answer, Member, NoReply, Request
from timerd.questions import VERSION, Question, read_asked, read_question
from timerd_storage.memory_catalog import MemoryCatalog
from timerd_storage.memory_log import MemoryLog

SHARDS = 6
NAMES = ("a", "b", "c")


class Target:
    """Takes what type `ok` has, refuses for good what `bad` has, and keeps `slow` waiting."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.go_on = asyncio.Event()

    async def post(self, request: Request) -> Answer:
        batch = msgspec.json.decode(request.body)
        self.seen += [(timer["id"], timer["generation"]) for timer in batch["timers"]]
        if batch["type"] == "slow":
            await self.go_on.wait()
        if batch["type"] == "bad":
            return Answer(500, {"timerd-no-retry": "true"})
        return Answer(200)

    async def close(self) -> None:
        pass


class Fault:
    """What happens to the next questions of a kind: unsent | lost_before | lost_after | silent | late | newer."""

    def __init__(self, kind: str, of: type[Any] | None = None, times: int = 10**9) -> None:
        self.kind, self.of, self.times = kind, of, times


class Wire:
    """`ports.Peers` between the nodes of a cluster."""

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self.faults: dict[str, Fault] = {}
        self.asked: list[tuple[str, Question]] = []
        self.skew: dict[str, int] = {}

    async def ask(self, member: Member, question: bytes, timeout_s: float) -> bytes | NoReply:
        asked = read_asked(question)
        read = read_question(asked)
        fault = self.faults.get(member.name)
        kind = ""
        if fault is not None and fault.times > 0 and (fault.of is None or isinstance(read, fault.of)):
            fault.times -= 1
            kind = fault.kind
        self.asked.append((member.name, read))
        await asyncio.sleep(0)
        if kind == "unsent":
            return NoReply(False, "connection refused")
        if kind == "lost_before":
            return NoReply(True, "connection reset")
        if kind == "newer":
            return msgspec.msgpack.encode([VERSION + 1, 5, {"of": "another kind"}])
        if kind == "silent":
            await asyncio.sleep(timeout_s)
            return NoReply(True, "no answer in time")
        if kind == "late":  # it is held up on its way, and arrives when nobody waits any more
            self.cluster.later(self.cluster.parts[member.name].hear, question, timeout_s + 1)
            await asyncio.sleep(timeout_s)
            return NoReply(True, "no answer in time")
        try:
            answer = await asyncio.wait_for(self.cluster.parts[member.name].hear(question), timeout_s)
        except TimeoutError:
            return NoReply(True, "no answer in time")
        if kind == "lost_after":
            return NoReply(True, "connection reset")
        return answer

    async def close(self) -> None:
        pass


class Fellows:
    """What one node knows of the cluster."""

    def __init__(self, cluster: "Cluster", name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.missed: list[tuple[int, str]] = []

    def members(self) -> list[Member]:
        return [self._cluster.members[name] for name in self._cluster.there]

    def owner_of(self, shard: int) -> Member | None:
        name = self._cluster.plan[shard]
        return self._cluster.members[name] if name in self._cluster.there else None

    def not_there(self, shard: int, member: Member) -> None:
        self.missed.append((shard, member.name))

    def seen_at(self, name: str) -> int | None:
        return 1


class Cluster:
    """`plan` says who is to serve a shard; `nodes[name].held` which it does."""

    def __init__(self, loop: Any, names: Sequence[str] = NAMES) -> None:
        self.loop = loop
        self.clock = SimClock(loop)
        self.names = list(names)
        self.there = list(names)
        self.table = build_table(range(SHARDS))
        self.members = {name: Member(name, f"http://{name}:8470", f"life of {name}") for name in names}
        self.plan: dict[int, str | None] = {shard: names[shard % len(names)] for shard in range(SHARDS)}
        self.logs = {shard: MemoryLog(shard=shard) for shard in range(SHARDS)}
        self.target = Target()
        self.catalog = MemoryCatalog()
        self.nodes: dict[str, Node] = {}
        self.parts: dict[str, Parts] = {}
        self.fronts: dict[str, Front] = {}
        self.wires: dict[str, Wire] = {}
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> "Cluster":
        for name in self.names:
            settings, drawn = Settings(node=name, shards=SHARDS), random.Random(1).random
            node = await boot.join(settings, self.table, self.catalog, self.clock, self.target, drawn)
            fellows, me = Fellows(self, name), self.members[name]
            self.nodes[name] = node
            self.parts[name] = Parts(node, me.life)
            self.wires[name] = Wire(self)
            self.fronts[name] = Front(node, me, self.parts[name], self.wires[name], fellows)
            for shard, owner in self.plan.items():
                if owner == name:
                    assert await node.take(shard, self.logs[shard])
        return self

    async def release(self, shard: int) -> None:
        """Nobody serves it until it is taken."""
        for node in self.nodes.values():
            if shard in node.held:
                assert await node.release(shard, 1_000)

    async def take(self, name: str, shard: int) -> None:
        self.logs[shard] = self.logs[shard].reopen()
        assert await self.nodes[name].take(shard, self.logs[shard])

    def later(self, hear: Callable[[bytes], Coroutine[Any, Any, bytes]], question: bytes, after_s: float) -> None:
        async def arrive() -> None:
            await asyncio.sleep(after_s)
            await hear(question)

        self._tasks.append(self.loop.create_task(arrive()))

    async def put(self, *types: Any) -> None:
        for type in types:
            stored = await self.fronts[self.names[0]].put_type(type, False, None)
            assert isinstance(stored, tuple), stored
        for node in self.nodes.values():
            await node.catalogue.refresh()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.target.go_on.set()
        for node in self.nodes.values():
            await node.stop(1_000)


def on_virtual_time(work: Callable[[Cluster], Coroutine[Any, Any, None]], names: Sequence[str] = NAMES) -> None:
    """Run a test's body with a cluster that has started."""

    async def run(loop: Any) -> None:
        cluster = await Cluster(loop, names).start()
        await work(cluster)
        await cluster.stop()

    with virtual_loop() as loop:
        loop.run_until_complete(run(loop))


def ids_of(cluster: Cluster, name: str) -> Iterator[str]:
    """Ids whose shards the plan gives to a node."""
    table = cluster.table
    number = 0
    while True:
        if cluster.plan[table.shards[slot_of(f"id-{number}")]] == name:
            yield f"id-{number}"
        number += 1
