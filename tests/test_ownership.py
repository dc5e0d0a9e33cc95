"""Who takes and lets go of which shard, and when: several nodes on one virtual clock, with servers that are a dict."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from tests.sim.knobs import virtual_loop
from timerd.engine.errors import CorruptLog
from timerd.engine.now import Now
from timerd.engine.plan import Plan, next_plan
from timerd.ownership import DAMAGED_PAUSE_MS, DEPUTY_MS, PAUSE_MAX_MS, SETTLE_MS, SURE_MS, Ownership
from timerd.ports import Log, Member

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

    def tell(self) -> None:
        for ensemble in self.ensembles:
            ensemble.hear()


class FakeEnsemble:
    """Implements `timerd.ports.Ensemble`."""

    def __init__(self, servers: Servers, name: str, life: str = "1") -> None:
        self.me = Member(name, f"http://{name}", life)
        self.on_change: Callable[[], None] = lambda: None
        self.on_catalogue_change: Callable[[], None] = lambda: None
        self.displaced = False
        self.deaf = False
        self.mute = False
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
        self._servers.plan = plan
        self._servers.published.append((self.me.name, plan))
        self._servers.tell()
        return True

    async def refresh(self) -> bool:
        await asyncio.sleep(0.001)
        if self._servers.away:
            return False
        self._plan = self._servers.plan
        return True

    async def leave(self) -> None:
        await asyncio.sleep(0.01)
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
        self.logs: list[FakeLog] = []
        self.taking: set[int] = set()
        self._servers = servers

    async def take(self, shard: int, log: Log) -> bool:
        if shard in self._servers.damaged:
            raise CorruptLog("stream", 1, "a test says so")
        self.taking.add(shard)
        try:
            return await self._take(shard)
        finally:
            self.taking.discard(shard)

    async def _take(self, shard: int) -> bool:
        while (owner := self._servers.owners.get(shard)) is not None and owner.alive:
            await asyncio.sleep(0.1)
        if owner is not None:
            await asyncio.sleep(LEASE_S)
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

    async def confirm(self, shards: Sequence[int], *, others: bool) -> set[int]:
        lost = {shard for shard in shards if self._servers.owners.get(shard) is not self}
        for shard in lost:
            del self.held[shard]
            self.on_lost(shard, "another process has taken it")
        return lost

    def set_share(self, mine: int, all: int) -> None:
        self.share = mine, all


class One:
    """One node."""

    def __init__(self, servers: Servers, name: str, life: str = "1") -> None:
        self.ensemble = FakeEnsemble(servers, name, life)
        self.node = FakeNode(servers)
        self.servers = servers
        self.ownership = Ownership(
            self.ensemble, self.node, self.open_log, range(SHARDS), LoopClock(), 30_000
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


def mapping(plan: Plan) -> Mapping[int, str]:
    return {shard: owner.name for shard, owner in enumerate(plan.owners) if owner is not None}


def test_nodes_that_start_at_once_are_one_plan_and_hold_what_it_says() -> None:
    async def test(servers: Servers) -> None:
        a, b, c = One(servers, "a"), One(servers, "b"), One(servers, "c")
        assert a.ownership.unready() == "there is no plan of the shards yet"
        await asyncio.sleep(SETTLE_MS / 1000 + 1)
        assert [name for name, _ in servers.published] == ["a"]
        assert sorted(shard for each in held(a, b, c) for shard in each) == list(range(SHARDS))
        assert [len(each) for each in held(a, b, c)] == [2, 2, 2]
        assert a.node.share == (2, SHARDS)
        assert [each.ownership.unready() for each in (a, b, c)] == [None] * 3
        for shard in range(SHARDS):
            owner = b.ownership.owner_of(shard)
            assert owner is not None
            assert shard in {"a": a, "b": b, "c": c}[owner.name].node.held
            assert b.ownership.is_here(shard) == (owner == b.ensemble.me)

    run(test)


def test_a_node_that_comes_gets_its_share_and_one_that_stops_hands_over_at_once() -> None:
    async def test(servers: Servers) -> None:
        a = One(servers, "a")
        await asyncio.sleep(1)
        assert held(a) == [list(range(SHARDS))]
        b = One(servers, "b")
        assert b.ownership.unready() == "the plan does not know this node yet"
        await asyncio.sleep(1.5)
        assert [len(each) for each in held(a, b)] == [3, 3]
        assert a.node.share == (3, SHARDS)
        began = asyncio.get_running_loop().time()
        assert await a.ownership.stop(30_000)
        assert servers.published[-1][0] == "a", "whoever goes says so itself"
        assert a.ownership.unready() == "it leaves the cluster"
        while len(b.node.held) < SHARDS:
            await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - began < 1
        assert held(a) == [[]]
        assert await b.ownership.stop(30_000)
        assert servers.plan is not None
        assert mapping(servers.plan) == {}

    run(test)


def test_nobody_gives_a_node_that_goes_its_shards_back() -> None:
    """Others may see the plan without it before they see that it has gone."""

    async def test(servers: Servers) -> None:
        a, b, c = One(servers, "a"), One(servers, "b"), One(servers, "c")
        await asyncio.sleep(2)
        before = len(servers.published)
        assert await b.ownership.stop(30_000)
        await asyncio.sleep(2)
        assert len(servers.published) == before + 1
        assert [len(each) for each in held(a, c)] == [3, 3]
        assert c.ownership._loop is not None
        c.ownership._loop.cancel()
        servers.plan = next_plan(servers.plan, [a.ensemble.me.seat], SHARDS)  # c goes, and a hears of the plan first
        servers.tell()
        await asyncio.sleep(0.2)
        await c.ensemble.leave()
        await asyncio.sleep(2)
        assert len(servers.published) == before + 1

    run(test)


def test_a_shard_whose_deliveries_take_long_keeps_its_lease_until_it_is_let_go() -> None:
    async def test(servers: Servers) -> None:
        a = One(servers, "a")
        await asyncio.sleep(1)
        a.node.delivers_s = 10
        b = One(servers, "b")
        await asyncio.sleep(8)
        assert len(b.node.held) == 0
        released = {log.shard for log in a.node.logs if log.confirmed > 10}
        await asyncio.sleep(4)
        assert set(b.node.held) == released

    run(test)


def test_the_shards_of_one_that_dies_are_taken_by_the_others() -> None:
    async def test(servers: Servers) -> None:
        a, b, c = One(servers, "a"), One(servers, "b"), One(servers, "c")
        await asyncio.sleep(2)
        before = {shard for each in (b, c) for shard in each.node.held}
        a.die()
        await asyncio.sleep(1)
        del servers.members["a"]
        servers.tell()
        await asyncio.sleep(LEASE_S + 1)
        assert [len(each) for each in held(b, c)] == [3, 3]
        assert servers.published[-1][0] == "b"
        assert all(servers.epochs[shard] == 1 for shard in before), "what was well placed stayed"

    run(test)


def test_the_next_in_line_publishes_when_the_first_does_not() -> None:
    async def test(servers: Servers) -> None:
        a = One(servers, "a")
        a.ensemble.mute = True
        b = One(servers, "b")
        await asyncio.sleep(DEPUTY_MS / 1000 - 0.1)
        assert servers.plan is None
        await asyncio.sleep(2)
        assert [name for name, _ in servers.published] == ["b"]
        assert [len(each) for each in held(a, b)] == [3, 3], "what broke there ended nothing"

    run(test)


def test_a_node_that_was_frozen_asks_for_the_plan_before_it_takes_anything_back() -> None:
    async def test(servers: Servers) -> None:
        a, b = One(servers, "a"), One(servers, "b")
        await asyncio.sleep(2)
        a.ensemble.deaf = a.ensemble.mute = True
        lost = min(a.node.held)
        plan = next_plan(servers.plan, [b.ensemble.me.seat], SHARDS)
        servers.plan = plan
        del a.node.held[lost], servers.owners[lost]
        a.node.on_lost(lost, "another process has taken it")
        await asyncio.sleep(2)
        assert lost not in a.node.held
        assert sum(shard == lost for _, shard in servers.opened) == 1

    run(test)


def test_what_another_had_meanwhile_is_taken_anew_although_the_plan_gives_it_back() -> None:
    """It was frozen and has seen nothing of the plans in between; what it has in memory is old."""

    async def test(servers: Servers) -> None:
        a, b = One(servers, "a"), One(servers, "b")
        await asyncio.sleep(2)
        mine = dict(a.node.held)
        a.ensemble.deaf = a.ensemble.mute = True
        alone = next_plan(servers.plan, [b.ensemble.me.seat], SHARDS)
        servers.plan = next_plan(alone, [a.ensemble.me.seat, b.ensemble.me.seat], SHARDS)
        back = set(servers.plan.shards_of(a.ensemble.me.seat)) & mine.keys()
        assert back
        a.ensemble.deaf = a.ensemble.mute = False
        servers.tell()
        await asyncio.sleep(2)
        assert [len(each) for each in held(a, b)] == [3, 3]
        assert all(a.node.held[shard] > mine[shard] for shard in back), "in a new epoch"
        assert set(b.node.held.values()) != {1}

    run(test)


def test_a_node_that_was_taken_for_dead_and_has_nothing_to_do_hears_of_it_and_takes_its_shards_again() -> None:
    async def test(servers: Servers) -> None:
        a, b = One(servers, "a"), One(servers, "b")
        await asyncio.sleep(2)
        shard = min(a.node.held)
        servers.owners[shard] = b.node  # while a was frozen b had it; the plan that gave it to b has come and gone
        servers.epochs[shard] += 1
        a.ownership._logs[shard].current = False  # type: ignore[attr-defined]
        await asyncio.sleep(SURE_MS / 1000 + 1)
        del servers.owners[shard]  # and now b has let go of it
        await asyncio.sleep(2)
        assert a.node.held[shard] == servers.epochs[shard] == 3

    run(test)


def test_a_shard_that_was_lost_and_is_still_this_nodes_is_taken_again() -> None:
    async def test(servers: Servers) -> None:
        a = One(servers, "a")
        await asyncio.sleep(1)
        del a.node.held[3], servers.owners[3]
        a.node.on_lost(3, "its log failed")
        assert a.ownership.unready() == "1 of its shards are not taken yet"
        await asyncio.sleep(1)
        assert held(a) == [list(range(SHARDS))]

    run(test)


def test_a_damaged_shard_is_tried_now_and_then_and_the_others_are_served() -> None:
    async def test(servers: Servers) -> None:
        servers.damaged = {2}
        a = One(servers, "a")
        await asyncio.sleep(1.5)
        assert held(a) == [[0, 1, 3, 4, 5]]
        assert a.ownership.unready() is None
        await asyncio.sleep(3 * DAMAGED_PAUSE_MS / 1000)
        assert 3 <= sum(shard == 2 for _, shard in servers.opened) <= 5
        servers.damaged.clear()
        await asyncio.sleep(DAMAGED_PAUSE_MS / 1000 + 1)
        assert held(a) == [list(range(SHARDS))]

    run(test)


def test_while_the_servers_are_away_it_tries_ever_more_seldom_and_goes_on_when_they_are_back() -> None:
    async def test(servers: Servers) -> None:
        a = One(servers, "a")
        await asyncio.sleep(1)
        servers.away = True
        for shard in list(a.node.held):
            del a.node.held[shard], servers.owners[shard]
            a.node.on_lost(shard, "its log failed")
        await asyncio.sleep(60)
        servers.away = False
        await asyncio.sleep(PAUSE_MAX_MS / 1000 + 1)
        assert held(a) == [list(range(SHARDS))]

    run(test)


def test_a_take_is_given_up_when_the_plan_gives_the_shard_to_another() -> None:
    async def test(servers: Servers) -> None:
        a, b = One(servers, "a"), One(servers, "b")
        stranger = FakeNode(servers)
        servers.owners = dict.fromkeys(range(SHARDS), stranger)  # somebody holds on to everything
        await asyncio.sleep(2)
        assert held(a, b) == [[], []]
        c = One(servers, "c")
        await asyncio.sleep(2)
        assert [len(each.node.taking) for each in (a, b, c)] == [2, 2, 2]
        assert len(a.node.taking | b.node.taking | c.node.taking) == SHARDS
        await a.ownership.stop(1_000)
        assert a.node.taking == set()
        stranger.alive = False
        await asyncio.sleep(LEASE_S + 1)
        assert [len(each) for each in held(b, c)] == [3, 3]

    run(test)


@pytest.mark.parametrize("held_by_me", [True, False])
def test_one_that_is_displaced_says_so_and_gives_nothing_away_in_its_name(held_by_me: bool) -> None:
    async def test(servers: Servers) -> None:
        a = One(servers, "a")
        if held_by_me:
            await asyncio.sleep(1)
        servers.members["a"] = a.ensemble.me._replace(life="2")
        a.ensemble.displaced = True
        a.ensemble.on_change()
        await asyncio.wait_for(a.ownership.displaced.wait(), 1)
        version = servers.plan and servers.plan.version
        await a.ownership.stop(1_000)
        assert held(a) == [[]]
        assert (servers.plan and servers.plan.version) == version
        assert "a" in servers.members

    run(test)
