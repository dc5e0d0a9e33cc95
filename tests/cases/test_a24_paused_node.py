"""A24: the paused owner wakes up and goes on working, in a cluster.

The same reports as for one machine (test_a24_paused_owner.py). Here the owner of shards stands still past its lease,
another node has taken them over and finished what was due, and the first one wakes up: it is fenced, and comes back by
itself.
"""

import asyncio
import itertools
import signal
import time
from pathlib import Path

import aiohttp
import pytest

from tests.failover.cluster import Cluster
from tests.support.cases import BUSY, chunks, millis, outside, seeded, sized, stamp
from tests.support.processor import Answer, Delivery, Processor

UNIT_S = sized(10.0, 2.0)
"""Stopped after one of these, woken after four; due between three and six."""
DUE = sized(1_000, 300)
FINISHED, OPEN, FAR = 50, 10, 40
CANDIDATES = 3
MEANWHILE = 200
MAX_LAG_S = 1.0
TAKEN_S = 15.0 * BUSY
EXPIRES_S = 12.0
LEASE_S = sized(5.0, 1.0)
OPTIONS = ("--segment-bytes", "65536", "--cluster-lease", str(LEASE_S))


class Slowly:
    """Answers at once, but holds what is named `open` until it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> Answer:
        if any(id.startswith("open") for id in delivery.ids):
            await self.let_go.wait()
        return Answer()


async def arm(cluster: Cluster, asked: str, due: dict[str, float]) -> None:
    for part in chunks([{"id": id, "type": "t", "fire_at": millis(at)} for id, at in due.items()], 500):
        await cluster.nodes[asked].arm(part)


async def ids_of(cluster: Cluster, owner: str, prefix: str, count: int) -> list[str]:
    """Ids that lie on shards of one node: found by arming more than that, far away, and looking where they are."""
    mine = await cluster.shards_of(owner)
    await arm(cluster, owner, {f"{prefix}-{n}": time.time() + 86_400 for n in range(CANDIDATES * count)})
    listed = await cluster.nodes[owner].list(f"&id_prefix={prefix}-")
    found = sorted(timer["id"] for timer in listed if timer["shard"] in mine)[:count]
    assert len(found) == count, f"only {len(found)} of them are on {owner}"
    rest = [timer["id"] for timer in listed if timer["id"] not in found]
    status, answer = await cluster.nodes[owner].request("POST", "/v1/timers:cancel", {"ids": rest})
    assert (status, answer["cancelled"]) == (200, len(rest)), answer
    return found


async def compacted(cluster: Cluster, asked: str) -> None:
    """Move the same timers until the oldest of every log is gone."""
    before = {stream["config"]["name"]: stream["state"]["first_seq"] for stream in await cluster.streams()}
    names = [name for name in before if "-log-" in name]
    assert names
    async with asyncio.timeout(60 * BUSY):
        for n in itertools.count():
            await arm(cluster, asked, {f"churn-{i}": time.time() + 90_000 + n for i in range(500)})
            now = {stream["config"]["name"]: stream["state"]["first_seq"] for stream in await cluster.streams()}
            if now and all(now[name] > before[name] for name in names):
                return


async def woken_arms(cluster: Cluster, name: str) -> set[str]:
    """Arms straight to a node, one by one; those that it acknowledged."""

    async def one(id: str) -> tuple[str, int]:
        timer = {"id": id, "type": "t", "delay": 1}
        headers = {"Timerd-Expires": stamp(time.time() + EXPIRES_S)}
        try:
            status, _ = await cluster.nodes[name].request("POST", "/v1/timers", {"timers": [timer]}, headers=headers)
        except aiohttp.ClientError:  # a connection that was idle meanwhile is closed as it wakes
            return id, 0
        assert status in (200, 503), status
        return id, status

    answers = await asyncio.gather(*(one(f"woken-{n}") for n in range(MEANWHILE)))
    return {id for id, status in answers if status == 200}


@pytest.mark.slow
async def test_a_node_that_stood_still_is_fenced_and_comes_back(tmp_path: Path) -> None:
    seeded()
    slowly = Slowly()
    first, second = "node-0", "node-1"
    cluster = Cluster(tmp_path, *OPTIONS, nodes=2, servers=sized(3, 1), shards=4)
    async with Processor(slowly) as processor, cluster:
        nodes = cluster.nodes
        fields = {"url": processor.url, "max_lag": MAX_LAG_S, "retry": {"min_backoff": "100ms"}}
        await nodes[first].put_type("t", **fields)
        await nodes[first].put_type("open", **{**fields, "max_lag": 0, "batch_size": 5, "max_in_flight": 16})
        ids = iter(await ids_of(cluster, first, "due", DUE + FINISHED))
        mine = await cluster.shards_of(first)
        begin = time.time()
        finished = {next(ids): begin for _ in range(FINISHED)}
        due = {id: millis(begin + UNIT_S * (3 + 3 * n / DUE)) / 1000 for n, id in enumerate(ids)}
        far = {f"far-{n}": begin + 86_400 for n in range(FAR)}
        await arm(cluster, first, finished | due | far)
        await processor.until(lambda: processor.ids >= finished.keys())
        opened = {f"open-{n}" for n in range(OPEN)}
        await nodes[first].arm([{"id": id, "type": "open", "delay": 0} for id in opened])
        await processor.until(lambda: processor.ids >= opened)

        await asyncio.sleep(max(0.0, begin + UNIT_S - time.time()))
        stopped = time.time()
        nodes[first].signal(signal.SIGSTOP)
        slowly.let_go.set()

        async def taken() -> bool:
            owners = await cluster.owners(second)
            return len(owners) == cluster.shards and set(owners.values()) == {second}

        await nodes[second].until(taken, TAKEN_S + 30)
        took = time.time() - stopped
        await asyncio.sleep(max(0.0, begin + 4 * UNIT_S - time.time()))
        nodes[first].signal(signal.SIGCONT)
        woken = await woken_arms(cluster, first)
        assert woken
        await processor.until(lambda: processor.ids >= due.keys() | woken)
        await cluster.settled()
        assert await cluster.shards_of(first), "it came back, and was given nothing"
        await compacted(cluster, second)

        wrong = outside(processor, due, max_lag_s=MAX_LAG_S + TAKEN_S)
        assert not wrong
        repeats = {id for id, count in processor.counts.items() if count > 1}
        assert repeats <= opened, "finished, and delivered again"
        assert took <= TAKEN_S
        said = "".join(nodes[first].stderr + nodes[first].log)
        assert "shard_fenced" in said
        there = far.keys() | {f"churn-{n}" for n in range(500)}
        for node in nodes.values():
            assert {timer["id"] for timer in await node.list()} == there
        await asyncio.gather(*(node.stop() for node in nodes.values()))
        await asyncio.gather(*(node.start() for node in nodes.values()))
        await cluster.settled()
        assert {timer["id"] for timer in await nodes[first].list()} == there, "after a start of all"
        counts = processor.counts
        print(
            f"{len(mine)} shards taken after {took:.1f} s; {len(woken)} of {MEANWHILE} arms acknowledged by the woken "
            f"node; repeated {sorted((id, counts[id]) for id in repeats)}"
        )
        assert not cluster.complaints()
