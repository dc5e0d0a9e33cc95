"""deploy/nats/backup.py: everything is there again on servers that never had it, and it refuses what would not fit."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import nats
import pytest

from tests.cluster.nats_server import SHIPPED, NatsServer, free_ports, needed
from tests.support.process import Process

ONE = ("--cluster-replicas", "1", "--cluster-lease", "0.3", "--shards", "4")
LARGE = {"text": "x" * 5_000}


async def tool(server: NatsServer, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SHIPPED / "backup.py"), *arguments, env={**os.environ, "TIMERD_CLUSTER": server.url},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.slow
async def test_what_was_saved_is_all_there_on_new_servers(tmp_path: Path) -> None:
    needed()
    old, new = (NatsServer(tmp_path / name, port) for name, port in zip(("old", "new"), free_ports(2), strict=True))
    await old.start()
    await new.start()
    saved = str(tmp_path / "saved")
    async with Process(tmp_path / "data", *ONE, env={"TIMERD_CLUSTER": old.url}) as timerd:
        await timerd.put_type("t", url="http://127.0.0.1:9/")
        await timerd.arm([{"id": f"t{n}", "type": "t", "delay": 3600, "payload": LARGE} for n in range(100)])
        await timerd.arm([{"id": f"small{n}", "type": "t", "delay": 3600, "payload": n} for n in range(100)])
        wanted = sorted((timer["id"], timer["fire_at"], timer["payload"]) for timer in await timerd.list())
        asking = asyncio.create_task(tool(old, "backup", str(tmp_path / "early"), "--quiet", "0.5"))
        while not asking.done():
            await timerd.arm([{"id": "small0", "type": "t", "fire_at": wanted[0][1], "payload": 1}])
            await timerd.arm([{"id": "small0", "type": "t", "fire_at": wanted[0][1], "payload": 0}])
        assert asking.result()[0] == 1
        assert "stop every timerd first" in asking.result()[1]
        wanted = sorted((timer["id"], timer["fire_at"], timer["payload"]) for timer in await timerd.list())
        assert await timerd.stop() == 0
    code, said = await tool(old, "backup", saved, "--quiet", "0.2")
    assert code == 0, said
    assert "timerd-log-0: " in said
    code, said = await tool(old, "backup", saved)
    assert code == 1
    assert "is there already: each backup takes a directory of its own" in said
    code, said = await tool(old, "restore", saved)
    assert code == 1
    assert "are there already" in said
    # Another cluster's, whose prefix begins like this one's: here, and where it is to be restored.
    env = {"TIMERD_CLUSTER": new.url}
    async with Process(tmp_path / "blue", *ONE, "--cluster-prefix", "timerd-blue", env=env) as blue:
        assert "no streams of timerd here" in (await tool(new, "backup", str(tmp_path / "none")))[1]
        assert await blue.stop() == 0
    part = tmp_path / "part"
    shutil.copytree(saved, part, ignore=shutil.ignore_patterns("KV_*", "timerd-log-1*", "timerd-bodies-*"))
    code, said = await tool(new, "restore", str(part))  # as one that broke off
    assert code == 0, said
    (part / "timerd-log-99").mkdir()
    code, said = await tool(new, "restore", str(part))
    assert code == 1
    assert "timerd-log-99 has no backup.json" in said
    code, said = await tool(new, "restore", saved)
    assert code == 0, said
    assert "timerd-log-0: is there already\n" in said
    assert "timerd-log-1: restored\n" in said
    client = await nats.connect(old.url)
    await client.jetstream().delete_stream("KV_timerd-catalog")
    await client.close()
    code, said = await tool(old, "backup", str(tmp_path / "without"), "--quiet", "0.2")
    assert code == 1
    assert "the catalogue (KV_timerd-catalog) is missing" in said
    assert not (tmp_path / "without").exists()
    await old.kill()
    async with Process(tmp_path / "data", *ONE, env={"TIMERD_CLUSTER": new.url}) as timerd:
        assert sorted((timer["id"], timer["fire_at"], timer["payload"]) for timer in await timerd.list()) == wanted
        await timerd.arm([{"id": "more", "type": "t", "delay": 3600}])
        assert await timerd.stop() == 0
        client = await nats.connect(new.url)
        await client.jetstream().delete_stream("KV_timerd-catalog")
        await client.close()
        alone = ("restore", saved, "--stream", "KV_timerd-catalog")
        assert (await tool(new, *alone[:-1], "KV_timerd-members"))[0] == 1
        assert await tool(new, *alone) == (0, "KV_timerd-catalog: restored\n")
        assert (await tool(new, *alone))[0] == 1
        await timerd.start()
        assert (await timerd.stats("t"))["live"] == 201
    await new.kill()
