"""A whole timerd process on NATS servers: it keeps nothing itself, and what it has acknowledged survives its end."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from tests.cluster.nats_server import NatsServer, free_ports, needed
from tests.crash.kill import kill_rounds
from tests.support.process import Process
from tests.support.processor import Processor
from timerd_cluster import kv_catalog
from timerd_cluster.bucket import Bucket
from timerd_cluster.connection import Connection
from timerd_cluster.ensemble import BUCKET
from timerd_cluster.names import Names

ROUNDS = int(os.environ.get("TIMERD_CLUSTER_ROUNDS", "1"))
ONE = ("--cluster-replicas", "1", "--cluster-lease", "0.3", "--shards", "4")
LARGE = {"text": "x" * 5_000}


def timerd_on(server: NatsServer, data: Path, prefix: str, *options: str) -> Process:
    return Process(data, *ONE, "--cluster-prefix", prefix, *options, env={"TIMERD_CLUSTER": server.url})


async def test_timers_and_types_outlive_a_kill_and_a_stop(shared_server: NatsServer, tmp_path: Path) -> None:
    async with Processor() as processor, timerd_on(shared_server, tmp_path / "data", "whole") as timerd:
        await timerd.put_type("a.b", url=processor.url)
        await timerd.arm([{"id": f"later-{n}", "type": "a.b", "delay": 3600, "payload": LARGE} for n in range(50)])
        await timerd.arm([{"id": "gone", "type": "a.b", "delay": 3600}])
        assert (await timerd.request("DELETE", "/v1/timers/gone"))[0] in (200, 204)
        await timerd.kill_and_start()
        assert not (tmp_path / "data").exists(), "nothing is kept here"
        listed = await timerd.list()
        assert sorted(timer["id"] for timer in listed) == sorted(f"later-{n}" for n in range(50))
        assert all(timer["payload"] == LARGE for timer in listed)
        await timerd.arm([{"id": "now", "type": "a.b", "delay": 0, "payload": LARGE}])
        await processor.until(lambda: "now" in processor.ids)
        assert next(timer for _, timer in processor.timers())["payload"] == LARGE
        _, said = await timerd.request("GET", "/v1/status")
        assert (said["durability"], said["replicas"], said["sync"]) == ("fsync", 1, "always")
        await timerd.until(lambda: _fired(timerd, 1))
        assert await timerd.stop() == 0
        await timerd.start()
        assert len(await timerd.list()) == 50
        assert (await timerd.stats("a.b"))["fired"] == 1
        assert not timerd.complaints()


async def _fired(timerd: Process, count: int) -> bool:
    return bool((await timerd.stats("a.b"))["fired"] == count)


@pytest.mark.slow
async def test_kill_9_under_load_loses_nothing_acknowledged(shared_server: NatsServer, tmp_path: Path) -> None:
    options = ("--cluster", shared_server.url, "--cluster-prefix", "killed", *ONE)
    report = await kill_rounds(tmp_path, ROUNDS, 5, *options)
    print(report.summary())
    assert not report.wrong
    assert report.book.counts["arms"] > ROUNDS * 50


async def test_a_server_that_goes_and_comes_back_costs_time_and_nothing_else_and_a_stop_without_it_ends(
    server: NatsServer, tmp_path: Path
) -> None:
    async with Processor() as processor, timerd_on(server, tmp_path / "data", "away", "--grace", "1") as timerd:
        await timerd.put_type("t", url=processor.url)
        await timerd.arm([{"id": f"before-{n}", "type": "t", "delay": 1} for n in range(20)])
        await timerd.arm([{"id": "far", "type": "t", "delay": 3600}])
        await server.kill()
        asking = asyncio.create_task(timerd.arm([{"id": "during", "type": "t", "delay": 0}]))
        assert (await timerd.request("GET", "/healthz"))[0] == 200
        await server.start()
        await asking
        await processor.until(lambda: len(processor.ids) == 21)
        assert set(processor.counts.values()) == {1}
        assert timerd.process is not None
        assert timerd.process.returncode is None
        await server.kill()
        assert await timerd.stop(30) == 0, "".join(timerd.stderr + timerd.log)


async def test_a_second_process_of_one_name_is_refused_and_the_first_goes_on(
    shared_server: NatsServer, tmp_path: Path
) -> None:
    async with timerd_on(shared_server, tmp_path / "one", "twice", "--node", "n1") as one:
        await one.put_type("t", url="http://127.0.0.1:9/")
        code, said = await _refused(timerd_on(shared_server, tmp_path / "two", "twice", "--node", "n1"))
        assert code == 5
        assert f"another process, at {one.url}, is node n1 of this cluster" in said
        await one.arm([{"id": f"b-{n}", "type": "t", "delay": 3600} for n in range(100)])


async def _refused(timerd: Process) -> tuple[int, str]:
    await timerd.spawn()
    code = await timerd.wait()
    await asyncio.gather(*timerd._readers)
    return code, "".join(timerd.stderr)


async def test_a_start_that_is_refused_says_why_in_a_line(shared_server: NatsServer, tmp_path: Path) -> None:
    wrong = Process(tmp_path / "data", env={"TIMERD_CLUSTER": shared_server.url.replace(":t@", ":hidden@")})
    code, said = await _refused(wrong)
    assert code == 5
    assert re.search(r"^timerd: the NATS server at 127.0.0.1:\d+ refuses user or password", said, re.MULTILINE), said
    assert "hidden" not in said + "".join(wrong.log)


async def test_servers_that_are_not_there_yet_are_waited_for(server: NatsServer, tmp_path: Path) -> None:
    await server.kill()
    timerd = timerd_on(server, tmp_path / "data", "early")
    starting = asyncio.create_task(timerd.start())
    async with asyncio.timeout(30):
        while not any("nats_unreachable" in line for line in timerd.stderr):
            await asyncio.sleep(0.02)
    await server.start()
    await starting
    assert await timerd.stop() == 0
    assert ":t@" not in "".join(timerd.log + timerd.stderr)
    await timerd.__aexit__()


async def test_one_that_is_refused_for_what_it_was_told_was_never_a_member(
    shared_server: NatsServer, tmp_path: Path
) -> None:
    env = {"TIMERD_CLUSTER": shared_server.url, "TIMERD_CLUSTER_SECRET": "0123456789abcdef"}
    told = ("--cluster-prefix", "told", "--cluster-replicas", "1", "--shards", "2")
    refused = {
        "secret": (
            (*told,),
            {**env, "TIMERD_CLUSTER_SECRET": "fedcba9876543210"},
            5,
            "TIMERD_CLUSTER_SECRET is not the",
        ),
        "none": ((*told,), {"TIMERD_CLUSTER": shared_server.url}, 5, "TIMERD_CLUSTER_SECRET is not set here"),
        "shards": ((*told, "--shards", "3"), env, 2, "--shards: the cluster has 2 shards"),
        "lease": ((*told, "--cluster-lease", "3"), env, 5, "timerd-lease is 5000 ms, not 3000 ms"),
        "replicas": ((*told, "--cluster-replicas", "3"), env, 5, "it has 1 replicas, not 3"),
    }
    async with Process(tmp_path / "one", *told, "--node", "one", env=env):
        comers = [Process(tmp_path / name, *how[0], "--node", name, env=how[1]) for name, how in refused.items()]
        ends = await asyncio.gather(*(_refused(comer) for comer in comers))
        for (name, (_, _, code, why)), end in zip(refused.items(), ends, strict=True):
            assert end[0] == code, (name, end)
            assert why in end[1], (name, end)
            assert "0123456789abcdef" not in end[1]
        connection = await Connection.connect([shared_server.url], "test")
        bucket = Bucket(connection, Names("told"), BUCKET)
        assert (await bucket.read("one")).revision
        assert {name: (await bucket.read(name)).revision for name in refused} == dict.fromkeys(refused, 0)
        await connection.close()


async def test_a_prefix_that_the_servers_would_not_take(tmp_path: Path) -> None:
    code, said = await _refused(
        Process(tmp_path / "data", "--cluster", "nats://127.0.0.1:9", "--cluster-prefix", "a.b")
    )
    assert code == 2
    assert "--cluster-prefix must be" in said


async def test_logs_that_have_lost_their_catalogue_are_refused_until_it_is_back_or_said_to_be_lost(
    shared_server: NatsServer, tmp_path: Path
) -> None:
    options = ("--cluster-prefix", "lost", "--cluster-replicas", "1", "--cluster-lease", "0.3")
    env = {"TIMERD_CLUSTER": shared_server.url}
    connection = await Connection.connect([shared_server.url], "test")
    async with Process(tmp_path / "data", *options, "--shards", "2", env=env) as timerd:
        await timerd.put_type("t", url="http://127.0.0.1:9/")
        await timerd.arm([{"id": f"t{n}", "type": "t", "delay": 3600} for n in range(20)])
        assert await timerd.stop() == 0
    await connection.api(f"STREAM.DELETE.{Names('lost').bucket_stream(kv_catalog.BUCKET)}")
    for more, why in (
        (("--shards", "2"), "there are logs and no catalogue (the bucket lost-catalog)"),
        (("--shards", "3", "--cluster-new-catalog"), "the cluster has 2 shards"),
        (("--shards", "2"), "--cluster-new-catalog"),  # that has left an empty bucket
    ):
        code, said = await _refused(Process(tmp_path / "data", *options, *more, env=env))
        assert code in (2, 4), said
        assert why in said
    async with Process(tmp_path / "data", *options, "--cluster-new-catalog", env=env) as timerd:
        assert len(await timerd.list()) == 20
        assert (await timerd.request("GET", "/v1/types/t"))[0] == 404
        await connection.publish(f"{Names('lost').bucket_subject(kv_catalog.BUCKET, '')}type.odd", b"{", {})
        status, problem = await timerd.request("PUT", "/v1/types/t", {"url": "http://127.0.0.1:9/"})
        assert status == 503
        assert "the catalogue can't be read: " in problem["detail"]
        assert "type.odd" in problem["detail"]
    # The last shard's streams are lost as well, and the plan still says how many there were.
    names = Names("lost")
    for stream in (names.bucket_stream(kv_catalog.BUCKET), names.log(1), names.bodies(1)):
        await connection.api(f"STREAM.DELETE.{stream}")
    code, said = await _refused(Process(tmp_path / "data", *options, "--cluster-new-catalog", env=env))
    assert code == 4
    assert "stream lost-log-1" in said, "with one shard fewer, timers would be looked for where they are not"
    await connection.close()


async def test_the_rights_that_the_documentation_names_are_all_that_it_takes(tmp_path: Path) -> None:
    needed()
    told = (Path(__file__).parents[2] / "docs/cluster.md").read_text().partition("## Rights")[2]
    rights = re.search(r"```\n(permissions: .*?\n)```", told, re.DOTALL)
    assert rights
    server = NatsServer(tmp_path / "server", free_ports(1)[0])
    text = (server.home / "server.conf").read_text()
    (server.home / "server.conf").write_text(text.replace("password: t}", f"password: t, {rights[1]} }}"))
    await server.start()
    options = ("--cluster-replicas", "1", "--cluster-lease", "0.5", "--shards", "4")
    env = {"TIMERD_CLUSTER": server.url}
    async with (
        Processor() as processor,
        Process(tmp_path / "one", *options, "--node", "one", env=env) as one,
        Process(tmp_path / "two", *options, "--node", "two", env=env) as two,
    ):
        status, answer = await one.request("GET", "/v1/status")
        assert (status, answer["durability"]) == (200, "fsync")
        await one.put_type("t", url=processor.url)
        ids = {f"t{n}" for n in range(40)}
        await one.arm([{"id": id, "type": "t", "delay": 1, "payload": "p" * 3_000} for id in sorted(ids)])
        await two.arm([{"id": f"far{n}", "type": "t", "delay": 3600} for n in range(40)])
        assert await two.stop() == 0
        await processor.until(lambda: ids <= set(processor.ids))
        assert len(await one.list()) == 40
        for each in (one, two):
            assert not [line for line in each.log + each.stderr if "ermission" in line]
    await server.stop()


@pytest.mark.parametrize("odd", ["type", "key"])
async def test_a_revoked_key_opens_no_node_though_a_value_in_the_catalogue_can_not_be_read(
    shared_server: NatsServer, tmp_path: Path, odd: str
) -> None:
    options = (
        "--cluster-prefix",
        f"revoked-{odd}",
        "--cluster-replicas",
        "1",
        "--cluster-lease",
        "0.5",
        "--shards",
        "2",
    )
    bootstrap = "bootstrap-key-0123456789abcdef"
    env = {"TIMERD_CLUSTER": shared_server.url, "TIMERD_API_KEY": bootstrap}
    admin = {"Authorization": f"Bearer {bootstrap}"}
    async with (
        Process(tmp_path / "one", *options, "--node", "one", env=env) as one,
        Process(tmp_path / "two", *options, "--node", "two", env=env) as two,
    ):
        for name in ("other", "k"):
            status, key = await one.request("POST", "/v1/keys", {"name": name, "scopes": ["read"]}, headers=admin)
            assert status == 201

        async def opens(wanted: int) -> bool:
            headers = {"Authorization": f"Bearer {key['key']}"}
            return (await two.request("GET", "/v1/types", headers=headers))[0] == wanted

        await two.until(lambda: opens(200))
        connection = await Connection.connect([shared_server.url], "test")
        await connection.publish(Names(f"revoked-{odd}").bucket_subject(kv_catalog.BUCKET, f"{odd}.odd"), b"{", {})
        assert (await one.request("DELETE", f"/v1/keys/{key['id']}", headers=admin))[0] == 204
        await two.until(lambda: opens(401))
        await connection.close()


async def test_a_shard_whose_streams_are_lost_begins_anew_when_it_is_said_and_the_others_stay_as_they_are(
    shared_server: NatsServer, tmp_path: Path
) -> None:
    options = ("--cluster-prefix", "hole", "--cluster-replicas", "1", "--cluster-lease", "0.3", "--shards", "2")
    env = {"TIMERD_CLUSTER": shared_server.url}
    names = Names("hole")
    connection = await Connection.connect([shared_server.url], "test")
    timers = [{"id": f"t{n}", "type": "t", "delay": 3600, "payload": "p" * (900 * (n % 2))} for n in range(40)]
    async with Process(tmp_path / "one", *options, "--node", "one", env=env) as one:
        await one.put_type("t", url="http://127.0.0.1:9/")
        await one.arm(timers)
        held = {timer["id"]: timer["shard"] for timer in await one.list()}
        await connection.api(f"STREAM.DELETE.{names.log(1)}")

        async def is_away() -> bool:
            return (await one.request("POST", "/v1/timers", {"timers": timers}))[0] == 503

        await one.until(is_away)
        two = Process(tmp_path / "two", *options, "--node", "two", "--cluster-new-shard", "1", env=env)
        code, said = await _refused(two)
        assert code == 5
        assert "shard 1 can't begin anew: its stream hole-log-1 is lost, and hole-bodies-1" in said
        await connection.api(f"STREAM.DELETE.{names.bodies(1)}")
        code, said = await _refused(
            Process(tmp_path / "two", *options, "--node", "two", "--cluster-new-shard", "2", env=env)
        )
        assert code == 2
        assert "--cluster-new-shard: the cluster has shards 0 to 1, and no 2" in said
        async with two:

            async def is_whole() -> bool:
                return (await one.request("GET", "/v1/timers?page_size=1000"))[0] == 200

            await one.until(is_whole)
            assert {timer["id"] for timer in await one.list()} == {id for id, shard in held.items() if shard == 0}
            results = (await two.arm(timers))["results"]
            created = {result["id"] for result in results if result["status"] == "created"}
            assert created == {id for id, shard in held.items() if shard == 1}
            assert {timer["id"]: timer["shard"] for timer in await one.list()} == held
    await connection.close()


async def test_values_that_were_written_by_hand_end_no_node_and_are_named_at_a_start(
    shared_server: NatsServer, tmp_path: Path
) -> None:
    options = ("--cluster-prefix", "byhand", "--cluster-replicas", "1", "--cluster-lease", "0.3", "--shards", "2")
    env = {"TIMERD_CLUSTER": shared_server.url}
    connection = await Connection.connect([shared_server.url], "test")
    bucket = Bucket(connection, Names("byhand"), kv_catalog.BUCKET)
    endless = b'{"name":"t","url":"http://127.0.0.1:9/x","max_lag_ms":0,"retry":{"jitter":9e300}}'
    timerd = Process(tmp_path / "data", *options, env=env)
    async with timerd:
        await timerd.put_type("t", url="http://127.0.0.1:9/", max_lag="0s")
        good = (await bucket.read("type.t")).data
        await bucket.put("type.t", endless, (await bucket.read("type.t")).revision)

        async def is_noticed() -> bool:
            return any("catalogue_unreadable" in line and "type.t: " in line for line in timerd.log + timerd.stderr)

        await timerd.until(is_noticed)
        await timerd.arm([{"id": "x", "type": "t", "delay": 0}])

        async def has_failed() -> bool:
            timer = await timerd.get("x")
            return timer is not None and timer["attempt"] > 0

        await timerd.until(has_failed)
        assert (await timerd.request("GET", "/readyz"))[0] == 200
        await bucket.put("type.t", good, (await bucket.read("type.t")).revision)
        assert await timerd.stop() == 0
    for key, value in {
        "type.t": endless,
        "ring.table": b'{"version":1,"shards":[]}',
        "secret.cluster": b"\xff",
    }.items():
        kept = await bucket.read(key)
        await bucket.put(key, value, kept.revision)
        code, said = await _refused(Process(tmp_path / "data", *options, env=env))
        assert (code, said.count("Traceback")) == (4, 0), said
        assert re.search(rf"^timerd: the catalogue can't be read: \S*{re.escape(key)}: ", said, re.MULTILINE), said
        await bucket.put(key, kept.data, (await bucket.read(key)).revision)
    await connection.close()
