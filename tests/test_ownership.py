"""Who takes and lets go of which shard, and when."""

import asyncio
import itertools
from collections.abc import Mapping

import pytest

from tests.support.owning import LEASE_S, SHARDS, FakeNode, One, Servers, held, run
from timerd import ownership
from timerd.engine.plan import Plan, next_plan
from timerd.ownership import DAMAGED_PAUSE_MS, DEPUTY_MS, LOOK_S, PAUSE_MAX_MS, SETTLE_MS, SURE_MS, TAKING_MS


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


def test_the_shards_of_a_silent_one_are_taken_a_lease_after_it_fell_silent() -> None:
    """They are read before the plan gives them away, and the lease has run by then."""

    async def test(servers: Servers) -> None:
        a, b, c = One(servers, "a"), One(servers, "b"), One(servers, "c")
        await asyncio.sleep(2)
        before = set(a.node.held)
        a.die()
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(1)
        b.ensemble.unheard = c.ensemble.unheard = [a.ensemble.me]
        await asyncio.sleep(3)
        assert b.node.taking | c.node.taking == before
        assert not b.node.taking & c.node.taking
        assert {shard for at, shard in servers.opened if at > began} == before
        assert before.isdisjoint(b.node.held.keys() | c.node.held.keys())
        del servers.members["a"]
        servers.tell()
        while len(b.node.held) + len(c.node.held) < SHARDS:
            await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - began < 1 + LEASE_S + LOOK_S + 0.2
        assert all(servers.epochs[shard] == 2 for shard in before), "and nothing of it is read again"
        assert sum(at > began for at, _ in servers.opened) == len(before)
        assert servers.plan is not None
        assert all(b.ownership._under[shard] == servers.plan.since_of(shard) for shard in b.node.held)

    run(test)


def test_nothing_is_taken_from_one_who_is_heard_again() -> None:
    async def test(servers: Servers) -> None:
        a, b = One(servers, "a"), One(servers, "b")
        await asyncio.sleep(2)
        before = dict(servers.epochs)
        for _ in range(3):
            b.ensemble.unheard = [a.ensemble.me]
            await asyncio.sleep(2 * LEASE_S)
            assert a.node.held.keys().isdisjoint(b.node.held)
            b.ensemble.unheard = []
            await asyncio.sleep(1)
            assert not b.node.taking
        assert len(servers.opened) == 6 + 3 + 3, "they all, once each, and by b what is a's: once, and once again"
        assert servers.epochs == before

    run(test)


def test_a_take_that_reads_makes_others_wait_and_one_that_waits_for_a_lease_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ownership, "READS_AT_ONCE", 1)

    async def test(servers: Servers) -> None:
        a, b = One(servers, "a"), One(servers, "b")
        await asyncio.sleep(10)
        a.die()
        b.node.replays_s = 0.3
        began = asyncio.get_running_loop().time()
        del servers.members["a"]
        servers.tell()
        while len(b.node.held) < SHARDS:
            await asyncio.sleep(0.01)
        reads = [at for at, _ in servers.opened if at > began]
        assert all(later - earlier >= 0.3 for earlier, later in itertools.pairwise(reads))
        assert asyncio.get_running_loop().time() - began < LEASE_S + 3 * (0.3 + LOOK_S) + 0.2

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


def test_nothing_is_taken_while_the_plan_can_not_be_read() -> None:
    async def test(servers: Servers) -> None:
        a, b = One(servers, "a"), One(servers, "b")
        await asyncio.sleep(2)
        a.ensemble.deaf = a.ensemble.mute = a.ensemble.blind = True
        lost = min(a.node.held)
        del a.node.held[lost], servers.owners[lost]
        a.node.on_lost(lost, "another process has taken it")
        await asyncio.sleep(10)
        assert lost not in a.node.held
        assert sum(shard == lost for _, shard in servers.opened) == 1
        a.ensemble.blind = False
        await asyncio.sleep(6)
        assert lost in a.node.held
        assert lost not in b.node.held

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
        assert a.ownership.unready() is None, "it can be asked for everything else"
        await asyncio.sleep(1)
        assert held(a) == [list(range(SHARDS))]

    run(test)


def test_who_is_left_stays_ready_while_it_takes_the_shards_of_one_that_died_but_not_for_ever() -> None:
    async def test(servers: Servers) -> None:
        a, b = One(servers, "a"), One(servers, "b")
        await asyncio.sleep(2)
        b.node.replays_s = TAKING_MS / 1000 + 2
        a.die()
        await asyncio.sleep(1)
        del servers.members["a"]
        servers.tell()
        await asyncio.sleep(TAKING_MS / 1000 - 2)
        assert len(b.node.held) == 3
        assert b.ownership.unready() is None
        await asyncio.sleep(2)
        assert b.ownership.unready() == "3 of its shards are not taken yet"
        await asyncio.sleep(20)
        assert b.ownership.unready() is None

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
