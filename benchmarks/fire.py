"""Fires at `max_lag` 0 in batches of 800: all due at one instant, taken by a processor that does nothing."""

import asyncio
from typing import Final

from benchmarks import wire
from benchmarks.figure import Round, Stopwatch
from benchmarks.processor import Taker, listening
from benchmarks.server import Place, serving

TIMERS: Final = 200_000
BATCH: Final = 800
AHEAD_MS: Final = 8_000  # time to arm them all before they are due
WAIT_S: Final = 60


async def run(place: Place) -> Round:
    """One round."""
    taker = Taker()
    async with serving(place) as server, listening(taker):
        await wire.put_type(server.port, url=taker.url, batch_size=BATCH, max_lag=0)
        due_at = wire.now_ms() + AHEAD_MS
        await wire.send_all(server.port, wire.arms(wire.ids(TIMERS), [due_at] * TIMERS, 1_000), 8)
        assert wire.now_ms() < due_at - 200, "the machine is too busy to arm them in time"
        await asyncio.sleep((due_at - 100 - wire.now_ms()) / 1000)
        watch = Stopwatch(server)
        async with asyncio.timeout(WAIT_S):
            while taker.timers < TIMERS:  # noqa: ASYNC110 - looking costs less than being told
                await asyncio.sleep(0.005)
            while (counts := await wire.stats(server.port))["fired"] < TIMERS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        watch.stop()
        assert counts["live"] == 0
    return {
        "fire in batches of 800": (TIMERS / (taker.last_at_ms - due_at) * 1000, "/s", watch.others),
        "fire in batches of 800: CPU": (watch.cpu_s / TIMERS * 1e6, "us", watch.others),
        "fire in batches of 800: mean batch": (taker.timers / taker.batches, "timers", watch.others),
    }
