"""A log that does not answer: what callers of that node are told, and what whoever watches sees meanwhile."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.front.rig import Cluster, Fault, ids_of, on_virtual_time
from timerd.engine.message import Refused
from timerd.engine.ring import slot_of
from timerd.engine.timer import Timer, TimerType
from timerd.ports import Link
from timerd.questions import VERSION, Hello, Unsure, read_answer, read_told
from timerd.vitals import PATIENCE_S

FAR = TimerType("far", url="http://t/", state="paused")


def frozen(cluster: Cluster, shard: int) -> asyncio.Event:
    """The shard's appends wait for this from now on."""
    go_on, append = asyncio.Event(), cluster.logs[shard].append

    async def waits(*given: Any) -> int:
        await go_on.wait()
        return await append(*given)

    cluster.logs[shard].append = waits  # type: ignore[method-assign]
    return go_on


async def arm(cluster: Cluster, *ids: str) -> Any:
    timers = [Timer(cluster.clock.wall_ms + 10**6, 0, id, "far", b"1") for id in ids]
    return await cluster.fronts["a"].arm(timers, None, True, None)


def test_it_is_not_the_callers_who_ask_for_too_much() -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        id = next(ids_of(cluster, "a"))
        shard = cluster.table.shards[slot_of(id)]
        go_on = frozen(cluster, shard)
        asking = [asyncio.ensure_future(arm(cluster, id)) for _ in range(2)]
        await asyncio.sleep(0.1)
        asking.append(asyncio.ensure_future(arm(cluster, id)))
        firing = asyncio.ensure_future(cluster.fronts["a"].fire(id, None))
        await asyncio.sleep(3.2)
        refused = await arm(cluster, id)
        assert isinstance(refused, Refused)
        assert refused.name == "shard-unavailable"
        assert f"the log of shard {shard} has not answered for 3 s" in refused.detail
        assert refused.retry_after_s == 1
        cancelled = await cluster.fronts["a"].cancel([id], None)
        assert isinstance(cancelled, Refused)
        assert cancelled.name == "shard-unavailable"
        assert cluster.fronts["a"].busy() is None, "other shards have room"
        waited = await firing
        assert isinstance(waited, Refused)
        assert waited.name == "shard-unavailable"
        assert f"the log of shard {shard} has not answered for 4 s" in waited.detail
        go_on.set()
        await asyncio.gather(*asking)
        assert not isinstance(await arm(cluster, id), Refused)

    on_virtual_time(work)


def test_who_asks_elsewhere_reads_the_owners_own_reason() -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        ids = ids_of(cluster, "a")
        id = next(ids)
        shard = cluster.table.shards[slot_of(id)]
        other = next(id for id in ids if cluster.table.shards[slot_of(id)] != shard)
        await arm(cluster, id, other)
        front, wire = cluster.fronts["b"], cluster.wires["b"]
        go_on = frozen(cluster, shard)
        began = cluster.loop.time()
        told = await front.fire(id, None)
        assert isinstance(told, Refused)
        assert told.detail == (
            f"node a: the log of shard {shard} has not answered for 3 s (are the NATS servers a majority?)"
        )
        assert cluster.loop.time() - began < 4.2, "it is waited for as long as ever, since it was not undone"
        timer = Timer(cluster.clock.wall_ms + 10**6, 0, id, "far")
        armed = await front.arm([timer], None, True, None)
        assert not isinstance(armed, Refused)
        assert armed.unavailable == [0]
        assert armed.why.startswith(f"node a: the log of shard {shard} has not answered for 7 s")
        wire.faults["a"] = Fault("silent", times=1)
        told = await front.fire(other, None)
        assert isinstance(told, Refused)
        assert told.detail == "node a: no answer in time", "another shard of that node is no reason"
        go_on.set()
        await asyncio.sleep(1)
        fired = await front.fire(other, None)
        assert not isinstance(fired, Refused)
        assert fired is not None
        assert fired.status == "moved"

    on_virtual_time(work)


def test_a_question_that_waits_for_something_else_waits_on() -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        ids = ids_of(cluster, "a")
        id = next(ids)
        shard = cluster.table.shards[slot_of(id)]
        other = next(id for id in ids if cluster.table.shards[slot_of(id)] != shard)
        await arm(cluster, id, other)
        stuck, slow = frozen(cluster, shard), frozen(cluster, cluster.table.shards[slot_of(other)])
        asking = asyncio.ensure_future(cluster.fronts["b"].fire(id, None))
        await asyncio.sleep(3.5)
        firing = asyncio.ensure_future(cluster.fronts["b"].fire(other, None))
        await asyncio.sleep(0.7)
        slow.set()
        fired = await firing
        assert not isinstance(fired, Refused)
        stuck.set()
        assert isinstance(await asking, Refused)

    on_virtual_time(work)


@pytest.mark.parametrize(("bytes", "answer"), [(["Unsure"], Unsure()), (["Unsure", "why", "more"], Unsure("why"))])
def test_a_reason_may_be_missing(bytes: Any, answer: Unsure) -> None:
    told = read_told(msgspec.msgpack.encode([VERSION, 1, bytes]))
    assert read_answer(told, Hello()) == answer


def test_counts_and_vitals_are_told_meanwhile() -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        front = cluster.fronts["a"]
        ids = ids_of(cluster, "a")
        mine = [next(ids) for _ in range(20)]
        await arm(cluster, *mine)
        before = await front.own_tally()
        assert before.types["far"].live == 20
        assert front.vitals().append_age_s == 0
        shard = cluster.table.shards[slot_of(mine[0])]
        other = next(id for id in ids if cluster.table.shards[slot_of(id)] != shard)
        go_on = frozen(cluster, shard)
        asking = asyncio.ensure_future(arm(cluster, mine[0]))  # later than it was, so there is something to store
        await asyncio.sleep(0.1)
        began = cluster.loop.time()
        tally = await front.own_tally()
        assert cluster.loop.time() - began <= PATIENCE_S + 0.1
        assert tally.types["far"].live == 20, "no count falls because a shard does not answer"
        assert {told.shard for told in tally.shards} == cluster.nodes["a"].held.keys()
        await asyncio.sleep(2)
        await arm(cluster, other)
        began = cluster.loop.time()
        assert (await front.own_tally()).types["far"].live == 21
        assert cluster.loop.time() - began < 0.1, "who is known to stand still is not waited for"
        vitals = front.vitals()
        assert 3 < vitals.append_age_s < 4
        assert (vitals.shards_held, vitals.shards) == (2, 6)
        go_on.set()
        await asking
        assert (await front.own_tally()).types["far"].live == 21
        await cluster.release(shard)
        assert {told.shard for told in (await front.own_tally()).shards} == cluster.nodes["a"].held.keys()

    on_virtual_time(work)


def test_what_is_forwarded_is_counted() -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.put(FAR)
        front = cluster.fronts["a"]
        assert not front.vitals().connected
        ids = ids_of(cluster, "b")
        before = front.vitals()
        await arm(cluster, next(ids), next(ids), next(ids_of(cluster, "a")))
        cluster.wires["a"].faults["b"] = Fault("unsent", times=1)
        await cluster.fronts["a"].cancel([next(ids)], None)
        after = front.vitals()
        assert after.forwarded_timers - before.forwarded_timers == 2 + 2
        assert after.forwarded_requests - before.forwarded_requests == 3
        assert Link() == (False, 0, 0, 0)

    on_virtual_time(work)
