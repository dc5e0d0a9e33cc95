"""Several processes that are one cluster: started at once, killed, frozen, stopped, with a damaged shard."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.nats_server import NatsServer
from tests.cluster.open_log import Opener
from tests.support.process import Process
from tests.support.processor import Processor
from timerd.engine.ring import build_table, slot_of
from timerd_cluster.connection import Connection
from timerd_cluster.names import Names

pytestmark = pytest.mark.slow

SHARDS = 6
LEASE_S = 1.0
TABLE = build_table(range(SHARDS))
OPTIONS = ("--cluster-replicas", "1", "--cluster-lease", str(LEASE_S), "--shards", str(SHARDS), "--grace", "5")


class Cluster:
    """Nodes of one cluster, by name."""

    def __init__(self, server: NatsServer, home: Path, prefix: str) -> None:
        self.server = server
        self.names = Names(prefix)
        self.nodes: dict[str, Process] = {}
        self._home = home

    def add(self, name: str) -> Process:
        options = (*OPTIONS, "--cluster-prefix", self.names.prefix, "--node", name)
        self.nodes[name] = Process(self._home / name, *options, env={"TIMERD_CLUSTER": self.server.url})
        return self.nodes[name]

    async def start(self, *names: str) -> list[Process]:
        nodes = [self.add(name) for name in names]
        await asyncio.gather(*(node.start() for node in nodes))
        return nodes

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.__aexit__()


@pytest_asyncio.fixture
async def cluster(shared_server: NatsServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(shared_server, tmp_path, Opener().names.prefix)
    yield cluster
    await cluster.close()


async def held(node: Process) -> list[int]:
    """What a node says that it has; it may say what others have as well."""
    _, answer = await node.request("GET", "/v1/shards")
    return sorted(shard["id"] for shard in answer["shards"] if shard["owner"] == node.options[-1])


async def shared_out(*nodes: Process, shards: Sequence[int] = range(SHARDS)) -> bool:
    """Whether these nodes hold all shards, each once, and as many as the others."""
    found = [await held(node) for node in nodes]
    few, many = len(shards) // len(nodes), -(-len(shards) // len(nodes))
    return sorted(sum(found, [])) == sorted(shards) and all(few <= len(each) <= many for each in found)  # noqa: RUF017


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await true():
            await asyncio.sleep(0.02)


async def arm_here(node: Process, prefix: str, count: int, delay: float) -> set[str]:
    """Arm timers whose shards this node holds."""
    mine = await held(node)
    ids = [id for n in range(400) if TABLE.shards[slot_of(id := f"{prefix}-{n}")] in mine][:count]
    await node.arm([{"id": id, "type": "t", "delay": delay} for id in ids])
    return set(ids)


async def test_nodes_started_at_once_share_the_shards_and_outlive_each_other(cluster: Cluster) -> None:
    async with Processor() as processor:
        one, two, three = nodes = await cluster.start("one", "two", "three")
        await until(lambda: shared_out(*nodes))
        assert [(await node.request("GET", "/readyz"))[0] for node in nodes] == [200] * 3
        await one.put_type("t", url=processor.url)
        for node in (two, three):
            await until(lambda node=node: _knows(node, "t"))  # type: ignore[misc]
        ids = set()
        for node in nodes:
            ids |= await arm_here(node, "soon", 20, 3)
        foreign = (await held(two))[0]
        elsewhere = next(f"x-{n}" for n in range(400) if TABLE.shards[slot_of(f"x-{n}")] == foreign)
        elsewhere_too = {"timers": [{"id": elsewhere, "type": "t", "delay": 1}]}
        status, problem = await one.request("POST", "/v1/timers", elsewhere_too)
        assert status in (200, 201, 503), problem  # once nodes forward, it is armed

        two.kill()
        await until(lambda: shared_out(one, three))
        await processor.until(lambda: ids <= set(processor.ids))
        assert (await one.request("GET", "/readyz"))[0] == 200

        ids = await arm_here(three, "late", 20, 1.5)
        assert await three.stop() == 0
        await until(lambda: shared_out(one))
        await processor.until(lambda: ids <= set(processor.ids))
        assert {processor.counts[id] for id in ids} == {1}, "a clean stop hands over, and nothing comes twice"
        assert await one.stop() == 0
        assert not [line for node in nodes for line in node.complaints()]


async def _knows(node: Process, type: str) -> bool:
    return (await node.request("GET", f"/v1/types/{type}"))[0] == 200


async def test_one_that_was_frozen_lets_go_of_what_others_have_taken_and_gets_its_share_again(cluster: Cluster) -> None:
    one, two = await cluster.start("one", "two")
    await until(lambda: shared_out(one, two))
    one.signal(signal.SIGSTOP)
    await until(lambda: shared_out(two))
    one.signal(signal.SIGCONT)
    await until(lambda: shared_out(one, two))
    assert one.process is not None
    assert one.process.returncode is None
    one.kill()
    await one.start()  # in its next life, at once
    await until(lambda: shared_out(one, two))


async def test_one_whose_name_is_taken_while_it_is_frozen_ends(cluster: Cluster) -> None:
    [one] = await cluster.start("one")
    one.signal(signal.SIGSTOP)
    again = cluster.add("one")
    await again.start()
    await until(lambda: shared_out(again))
    one.signal(signal.SIGCONT)
    assert await one.wait() == 5
    assert any("another process has joined the cluster as node one" in line for line in one.stderr)
    assert await shared_out(again)
    await one.__aexit__()


async def test_a_shard_whose_stream_is_damaged_is_not_served_and_all_others_are(cluster: Cluster) -> None:
    [one] = await cluster.start("one")
    await one.put_type("t", url="http://127.0.0.1:9/")
    await one.arm([{"id": f"a-{n}", "type": "t", "delay": 3600} for n in range(60)])
    connection = await Connection.connect([cluster.server.url], "test")
    await connection.publish(cluster.names.log_subject(2), b"damage", {})
    again = {"timers": [{"id": f"a-{n}", "type": "t", "delay": 7200} for n in range(60)]}
    await one.request("POST", "/v1/timers", again)  # what finds out
    healthy = [shard for shard in range(SHARDS) if shard != 2]
    await until(lambda: shared_out(one, shards=healthy))
    await until(lambda: _says(one, "shard_damaged", "shard=2"))
    await connection.api(f"STREAM.DELETE.{cluster.names.log(3)}")
    await one.kill_and_start()
    await until(lambda: shared_out(one, shards=[0, 1, 4, 5]))
    await connection.close()


async def test_a_shard_whose_payloads_are_gone_holds_up_no_other(cluster: Cluster) -> None:
    async with Processor() as processor:
        [one] = await cluster.start("one")
        await one.put_type("t", url=processor.url, max_in_flight=1)
        timers = [{"id": f"a-{n}", "type": "t", "delay": 3600, "payload": "p" * 1_000} for n in range(60)]
        await one.arm(timers)
        connection = await Connection.connect([cluster.server.url], "test")
        await connection.api(f"STREAM.DELETE.{cluster.names.bodies(2)}")
        gone = {timer["id"] for timer in timers if TABLE.shards[slot_of(str(timer["id"]))] == 2}
        first = sorted(gone)[0]
        assert (await one.request("POST", f"/v1/timers/{first}:fire"))[0] == 200
        await until(lambda: _says(one, "shard_lost", "shard=2", "is gone"))
        status, answer = await one.request("GET", f"/v1/timers/{first}")
        assert (status, answer["type"].rpartition("/")[2]) == (503, "shard-unavailable")
        await one.request("POST", "/v1/timers", {"timers": [{**timer, "delay": 0} for timer in timers]})
        others = {timer["id"] for timer in timers} - gone
        await processor.until(lambda: others <= set(processor.ids))
        assert not gone & set(processor.ids)
        await connection.close()


async def _says(node: Process, *words: str) -> bool:
    return any(all(word in line for word in words) for line in node.stderr)
