"""A stream on three servers: whoever leads it may be killed, and nothing that was acknowledged is lost or doubled.

They run on the configuration that is shipped. `TIMERD_CLUSTER_ROUNDS` makes it longer.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nats_server import NatsServer, cluster_of, needed, ship, start_all, stop_all
from tests.cluster.open_log import Opener
from tests.storage.laid import armed
from timerd.engine.errors import ClusterRefused
from timerd_cluster.connection import ApiError, Connection, NoAnswer, Unreachable

ROUNDS = int(os.environ.get("TIMERD_CLUSTER_ROUNDS", "1"))


async def info_of(connection: Connection, stream: str) -> Mapping[str, Any]:
    """What is said of a stream; nothing while nobody leads."""
    try:
        return await connection.api(f"STREAM.INFO.{stream}")
    except (NoAnswer, ApiError):
        return {}


async def leader_of(connection: Connection, stream: str, servers: list[NatsServer]) -> NatsServer:
    while True:
        info = await info_of(connection, stream)
        if name := (info.get("cluster") or {}).get("leader"):
            return servers[int(name[1:])]
        await asyncio.sleep(0.05)


async def all_current(connection: Connection, stream: str, replicas: int) -> None:
    """Wait until every replica has caught up: two that are behind at once are no quorum."""
    while True:
        cluster = (await info_of(connection, stream)).get("cluster") or {}
        followers = cluster.get("replicas") or []
        if len(followers) == replicas - 1 and all(
            each.get("current") and not each.get("offline") for each in followers
        ):
            return
        await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_the_leader_of_a_stream_is_killed_while_turns_and_bodies_are_appended(tmp_path: Path) -> None:
    needed()
    servers = cluster_of(tmp_path, 3)
    ship(servers, "three.conf")
    await start_all(servers)
    opener = Opener(*(server.url for server in servers))
    opener.answer_s = 2.0
    log, _ = await opener.replayed(replicas=3)
    assert (log.durability, log.replicas, log.sync) == ("quorum", 3, "always")
    watcher = await opener.connect()
    lsn = 0
    places = []
    for _ in range(ROUNDS):
        await all_current(watcher, opener.names.log(0), 3)
        await all_current(watcher, opener.names.bodies(0), 3)
        leader = await leader_of(watcher, opener.names.log(0), servers)
        before = lsn
        killed = False
        while not killed or lsn < before + 60:
            places += log.place_bodies(0, [(f"id-{lsn}", bytes([lsn % 251]) * 600)])
            appending = asyncio.ensure_future(log.append([armed(0, lsn + 1, 20)]))
            if lsn == before + 30:
                await leader.kill()
                killed = True
            assert await appending > 0
            lsn += 1
        await leader.start()
    assert not log.fenced
    assert log._streams[0].sequence == lsn
    again, frames = await opener.replayed(replicas=3)
    assert [frame.lsn for frame in frames] == list(range(1, lsn + 1))
    await again.check_bodies(places)
    assert await again.read_bodies(places) == [bytes([n % 251]) * 600 for n in range(lsn)]
    await again.append([armed(0, lsn + 1)])
    assert await log.append([armed(0, lsn + 1, 9)]) == 0
    await opener.close()
    await stop_all(servers)


@pytest.mark.slow
@pytest.mark.skipif(ROUNDS < 2, reason="a longer run: set TIMERD_CLUSTER_ROUNDS to the number of kills")
async def test_writers_race_while_servers_are_killed(tmp_path: Path) -> None:
    """Whoever has read the end writes until it is fenced. What each was told to be stored is there, once, in order."""
    needed()
    servers = cluster_of(tmp_path, 3)
    await start_all(servers)
    opener = Opener(*(server.url for server in servers))
    opener.answer_s = 1.0
    watcher = await opener.connect()
    await opener.replayed(replicas=3)
    stored: dict[int, int] = {}  # lsn -> how many timers: each writer's turns are of its own size
    over = asyncio.Event()
    taken = 0

    async def write(seed: int) -> None:
        nonlocal taken
        while not over.is_set():
            try:
                log, frames = await opener.replayed(replicas=3)
            except (NoAnswer, ApiError, ClusterRefused, Unreachable):
                continue  # nobody leads just now
            lsn = len(frames) + 1
            taken += 1
            for n in range(20 + seed):
                if over.is_set():
                    return
                await log.append([armed(0, lsn + n, 1 + seed)])
                if log.fenced:
                    break
                assert lsn + n not in stored, "two were told the same turn is theirs"
                stored[lsn + n] = 1 + seed

    writing = [asyncio.ensure_future(write(seed)) for seed in range(3)]
    for number in range(ROUNDS):
        await all_current(watcher, opener.names.log(0), 3)
        before = len(stored)
        while len(stored) < before + 30:
            await asyncio.sleep(0.05)
            for each in writing:
                if each.done():
                    each.result()
        victim = await leader_of(watcher, opener.names.log(0), servers) if number % 2 else servers[number // 2 % 3]
        await victim.kill()
        await asyncio.sleep(0.5 * (number % 3))
        await victim.start()
    over.set()
    await asyncio.gather(*writing)
    await all_current(watcher, opener.names.log(0), 3)
    _, frames = await opener.replayed(replicas=3)
    found = {frame.lsn: len(frame.records[0].timers) for frame in frames}  # type: ignore[union-attr]
    assert list(found) == list(range(1, len(found) + 1))
    assert {lsn: count for lsn, count in found.items() if lsn in stored} == stored
    print(f"{len(found)} turns, {len(stored)} acknowledged, taken {taken} times, {ROUNDS} kills")
    await opener.close()
    await stop_all(servers)
