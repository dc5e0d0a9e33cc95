"""Three processes that are one cluster: a request at any of them, also while one is away."""

import asyncio
from pathlib import Path

from tests.cluster.nats_server import NatsServer
from tests.cluster.open_log import Opener
from tests.support.process import Process
from timerd_api.peers import PATH

OPTIONS = ("--cluster-replicas", "1", "--cluster-lease", "1", "--shards", "6", "--grace", "2")
NAMES = ("a", "b", "c")


async def test_any_node_takes_any_request(shared_server: NatsServer, tmp_path: Path) -> None:
    prefix = Opener().names.prefix
    nodes = [
        Process(
            tmp_path / name,
            *(*OPTIONS, "--cluster-prefix", prefix, "--node", name),
            env={"TIMERD_CLUSTER": shared_server.url},
        )
        for name in NAMES
    ]
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        a, b, c = nodes
        async with asyncio.timeout(30):
            while not all([len(await owners(node)) == 3 for node in nodes]):
                await asyncio.sleep(0.05)
        await a.put_type("t", url="http://127.0.0.1:9/")
        ids = [f"id {n}" for n in range(200)]
        large = "x" * 2_000
        status, done = await b.request(
            "POST", "/v1/timers", {"timers": [{"id": i, "type": "t", "delay": 3600, "payload": large} for i in ids]}
        )
        assert (status, done["armed"]) == (200, 200), "b re-reads the types before it refuses"
        listed = await c.list()
        assert sorted(timer["id"] for timer in listed) == sorted(ids)
        assert {timer["payload"] for timer in listed} == {large}
        for node in nodes:
            assert (await node.stats("t"))["live"] == 200
            assert (await node.request("GET", "/v1/timers/id%207"))[0] == 200
            _, ring = await node.request("GET", "/v1/ring")
            assert {shard["node"] for shard in ring["shards"]} == set(NAMES)
            _, shown = await node.request("GET", "/v1/nodes")
            assert [row["id"] for row in shown["nodes"]] == list(NAMES)
            assert sorted(shard for row in shown["nodes"] for shard in row["shards"]) == list(range(6))
        status, done = await c.request("POST", "/v1/timers:cancel", {"ids": [*ids[:50], "nobody"]})
        assert (status, done["cancelled"]) == (200, 50)
        assert (await a.request("DELETE", "/v1/types/t"))[0] == 409
        status, _ = await a.request("POST", PATH.decode(), {"q": 1})
        assert status == 401
        a.kill()
        await a.wait()
        again = {"timers": [{"id": i, "type": "t", "delay": 60} for i in ids]}
        status, done = await b.request("POST", "/v1/timers", again)
        assert status == 503
        assert {row["status"] for row in done["results"]} >= {"unavailable", "moved"}
        async with asyncio.timeout(30):
            while status != 200:
                status, done = await b.request("POST", "/v1/timers", again)
        assert len(await c.list()) == 200
    finally:
        for node in nodes:
            await node.__aexit__()


async def owners(node: Process) -> set[str]:
    _, answer = await node.request("GET", "/v1/shards")
    return {shard["owner"] for shard in answer["shards"] if shard["epoch"]}
