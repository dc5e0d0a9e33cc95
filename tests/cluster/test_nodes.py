"""Several processes that are one cluster: asked, started at once, killed, frozen, stopped, with a damaged shard.

A process takes long to start, so the tests share theirs: each says which nodes it wants, and leaves those that it has.
"""

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
from timerd_api.peers import PATH
from timerd_cluster.connection import Connection
from timerd_cluster.names import Names

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHARDS = 6
LEASE_S = 0.4
ASK_S = 1.0
TABLE = build_table(range(SHARDS))
OPTIONS = ("--cluster-replicas", "1", "--cluster-lease", str(LEASE_S), "--shards", str(SHARDS), "--grace", "5")


class Cluster:
    """Nodes of one cluster, by name."""

    def __init__(self, server: NatsServer, home: Path, prefix: str) -> None:
        self.server = server
        self.names = Names(prefix)
        self.nodes: dict[str, Process] = {}
        self._all: list[Process] = []
        self._home = home

    def add(self, name: str) -> Process:
        options = (*OPTIONS, "--cluster-prefix", self.names.prefix, "--node", name)
        node = self.nodes[name] = Process(self._home / name, *options, env={"TIMERD_CLUSTER": self.server.url})
        self._all.append(node)
        return node

    async def have(self, *names: str) -> list[Process]:
        """These nodes and no others, each with its share. Those that are missing are started at once."""
        alive = {name for name, node in self.nodes.items() if node.process and node.process.returncode is None}
        for name in alive - set(names):
            assert await self.nodes[name].stop() == 0
        await asyncio.gather(*(self.add(name).start() for name in names if name not in alive))
        nodes = [self.nodes[name] for name in names]
        await until(lambda: shared_out(*nodes))
        return nodes

    async def close(self) -> None:
        for node in self._all:
            await node.__aexit__()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(shared_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    cluster = Cluster(shared_server, tmp_path_factory.mktemp("nodes"), Opener().names.prefix)
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
        while not await _within(ASK_S, true()):
            await asyncio.sleep(0.02)


async def _within(seconds: float, answer: Awaitable[bool]) -> bool:
    """It, or no: a node that waits for one that is frozen is better asked again, when it waits no more."""
    try:
        return await asyncio.wait_for(answer, seconds)
    except TimeoutError:
        return False


async def arm_here(node: Process, prefix: str, count: int, delay: float) -> set[str]:
    """Arm timers whose shards this node holds."""
    mine = await held(node)
    ids = [id for n in range(400) if TABLE.shards[slot_of(id := f"{prefix}-{n}")] in mine][:count]
    await node.arm([{"id": id, "type": "t", "delay": delay} for id in ids])
    return set(ids)


async def owners(node: Process) -> set[str]:
    """Who serves something, by what a node says."""
    _, answer = await node.request("GET", "/v1/shards")
    return {shard["owner"] for shard in answer["shards"] if shard["epoch"]}


async def test_any_node_takes_any_request(cluster: Cluster) -> None:
    a, b, c = nodes = await cluster.have("one", "two", "three")
    names = ["one", "three", "two"]
    assert [(await node.request("GET", "/readyz"))[0] for node in nodes] == [200] * 3
    assert [await owners(node) for node in nodes] == [set(names)] * 3
    await a.put_type("far", url="http://127.0.0.1:9/")
    ids = [f"id {n}" for n in range(200)]
    large = "x" * 2_000
    status, done = await b.request(
        "POST", "/v1/timers", {"timers": [{"id": i, "type": "far", "delay": 3600, "payload": large} for i in ids]}
    )
    assert (status, done["armed"]) == (200, 200), "b re-reads the types before it refuses"
    listed = await c.list()
    assert sorted(timer["id"] for timer in listed) == sorted(ids)
    assert {timer["payload"] for timer in listed} == {large}
    for node in nodes:
        assert (await node.stats("far"))["live"] == 200
        assert (await node.request("GET", "/v1/timers/id%207"))[0] == 200
        _, ring = await node.request("GET", "/v1/ring")
        assert {shard["node"] for shard in ring["shards"]} == set(names)
        _, shown = await node.request("GET", "/v1/nodes")
        assert [row["id"] for row in shown["nodes"]] == names
        assert sorted(shard for row in shown["nodes"] for shard in row["shards"]) == list(range(SHARDS))
    status, done = await c.request("POST", "/v1/timers:cancel", {"ids": [*ids[:50], "nobody"]})
    assert (status, done["cancelled"]) == (200, 50)
    assert (await a.request("DELETE", "/v1/types/far"))[0] == 409
    status, _ = await a.request("POST", PATH.decode(), {"q": 1})
    assert status == 401


async def test_nodes_outlive_each_other(cluster: Cluster) -> None:
    async with Processor() as processor:
        one, two, three = nodes = await cluster.have("one", "two", "three")
        for type, url in (("far", "http://127.0.0.1:9/"), ("t", processor.url)):
            await one.put_type(type, url=url)
        for node in (two, three):
            await until(lambda node=node: _knows(node, "t"))  # type: ignore[misc]
        ids = set()
        for node in nodes:
            ids |= await arm_here(node, "soon", 20, 3)
        far = {"timers": [{"id": f"id {n}", "type": "far", "delay": 3600} for n in range(200)]}
        assert (await three.request("POST", "/v1/timers", far))[0] == 200

        two.kill()
        await two.wait()
        status, done = await three.request("POST", "/v1/timers", far)
        assert status == 503
        assert {row["status"] for row in done["results"]} >= {"unavailable", "moved"}
        async with asyncio.timeout(30):
            while status != 200:
                status, _ = await three.request("POST", "/v1/timers", far)
        await until(lambda: shared_out(one, three))
        assert (await one.stats("far"))["live"] == 200
        await processor.until(lambda: ids <= set(processor.ids))
        assert (await one.request("GET", "/readyz"))[0] == 200

        ids = await arm_here(three, "late", 20, 1.5)
        assert await three.stop() == 0
        await until(lambda: shared_out(one))
        await processor.until(lambda: ids <= set(processor.ids))
        assert {processor.counts[id] for id in ids} == {1}, "a clean stop hands over, and nothing comes twice"
        assert not [line for node in nodes for line in node.complaints()]


async def _knows(node: Process, type: str) -> bool:
    return (await node.request("GET", f"/v1/types/{type}"))[0] == 200


async def test_one_that_was_frozen_lets_go_of_what_others_have_taken_and_gets_its_share_again(cluster: Cluster) -> None:
    one, two = await cluster.have("one", "two")
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
    one, two = await cluster.have("one", "two")
    one.signal(signal.SIGSTOP)
    again = cluster.add("one")
    await again.start()
    await until(lambda: shared_out(again, two))
    one.signal(signal.SIGCONT)
    assert await one.wait() == 5
    assert any("another process has joined the cluster as node one" in line for line in one.stderr)
    assert await shared_out(again, two)


async def test_a_shard_whose_payloads_are_gone_holds_up_no_other(shared_server: NatsServer, tmp_path: Path) -> None:
    cluster = Cluster(shared_server, tmp_path, Opener().names.prefix)
    async with Processor() as processor:
        [one] = await cluster.have("one")
        await one.put_type("payloads", url=processor.url, max_in_flight=1)
        timers = [{"id": f"p-{n}", "type": "payloads", "delay": 3600, "payload": "p" * 1_000} for n in range(60)]
        await one.arm(timers)
        connection = await Connection.connect([cluster.server.url], "test")
        await connection.api(f"STREAM.DELETE.{cluster.names.bodies(4)}")
        gone = {timer["id"] for timer in timers if TABLE.shards[slot_of(str(timer["id"]))] == 4}
        first = sorted(gone)[0]
        assert (await one.request("POST", f"/v1/timers/{first}:fire"))[0] == 200
        await until(lambda: _says(one, "shard_lost", "shard=4", "is gone"))
        status, answer = await one.request("GET", f"/v1/timers/{first}")
        assert (status, answer["type"].rpartition("/")[2]) == (503, "shard-unavailable")
        await one.request("POST", "/v1/timers", {"timers": [{**timer, "delay": 0} for timer in timers]})
        others = {timer["id"] for timer in timers} - gone
        await processor.until(lambda: others <= set(processor.ids))
        assert not gone & set(processor.ids)
        await connection.close()
    await cluster.close()


async def test_a_shard_whose_stream_is_damaged_is_not_served_and_all_others_are(cluster: Cluster) -> None:
    [one] = await cluster.have("one")
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
    assert await one.stop() == 0
    await connection.close()


async def _says(node: Process, *words: str) -> bool:
    return any(all(word in line for word in words) for line in node.stderr)
