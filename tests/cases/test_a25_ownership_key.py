"""A25: the ownership key does not go away, or cannot be created again.

Keys with a time to live that stayed on some servers, so that nobody could lead, and a create behind a delete that was
refused for ever as `wrong last sequence` (nats-io/nats-server #3653, #3895, #5162).

Owners of shards are killed while the others contend, in some rounds together with the server that leads the shard's
stream, at the moment when the lease runs out; and one shard goes to and fro many times.
"""

import asyncio
import os
import time
from pathlib import Path

import msgspec
import pytest

from tests.failover.cluster import Cluster
from tests.support.cases import BUSY, seeded, sized
from tests.support.processor import Processor

ROUNDS = int(os.environ.get("TIMERD_CLUSTER_ROUNDS") or sized(30, 1))
LEADERS = -(-ROUNDS // 3)
"""In so many of the rounds the leader of the stream is killed as well."""
RELEASES = sized(200, 5)
DUE = 100
LEASE_S = sized(5.0, 1.0)
TAKEN_S = (LEASE_S + 10.0) * BUSY
"""In every round: also where the servers have to elect a new leader, which takes them up to 9 s."""
RELEASED_S = 10.0 * BUSY


class Witness:
    """Who has had which shard in which epoch: by what the nodes say, and by what stands in the streams."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._said: dict[tuple[int, int], str] = {}
        self._wrote: dict[tuple[int, int], str] = {}

    async def look(self) -> None:
        """Raise AssertionError if two have had the same."""
        for name in self._cluster.running:
            for shard, (owner, epoch) in (await self._cluster.owned(name)).items():
                if owner == name:  # what it says of itself
                    assert self._said.setdefault((shard, epoch), name) == name, f"shard {shard}, epoch {epoch}: two"
        for shard in range(self._cluster.shards):
            for epoch, writer in await self._cluster.writers(shard):
                assert self._wrote.setdefault((shard, epoch), writer) == writer, f"shard {shard}, epoch {epoch}: two"


async def arm_due(cluster: Cluster, asked: str, round: int) -> set[str]:
    """What becomes due from now on, over the time that a take-over takes."""
    ids = {f"due-{round}-{n}": 0.5 + 0.15 * n for n in range(DUE)}
    await cluster.nodes[asked].arm([{"id": id, "type": "t", "delay": delay} for id, delay in ids.items()])
    return set(ids)


async def taken(cluster: Cluster, asked: str, shard: int, before: str) -> float:
    """How long it takes until another node has a shard."""
    begin = time.time()

    async def by_another() -> bool:
        return (await cluster.owners(asked)).get(shard, before) != before

    await cluster.nodes[asked].until(by_another, 90)
    return time.time() - begin


@pytest.mark.slow
async def test_a_shard_is_taken_over_every_time(tmp_path: Path) -> None:
    rng = seeded()
    cluster = Cluster(tmp_path, "--cluster-lease", str(LEASE_S), shards=6)
    async with Processor() as processor, cluster:
        witness = Witness(cluster)
        await cluster.nodes["node-0"].put_type("t", url=processor.url)
        with_leader = set(rng.sample(range(ROUNDS), LEADERS))
        took: dict[bool, list[float]] = {False: [], True: []}
        due: set[str] = set()
        for round in range(ROUNDS):
            await cluster.settled()
            await cluster.current()
            shard = rng.randrange(cluster.shards)
            owner = (await cluster.owners("node-0"))[shard]
            others = [name for name in cluster.nodes if name != owner]
            due |= await arm_due(cluster, others[0], round)
            leader = await cluster.leader(shard) if round in with_leader else None
            cluster.nodes[owner].kill()
            taking = asyncio.create_task(taken(cluster, others[1], shard, owner))
            if leader is not None:
                await asyncio.sleep(rng.uniform(0.8, 1.2) * LEASE_S)  # as the lease of the killed one runs out
                await leader.kill()
            took[leader is not None].append(await taking)
            assert took[leader is not None][-1] <= TAKEN_S, f"round {round}, leader {leader and leader.name}"
            await witness.look()
            if leader is not None:
                await leader.start()
            await cluster.restart(owner)
        await cluster.settled()
        await processor.until(lambda: processor.ids >= due, 60 * BUSY)
        slowest = await to_and_fro(cluster, witness)
        for node in cluster.nodes.values():
            assert node.process is not None
            assert node.process.returncode is None
        print(
            f"{ROUNDS} rounds: taken after {max(took[False], default=0):.1f} s at most, {max(took[True]):.1f} s with "
            f"the leader killed; {RELEASES} releases in a row, {slowest:.2f} s at most; {len(due)} timers arrived"
        )
        assert not cluster.complaints()


async def to_and_fro(cluster: Cluster, witness: Witness) -> float:
    """One shard is released and taken again and again, by plans that are put by hand; the longest time that it took."""
    slowest = 0.0
    for _ in range(RELEASES):
        owners = await cluster.owners("node-0")
        here, there = owners[0], next(owner for owner in owners.values() if owner != owners[0])
        other = next(shard for shard, owner in owners.items() if owner == there)
        begin = time.time()
        await exchange(cluster, 0, other)

        async def exchanged(first: str = here, second: str = there, other: int = other) -> bool:
            now = await cluster.owners("node-0")
            return (now.get(0), now.get(other)) == (second, first)

        await cluster.nodes["node-0"].until(exchanged, RELEASED_S)
        slowest = max(slowest, time.time() - begin)
        await witness.look()
    return slowest


async def exchange(cluster: Cluster, first: int, second: int) -> None:
    """Put a plan in which two shards have changed places: it is as good as the one before, so nobody mends it."""
    revision, data = await cluster.plan()
    plan = msgspec.json.decode(data)
    owners = plan["owners"]
    owners[first], owners[second] = owners[second], owners[first]
    plan["version"] += 1
    plan["since"][first] = plan["since"][second] = plan["version"]
    await cluster.put_plan(msgspec.json.encode(plan), revision)
