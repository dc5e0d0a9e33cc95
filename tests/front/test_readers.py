"""What readers are shown while timers and shards change: whose word counts, in which order, and when it comes."""

import asyncio
from typing import Any

import pytest

from tests.front.rig import Cluster, ids_of, on_virtual_time
from timerd.asking import ATTEMPT_MS
from timerd.engine.message import ArmDone, Filter, Refused
from timerd.engine.ring import slot_of
from timerd.engine.timer import Timer, TimerType
from timerd.questions import FillIn, read_asked, read_question
from timerd.spreading import PATIENCE_MS

FAR = TimerType("far", url="http://t/", state="paused")
LARGE = b'"' + b"x" * 2_000 + b'"'
IN_MS = 10**6


async def arm(cluster: Cluster, id: str, at: str, fire_at: int, payload: bytes = b"1") -> Any:
    done = await cluster.fronts[at].arm([Timer(fire_at, 0, id, "far", payload)], None, True, None)
    assert isinstance(done, ArmDone), done
    assert not done.unavailable
    return done


def one_of(cluster: Cluster, name: str) -> str:
    return next(ids_of(cluster, name))


def test_a_node_that_still_has_a_shard_serves_it_whoever_the_plan_names():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        id = one_of(cluster, "a")
        shard = cluster.table.shards[slot_of(id)]
        cluster.plan[shard] = "b"  # it has been told, and a has not let go yet
        await arm(cluster, id, "a", cluster.clock.wall_ms + IN_MS)
        front = cluster.fronts["a"]
        view = await front.get(id)
        assert view is not None
        assert not isinstance(view, Refused)
        page = await front.list(Filter(), 10, None)
        assert not isinstance(page, Refused)
        assert [shown.id for shown in page[0]] == [id]
        assert shard in next(node.shards for node in front.nodes() if node.id == "a")
        assert (await front.cancel([id], None))[0].found  # type: ignore[index]

    on_virtual_time(work)


def moves_when_its_payload_is_wanted(cluster: Cluster, id: str, fire_at: int) -> None:
    """When a payload is wanted of a node after its timers were listed, `id` moves, and what it had leaves the log."""
    wire, shard = cluster.wires["a"], cluster.table.shards[slot_of(id)]
    ask = wire.ask

    async def watched(member: Any, question: bytes, timeout_s: float) -> Any:
        if isinstance(read_question(read_asked(question)), FillIn):
            wire.ask = ask  # type: ignore[method-assign]
            bodies = cluster.logs[shard]._bodies
            before = [(number, offset) for number, held in bodies.items() for offset in held]
            await arm(cluster, id, "c", fire_at, LARGE)
            for number, offset in before:
                del bodies[number][offset]
        return await ask(member, question, timeout_s)

    wire.ask = watched  # type: ignore[method-assign]


@pytest.mark.parametrize("chosen", [False, True], ids=["all of them", "some"])
def test_a_timer_that_changes_while_it_is_listed_is_shown_as_it_is_or_not_at_all(chosen):
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        id, soon = one_of(cluster, "b"), cluster.clock.wall_ms + IN_MS
        await arm(cluster, id, "a", soon, LARGE)
        moves_when_its_payload_is_wanted(cluster, id, 2 * soon)
        wanted = Filter(fire_before=soon + 1) if chosen else Filter()
        page = await cluster.fronts["a"].list(wanted, 10, None)
        assert not isinstance(page, Refused)
        shown = [(view.id, view.fire_at, view.payload) for view in page[0]]
        assert shown == ([] if chosen else [(id, 2 * soon, LARGE)]), "it was chosen for what it was"

    on_virtual_time(work)


def test_next_is_in_order_though_one_moves_meanwhile():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        first, second, soon = one_of(cluster, "b"), one_of(cluster, "c"), cluster.clock.wall_ms + IN_MS
        await arm(cluster, first, "a", soon, LARGE)
        await arm(cluster, second, "a", soon + 1)
        moves_when_its_payload_is_wanted(cluster, first, soon + 2)
        views = await cluster.fronts["a"].next(None, 10)
        assert [(view.id, view.fire_at) for view in views] == [(second, soon + 1), (first, soon + 2)]

    on_virtual_time(work)


def test_next_is_by_time_and_then_by_generation_over_all_nodes():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        at = cluster.clock.wall_ms + IN_MS
        sources = {name: ids_of(cluster, name) for name in "abc"}
        armed = []
        for number in range(12):
            id = next(sources["cabbac"[number % 6]])
            fire_at = at - number // 6
            [result] = (await arm(cluster, id, "a", fire_at)).results
            armed.append((fire_at, result.generation, id))
            await asyncio.sleep(0.01)
        for name, front in cluster.fronts.items():
            for limit in (12, 5):
                views = await front.next(None, limit)
                found = [(view.fire_at, view.generation, view.id) for view in views]
                assert found == sorted(armed)[:limit], name

    on_virtual_time(work)


def test_this_nodes_own_shards_have_no_longer_than_others():
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        id = one_of(cluster, "a")
        log, gate = cluster.logs[cluster.table.shards[slot_of(id)]], asyncio.Event()
        append = log.append

        async def frozen(*given: Any) -> int:
            await gate.wait()
            return await append(*given)

        log.append = frozen  # type: ignore[method-assign]
        front, began = cluster.fronts["a"], cluster.loop.time()
        done = await front.arm([Timer(cluster.clock.wall_ms + IN_MS, 0, id, "far")], None, True, None)
        assert isinstance(done, ArmDone)
        assert list(done.unavailable) == [0]
        assert cluster.loop.time() - began <= ATTEMPT_MS / 1000 + 0.1
        async with asyncio.timeout(PATIENCE_MS / 1000):
            answer = await front.get(id)
        assert isinstance(answer, Refused)
        assert answer.name == "shard-unavailable"
        gate.set()
        await asyncio.sleep(1)

    on_virtual_time(work)
