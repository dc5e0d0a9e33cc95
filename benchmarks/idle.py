"""Idle: what a million far timers cost while nothing is due."""

import asyncio
from typing import Final

from benchmarks import wire
from benchmarks.figure import Figure, Stopwatch
from benchmarks.server import Place, serving

TIMERS: Final = 1_000_000
SETTLE_S: Final = 5
MEASURE_S: Final = 30


async def run(place: Place) -> list[Figure]:
    """One measurement is enough: it hardly differs."""
    async with serving(place) as server:
        await wire.put_type(server.port)
        await wire.send_all(server.port, wire.arms(wire.ids(TIMERS), wire.far(TIMERS), 1_000), 8)
        await asyncio.sleep(SETTLE_S)
        watch = Stopwatch(server)
        await asyncio.sleep(MEASURE_S)
        watch.stop()
    return [Figure("idle with 1 M far timers", "% of a core", [watch.cpu_s / watch.took_s * 100], watch.others)]
