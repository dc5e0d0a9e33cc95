"""Arms one by one at 64 connections: raw, as `POST` of one and as `PUT`; and through the client library, from 64 tasks.

The client library gathers arms that meet on the way, so its rate is its own process's limit, not the server's.
"""

import asyncio
from datetime import UTC, datetime
from typing import Final

import msgspec

from benchmarks import wire
from benchmarks.figure import Round, Stopwatch
from benchmarks.server import Place, Server, serving
from timerd_client import AsyncTimerd

TIMERS: Final = 60_000
CONNECTIONS: Final = 64


async def run(place: Place) -> Round:
    """One round."""
    ids, times = wire.ids(TIMERS), wire.far(TIMERS)
    puts = [
        wire.request("PUT", f"/v1/timers/{id}", msgspec.json.encode({"type": wire.TYPE, "fire_at": at}))
        for id, at in zip(ids, times, strict=True)
    ]
    return {
        **await _raw(place, "arm one by one, POST", wire.arms(ids, times, 1)),
        **await _raw(place, "arm one by one, PUT", puts),
        **await _client(place, "arm one by one, client library", ids, times),
    }


async def _raw(place: Place, name: str, requests: list[bytes]) -> Round:
    async with serving(place) as server:
        await wire.put_type(server.port)
        watch = Stopwatch(server)
        took = await wire.send_all(server.port, requests, CONNECTIONS)
        watch.stop()
    return {**_rates(name, watch), f"{name}: p99": (took[len(took) * 99 // 100] * 1000, "ms", watch.others)}


async def _client(place: Place, name: str, ids: list[str], times: list[int]) -> Round:
    async with serving(place) as server:
        await wire.put_type(server.port)
        watch = await _arm_through_client(server, ids, times)
    return _rates(name, watch)


async def _arm_through_client(server: Server, ids: list[str], times: list[int]) -> Stopwatch:
    moments = [datetime.fromtimestamp(at / 1000, UTC) for at in times]
    waiting = iter(zip(ids, moments, strict=True))
    async with AsyncTimerd(f"http://127.0.0.1:{server.port}") as client:

        async def work() -> None:
            for id, at in waiting:
                await client.arm(id, wire.TYPE, fire_at=at)

        watch = Stopwatch(server)
        await asyncio.gather(*[work() for _ in range(CONNECTIONS)])
        watch.stop()
    return watch


def _rates(name: str, watch: Stopwatch) -> Round:
    return {
        name: (TIMERS / watch.took_s, "/s", watch.others),
        f"{name}: CPU": (watch.cpu_s / TIMERS * 1e6, "us", watch.others),
    }
