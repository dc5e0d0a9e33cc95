"""Servers that do not answer: a node says so in its metrics, which do not wait for them, and to whoever calls."""

import asyncio
import re
import time
from pathlib import Path

import httpx

from tests.cluster.nats_server import NatsServer, free_ports, needed
from tests.support.process import Process

ONE = ("--cluster-replicas", "1", "--cluster-lease", "0.6", "--shards", "4")


async def scraped(client: httpx.AsyncClient) -> dict[str, float]:
    text = (await client.get("/metrics", timeout=5)).text
    return {name: float(value) for name, value in re.findall(r"^(timerd_\w+) (\S+)$", text, re.MULTILINE)}


async def test_it_is_seen_that_they_do_not_answer(tmp_path: Path) -> None:
    needed()
    server = NatsServer(tmp_path / "one", free_ports(1)[0])
    await server.start()
    async with (
        Process(tmp_path / "data", *ONE, env={"TIMERD_CLUSTER": server.url}) as timerd,
        httpx.AsyncClient(base_url=timerd.url) as client,
    ):
        await timerd.put_type("t", url="http://127.0.0.1:9/", state="paused")
        await timerd.arm([{"id": f"t{n}", "type": "t", "delay": 3600} for n in range(100)])
        well = await scraped(client)
        assert (well["timerd_cluster_connected"], well["timerd_shards_held"], well["timerd_shards"]) == (1, 4, 4)
        assert well["timerd_plan_version"] >= 1
        assert well["timerd_ring_version"] == 1
        server.pause()
        try:
            began = time.monotonic()
            while (idle := await scraped(client))["timerd_heartbeat_age_seconds"] < 3:  # with nothing to append
                assert time.monotonic() - began < 15
                await asyncio.sleep(0.1)
            assert idle["timerd_append_age_seconds"] == 0
            item = {"timers": [{"id": "t1", "type": "t", "delay": 7200}]}
            asking = asyncio.create_task(client.post("/v1/timers", json=item, timeout=20))
            began = time.monotonic()
            while (ill := await scraped(client))["timerd_append_age_seconds"] < 1.5:
                assert time.monotonic() - began < 15
                await asyncio.sleep(0.1)
            assert ill["timerd_turns_total"] >= well["timerd_turns_total"]
            refused = await asking
            assert refused.status_code == 503
            assert refused.json()["type"].endswith("/shard-unavailable")
        finally:
            server.resume()
        began = time.monotonic()
        while (well := await scraped(client))["timerd_append_age_seconds"] + well["timerd_heartbeat_age_seconds"] > 1.5:
            assert time.monotonic() - began < 30
            await asyncio.sleep(0.2)
        assert (await scraped(client))["timerd_appends_unknown_total"] >= 1
    await server.kill()
