"""Hand-overs: the taker replays while the shard is served; the words between the two may be lost, late or untrue."""

import asyncio
from collections.abc import Callable

import pytest

from tests.support.owning import SHARDS, FakeEnsemble, One, Servers, held, run
from timerd.engine.plan import Seat
from timerd.handing import VALID_MS, WARM_MS, Handing

REPLAY_S = 4.0
GRACE_MS = 60_000


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def until(true: Callable[[], bool], most_s: float = 60.0) -> float:
    """So long it took; looked at every 10 ms."""
    began = now_s()
    while not true():
        assert now_s() - began < most_s
        await asyncio.sleep(0.01)
    return now_s() - began


class Gaps:
    """How long each shard was nobody's."""

    def __init__(self, *nodes: One) -> None:
        self.longest_s = 0.0
        self.task = asyncio.get_running_loop().create_task(self._watch(nodes))

    async def _watch(self, nodes: tuple[One, ...]) -> None:
        since: dict[int, float] = {}
        while True:
            for shard in range(SHARDS):
                if any(shard in node.node.held for node in nodes):
                    since.pop(shard, None)
                self.longest_s = max(self.longest_s, now_s() - since.setdefault(shard, now_s()))
                if any(shard in node.node.held for node in nodes):
                    del since[shard]
            await asyncio.sleep(0.01)

    def end(self) -> float:
        self.task.cancel()
        return self.longest_s


def test_a_shard_is_served_while_its_next_owner_replays_at_a_join_and_at_a_stop() -> None:
    async def test(servers: Servers) -> None:
        a = One(servers, "a", grace_ms=GRACE_MS)
        await until(lambda: len(a.node.held) == SHARDS)
        b = One(servers, "b", grace_ms=GRACE_MS)
        b.node.replays_s = REPLAY_S
        gaps = Gaps(a, b)
        await until(lambda: len(b.node.taking) == SHARDS // 2)
        assert len(a.node.held) == SHARDS
        moving = next(iter(b.node.taking))
        await asyncio.sleep(1)
        for node in (a, b):
            owner = node.ownership.owner_of(moving)
            assert owner is not None
            assert owner.name == "a", "whoever has it is asked"
        assert await until(lambda: [len(each) for each in held(a, b)] == [SHARDS // 2, SHARDS // 2]) < REPLAY_S
        assert gaps.end() < 0.3
        assert a.ownership.owner_of(moving) == b.ownership.owner_of(moving) == b.ensemble.me

        gaps = Gaps(a, b)
        began = now_s()
        assert await a.ownership.stop(GRACE_MS)
        assert REPLAY_S <= now_s() - began < REPLAY_S + 1
        await until(lambda: len(b.node.held) == SHARDS)
        assert gaps.end() < 0.3
        assert b.node.logs[-1].looks == 2, "who follows a log is told that it is given, and that it is let go of"

    run(test)


@pytest.mark.parametrize("lost", ["warm", "here", "gone"])
def test_a_word_that_is_lost_costs_time_and_nothing_else(lost: str) -> None:
    async def test(servers: Servers) -> None:
        servers.unheard.add(lost)
        a = One(servers, "a", grace_ms=GRACE_MS)
        await until(lambda: len(a.node.held) == SHARDS)
        b = One(servers, "b", grace_ms=GRACE_MS)
        await until(lambda: len(b.node.taking) > 0)
        took_s = await until(lambda: [len(each) for each in held(a, b)] == [SHARDS // 2, SHARDS // 2])
        assert (took_s >= WARM_MS / 1000) == (lost == "warm")
        assert took_s < WARM_MS / 1000 + 1

    run(test)


def test_nobody_is_waited_for_when_nobody_is_to_have_it() -> None:
    async def test(servers: Servers) -> None:
        a = One(servers, "a", grace_ms=GRACE_MS)
        await until(lambda: len(a.node.held) == SHARDS)
        began = now_s()
        assert await a.ownership.stop(GRACE_MS)
        assert now_s() - began < 0.5

    run(test)


def test_those_who_all_stop_at_once_wait_for_none_of_them() -> None:
    """Each is the next owner of what another has, for a moment."""

    async def test(servers: Servers) -> None:
        nodes = [One(servers, name, grace_ms=GRACE_MS) for name in "abcd"]
        await until(lambda: sum(map(len, held(*nodes))) == SHARDS)
        for node in nodes:
            node.node.replays_s = REPLAY_S
        began = now_s()
        assert all(await asyncio.gather(*(node.ownership.stop(GRACE_MS) for node in nodes)))
        assert now_s() - began < 2

    run(test)


def test_a_stop_waits_for_the_taker_no_longer_than_half_its_grace() -> None:
    async def test(servers: Servers) -> None:
        a, b = One(servers, "a"), One(servers, "b")
        await until(lambda: [len(each) for each in held(a, b)] == [SHARDS // 2, SHARDS // 2])
        b.node.replays_s = 60
        began = now_s()
        await a.ownership.stop(4_000)
        assert 2 <= now_s() - began < 2.5
        assert held(a) == [[]]

    run(test)


@pytest.mark.parametrize("forged", ["another", "gone", "before"])
def test_a_word_of_somebody_else_or_of_another_time_is_none(forged: str) -> None:
    async def test(servers: Servers) -> None:
        a = One(servers, "a", grace_ms=GRACE_MS)
        await until(lambda: len(a.node.held) == SHARDS)
        shards = range(SHARDS)

        def say(seat: Seat) -> None:
            for shard in shards:
                a.ensemble.on_said("gone" if forged == "gone" else "warm", shard, seat)

        if forged == "before":
            say(Seat("b", "1"))
            await asyncio.sleep(VALID_MS / 1000)
        b = One(servers, "b", grace_ms=GRACE_MS)
        b.node.replays_s = REPLAY_S
        await until(lambda: len(b.node.taking) == SHARDS // 2)
        if forged != "before":
            say(a.ensemble.me.seat if forged == "another" else b.ensemble.me.seat)
        await asyncio.sleep(REPLAY_S - 2.5)
        assert len(a.node.held) == SHARDS
        await until(lambda: len(b.node.held) == SHARDS // 2)

    run(test)


def test_a_holder_is_known_that_was_there_before() -> None:
    async def test(servers: Servers) -> None:
        a, b = FakeEnsemble(servers, "a"), FakeEnsemble(servers, "b")
        handing = Handing(b, SHARDS, lambda: 0)
        b.on_said("here", 1, a.me.seat)
        assert handing.holder(1) == a.me
        b.on_said("here", SHARDS, a.me.seat)
        assert handing.holder(SHARDS) is None, "there is no such shard"

    run(test)


def test_who_had_it_by_the_plan_before_is_asked_at_once_if_it_is_there() -> None:
    async def test(servers: Servers) -> None:
        servers.unheard.add("here")
        a = One(servers, "a", grace_ms=GRACE_MS)
        await until(lambda: len(a.node.held) == SHARDS)
        b = One(servers, "b", grace_ms=GRACE_MS)
        b.node.replays_s = REPLAY_S
        await until(lambda: len(b.node.taking) > 0)
        for shard in range(SHARDS):
            assert b.ownership.owner_of(shard) == a.ensemble.me
        await until(lambda: len(b.node.held) == SHARDS // 2)
        mine = set(b.node.held)
        await asyncio.sleep(VALID_MS / 1000)
        c = One(servers, "c", grace_ms=GRACE_MS)
        await until(lambda: len(c.node.held) == 2)
        b.die()
        del servers.members["b"]
        servers.tell()
        await until(lambda: bool(servers.plan and b.ensemble.me.seat not in servers.plan.owners))
        for shard in mine - set(c.node.held):
            assert c.ownership.owner_of(shard) != b.ensemble.me, "who is dead is not asked"

    run(test)


def test_a_holder_that_is_not_there_any_more_is_not_asked_twice() -> None:
    async def test(servers: Servers) -> None:
        a, b = One(servers, "a", grace_ms=GRACE_MS), One(servers, "b", grace_ms=GRACE_MS)
        await until(lambda: [len(each) for each in held(a, b)] == [SHARDS // 2, SHARDS // 2])
        [shard, *_] = b.node.held
        b.ensemble.on_said("here", shard, Seat("nobody", "that is known"))
        assert b.ownership.owner_of(shard) == b.ensemble.me
        b.ensemble.on_said("here", shard, a.ensemble.me.seat)
        assert b.ownership.owner_of(shard) == a.ensemble.me
        b.ownership.not_there(shard, b.ensemble.me)
        assert b.ownership.owner_of(shard) == a.ensemble.me
        b.ownership.not_there(shard, a.ensemble.me)
        assert b.ownership.owner_of(shard) == b.ensemble.me
        b.ensemble.on_said("here", shard, a.ensemble.me.seat)
        await asyncio.sleep(VALID_MS / 1000)
        assert b.ownership.owner_of(shard) == b.ensemble.me

    run(test)
