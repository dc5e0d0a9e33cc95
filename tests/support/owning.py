"""Nodes of a cluster that take and let go of shards, on one virtual clock, with servers that are a dict."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from tests.sim.knobs import virtual_loop
from timerd.engine.errors import CorruptLog
from timerd.engine.now import Now
from timerd.engine.plan import Plan, Seat
from timerd.ownership import Ownership
from timerd.ports import Log, Member, Word

SHARDS = 6
LEASE_S = 5.0


class LoopClock:
    """The virtual loop's time."""

    def now(self) -> Now:
        ms = round(asyncio.get_running_loop().time() * 1000)
        return Now(1_800_000_000_000_000 + ms * 1_000, ms)


class Servers:
    """What all nodes share: the members, the plan, and who has each shard's stream."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.plan: Plan | None = None
        self.owners: dict[int, FakeNode] = {}
        self.epochs: dict[int, int] = {}
        self.ensembles: list[FakeEnsemble] = []
        self.published: list[tuple[str, Plan]] = []
        self.away = False
        self.damaged: set[int] = set()
        self.opened: list[tuple[float, int]] = []
        self.said: list[tuple[float, str, Word, int]] = []
        self.leaving: list[FakeEnsemble] = []
        self.unheard: set[str] = set()
        """Words that are lost."""

    def tell(self) -> None:
        for ensemble in (*self.ensembles, *self.leaving):
            ensemble.hear()


class FakeEnsemble:
    """Implements `timerd.ports.Ensemble`."""

    def __init__(self, servers: Servers, name: str, life: str = "1") -> None:
        self.me = Member(name, f"http://{name}", life)
        self.on_change: Callable[[], None] = lambda: None
        self.on_catalogue_change: Callable[[], None] = lambda: None
        self.on_said: Callable[[Word, int, Seat], None] = lambda word, shard, seat: None
        self.displaced = False
        self.unheard: list[Member] = []
        self.deaf = False
        self.mute = False
        self.blind = False
        """It can't read the plan; all else it can."""
        self._servers = servers
        self._members: list[Member] = []
        self._plan: Plan | None = None
        servers.members[name] = self.me
        servers.ensembles.append(self)
        servers.tell()

    def hear(self) -> None:
        if self.deaf or self._servers.away:
            return
        news = sorted(self._servers.members.values()), self._servers.plan
        if news != (self._members, self._plan):
            self._members, self._plan = news
            self.on_change()

    def members(self) -> list[Member]:
        return self._members

    def silent(self) -> list[Member]:
        return self.unheard

    def is_settled(self) -> bool:
        return True

    def seen_at(self, name: str) -> int | None:
        return None

    def plan(self) -> Plan | None:
        return self._plan

    async def publish(self, plan: Plan) -> bool:
        await asyncio.sleep(0.01)
        if self.mute:
            raise RuntimeError("it breaks here")
        if self._servers.away:
            return False
        before = 0 if self._servers.plan is None else self._servers.plan.version
        if plan.version != before + 1:
            self.hear()
            return False
        self._servers.plan = self._plan = plan
        self._servers.published.append((self.me.name, plan))
        self._servers.tell()
        return True

    async def refresh(self) -> bool:
        await asyncio.sleep(0.001)
        if self._servers.away or self.blind:
            return False
        self._plan = self._servers.plan
        return True

    async def say(self, word: Word, shard: int) -> None:
        await asyncio.sleep(0.001)
        self._servers.said.append((asyncio.get_running_loop().time(), self.me.name, word, shard))
        if word not in self._servers.unheard:
            for ensemble in (*self._servers.ensembles, *self._servers.leaving):
                ensemble.on_said(word, shard, self.me.seat)

    async def leave(self) -> None:
        await asyncio.sleep(0.01)
        self._servers.leaving.append(self)
        if self._servers.members.get(self.me.name) == self.me:
            del self._servers.members[self.me.name]
        self._servers.ensembles.remove(self)
        self._servers.tell()


class FakeLog:
    """Only what is asked of it here."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.confirmed = 0
        self.current = True
        self.at_end: Callable[[], Awaitable[None]]
        self.is_wanted: Callable[[], bool]
        self.looks = 0

    def look_soon(self) -> None:
        self.looks += 1

    async def confirm(self) -> bool:
        self.confirmed += 1
        return True

    async def is_current(self) -> bool:
        return self.current


class FakeNode:
    """Takes a shard when its owner has let go, or a lease after that has died."""

    def __init__(self, servers: Servers) -> None:
        self.on_lost: Callable[[int, str], None] = lambda shard, why: None
        self.held: dict[int, int] = {}
        self.share: tuple[int, int] | None = None
        self.alive = True
        self.delivers_s = 0.0
        self.replays_s = 0.0
        self.logs: list[FakeLog] = []
        self.taking: set[int] = set()
        self._servers = servers

    async def take(self, shard: int, log: Log) -> bool:
        if shard in self._servers.damaged:
            raise CorruptLog("stream", 1, "a test says so")
        self.taking.add(shard)
        try:
            return await self._take(shard, log)
        finally:
            self.taking.discard(shard)

    async def _take(self, shard: int, log: Any) -> bool:
        await asyncio.sleep(self.replays_s)
        while (owner := self._servers.owners.get(shard)) is not None and owner.alive:
            await log.at_end()
            await asyncio.sleep(0.1)
        if owner is not None:
            await log.at_end()
            await asyncio.sleep(LEASE_S)
        while not log.is_wanted():
            await asyncio.sleep(0.1)
        assert shard not in self._servers.owners or self._servers.owners[shard] is owner, "one owner"
        self._servers.owners[shard] = self
        self._servers.epochs[shard] = self.held[shard] = self._servers.epochs.get(shard, 0) + 1
        return True

    async def release(self, shard: int, grace_ms: int) -> bool:
        if self.delivers_s:
            await asyncio.sleep(min(self.delivers_s, grace_ms / 1000))
        del self.held[shard]
        if self._servers.owners.get(shard) is self:
            del self._servers.owners[shard]
        return True

    async def confirm(self, shards: Sequence[int]) -> set[int]:
        lost = {shard for shard in shards if self._servers.owners.get(shard) is not self}
        for shard in lost:
            del self.held[shard]
            self.on_lost(shard, "another process has taken it")
        return lost

    def set_share(self, mine: int, all: int) -> None:
        self.share = mine, all


class One:
    """One node."""

    def __init__(self, servers: Servers, name: str, life: str = "1", grace_ms: int = 30_000) -> None:
        self.ensemble = FakeEnsemble(servers, name, life)
        self.node = FakeNode(servers)
        self.servers = servers
        self.ownership = Ownership(
            self.ensemble, self.node, self.open_log, range(SHARDS), LoopClock(), grace_ms
        )  # fmt: skip
        self.ownership.start()

    async def open_log(self, shard: int) -> Any:
        self.servers.opened.append((asyncio.get_running_loop().time(), shard))
        if self.servers.away:
            raise ConnectionError("no answer")
        self.node.logs.append(FakeLog(shard))
        return self.node.logs[-1]

    def die(self) -> None:
        """Without a word; the others notice 4 s later."""
        assert self.ownership._loop is not None
        self.ownership._loop.cancel()
        self.servers.ensembles.remove(self.ensemble)
        self.node.alive = False


def held(*nodes: One) -> list[list[int]]:
    return [sorted(node.node.held) for node in nodes]


def run(test: Callable[[Servers], Coroutine[Any, Any, None]]) -> None:
    with virtual_loop() as loop:
        loop.run_until_complete(test(Servers()))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        assert not loop.errors
