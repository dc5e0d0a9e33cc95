"""Bodies at scale: a million pending callbacks with bodies of 2 KB, due over sixty days, beside timers that churn.

The callbacks come over HTTP. Another type is armed through the API at 10,000 a second all the while, each id every ten
seconds: half of them are moved before they are due, the others fire, so that their lag can be looked at. Memory is that
of the whole process, and its largest since it was started. Then kill -9, and a start: what it reads is counted by the
kernel, and set against what a start on an empty directory reads, which is the program; body files are put out of the
page cache before, and what of them is there again afterwards was read.

What the bodies cost in sixty days is another matter: see bodies_60_days.py.
"""

import asyncio
import contextlib
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from benchmarks import page_cache, wire
from benchmarks.figure import Round, Stopwatch
from benchmarks.processor import Hook, Lags, listening
from benchmarks.server import Place, Server, serving

CALLBACKS: Final = 1_000_000
BODY_BYTES: Final = 2_000
SPREAD_MS: Final = 60 * 86_400_000
STEP: Final = 25_000  # callbacks encoded at a time
CHURNED: Final = 100_000
CHURN_A_S: Final = 10_000
REQUEST: Final = 500  # of them in one request
SOON_MS, LATER_MS = 5_000, 12_000  # one half is due before it is armed anew, the other is not
MAX_LAG_MS: Final = 1_000
MEASURE_S: Final = 60
SETTLE_S: Final = 5
ALLOW: Final = ("--callback-allow", "127.0.0.0/8")


class Churn:
    """Arms `CHURNED` ids one after the other at a rate that does not depend on how fast that is answered."""

    def __init__(self, port: int) -> None:
        self.armed = 0
        self.took: list[float] = []
        self._port = port

    async def run(self) -> None:
        opened = [await wire.Connection.open(self._port) for _ in range(8)]
        free: asyncio.Queue[wire.Connection] = asyncio.Queue()
        for connection in opened:
            free.put_nowait(connection)
        begin = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for n in itertools.count():
                    await asyncio.sleep(max(0.0, begin + n * REQUEST / CHURN_A_S - time.monotonic()))
                    connection = await free.get()
                    group.create_task(self._arm(n * REQUEST % CHURNED, connection, free))
        finally:
            for connection in opened:
                connection.close()

    async def _arm(self, first: int, connection: wire.Connection, free: "asyncio.Queue[wire.Connection]") -> None:
        now = wire.now_ms()
        ids = [f"churn:{n:06d}" for n in range(first, first + REQUEST)]
        fire_ats = [now + (LATER_MS if n % 2 else SOON_MS) for n in range(REQUEST)]
        begin = time.perf_counter()
        await connection.ask(wire.arms(ids, fire_ats, REQUEST, type="churn")[0])
        self.took.append(time.perf_counter() - begin)
        self.armed += REQUEST
        free.put_nowait(connection)


async def run(place: Place) -> Round:
    """One round."""
    hook, lags = Hook(), Lags()
    programme = await _read_by_an_empty_start(place)
    async with serving(place, *ALLOW) as server, listening(hook), listening(lags):
        await wire.put_type(server.port, url=None, kind="callback")
        churn = {"url": lags.url, "batch_size": 800, "max_lag": MAX_LAG_MS / 1000}
        await wire.call(server.port, "PUT", "/v1/types/churn", churn)
        empty = server.rss_bytes()
        begin = time.perf_counter()
        async with _churning(server, lags) as while_arming:
            await _arm(server.port, hook.url)
            armed_s = time.perf_counter() - begin
        async with _churning(server, lags) as steady:
            await asyncio.sleep(MEASURE_S)
            resident = server.rss_bytes()
        counts = await wire.stats(server.port)
        largest, disk = server.rss_bytes_max(), _bytes(server.data)
        bodies, frames = _bytes(server.data, "*.bodies"), _bytes(server.data, "*.log*")
        costs = await _metrics(server.port)
        await server.kill()
        page_cache.forget(server.data.glob("*.bodies"))
        left = page_cache.cached_bytes(server.data.glob("*.bodies"))
        start_s = await server.start()
        read, started = server.read_bytes(), server.rss_bytes()
        bodies_read = page_cache.cached_bytes(server.data.glob("*.bodies")) - left
        await asyncio.sleep(SETTLE_S)  # what became due while it was down is late, and no measure of anything
        async with _churning(server, lags) as again:
            await asyncio.sleep(MEASURE_S / 2)
        later = server.rss_bytes_max()
        assert (await wire.stats(server.port))["live"] + hook.timers >= CALLBACKS, "callbacks are lost"
    assert counts["live"] + hook.timers >= CALLBACKS
    others = steady.watch.others
    accepted = costs["timerd_bodies_accepted_bytes_total"]
    return {
        "bodies: armed at": (CALLBACKS / armed_s, "/s", while_arming.watch.others),
        "bodies: resident memory, 1 M pending, churn on": (resident / 1e6, "MB", others),
        "bodies: largest resident memory so far": (largest / 1e6, "MB", others),
        "bodies: of it before anything was armed": (empty / 1e6, "MB", others),
        "bodies: disk": (disk / 1e9, "GB", others),
        "bodies: of it body files": (bodies / 1e9, "GB", others),
        "bodies: of it files of frames": (frames / 1e6, "MB", others),
        "bodies: written of accepted": (1 + costs["timerd_bodies_copied_bytes_total"] / accepted, "x", others),
        **while_arming.figures("while they are armed"),
        **steady.figures("with 1 M pending"),
        "bodies: start after kill -9": (start_s, "s", 0.0),
        "bodies: read by this start": (read / 1e6, "MB", 0.0),
        "bodies: of it from body files": (bodies_read / 1e6, "MB", 0.0),
        "bodies: read by a start on nothing": (programme / 1e6, "MB", 0.0),
        "bodies: resident memory after the start": (started / 1e6, "MB", 0.0),
        "bodies: largest since, churn on": (later / 1e6, "MB", again.watch.others),
        **again.figures("after the start"),
    }


class Churned:
    """What came of a stretch of churn."""

    def __init__(self, server: Server, churn: Churn, lags: Lags) -> None:
        self.watch = Stopwatch(server)
        self._churn = churn
        self._lags = lags
        self._found: list[float] = []

    def stop(self) -> None:
        self.watch.stop()
        self._found = sorted(self._lags.lags_ms)

    def figures(self, when: str) -> Round:
        others = self.watch.others
        found, took = self._found or [0.0], sorted(self._churn.took)
        return {
            f"bodies: churn {when}": (self._churn.armed / self.watch.took_s, "/s", others),
            f"bodies: p99 of its requests {when}": (took[len(took) * 99 // 100] * 1000, "ms", others),
            f"bodies: its fires {when}": (len(found) / self.watch.took_s, "/s", others),
            f"bodies: p99 of its lag {when} (max_lag {MAX_LAG_MS})": (found[len(found) * 99 // 100], "ms", others),
            f"bodies: its worst lag {when}": (found[-1], "ms", others),
            f"bodies: core used {when}": (self.watch.cpu_s / self.watch.took_s * 100, "%", others),
        }


@contextlib.asynccontextmanager
async def _churning(server: Server, lags: Lags) -> AsyncIterator[Churned]:
    lags.lags_ms.clear()
    churn = Churn(server.port)
    task = asyncio.create_task(churn.run())
    churned = Churned(server, churn, lags)
    try:
        yield churned
        churned.stop()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task  # or what it failed with


async def _arm(port: int, url: str) -> None:
    begin = wire.now_ms()
    for at in range(0, CALLBACKS, STEP):
        ids = [f"callback:{n:07d}" for n in range(at, at + STEP)]
        # In no order: neighbours on disk are due at times that lie far apart, as with callers who know of no one else.
        fire_ats = [begin + n * 7_919 % CALLBACKS * SPREAD_MS // CALLBACKS for n in range(at, at + STEP)]
        bodies = (json.dumps(f"{n:08d}" + "x" * (BODY_BYTES - 8)).encode() for n in range(at, at + STEP))
        sent = (b'{"url":"%s","body":%s}' % (url.encode(), body) for body in bodies)
        requests = await asyncio.to_thread(wire.arms, ids, fire_ats, 500, requests=sent)
        await wire.send_all(port, requests, 4)


async def _read_by_an_empty_start(place: Place) -> int:
    with tempfile.TemporaryDirectory(prefix="timerd-bench-", dir=place.data) as data:
        server = Server(Path(data), *ALLOW)
        try:
            await server.start()
            await server.kill()
            await server.start()
            return server.read_bytes()
        finally:
            await server.kill()


async def _metrics(port: int) -> dict[str, float]:
    connection = await wire.Connection.open(port)
    try:
        text = (await connection.ask(wire.request("GET", "/metrics", b""))).decode()
    finally:
        connection.close()
    return {
        name: float(value) for name, _, value in (line.partition(" ") for line in text.splitlines() if line[0] != "#")
    }


def _bytes(data: Path, pattern: str = "*") -> int:
    return sum(path.stat().st_blocks * 512 for path in data.rglob(pattern) if path.is_file())
