"""Memory: what a pending timer takes at a million, and how much a million due at one instant add while they fire."""

import asyncio
from typing import Final

from benchmarks import wire
from benchmarks.figure import Round
from benchmarks.processor import Taker, listening
from benchmarks.server import Place, serving

TIMERS: Final = 1_000_000
AHEAD_MS: Final = 30_000
WAIT_S: Final = 120


async def run(place: Place) -> Round:
    """One round."""
    return {**await _pending(place), **await _due_at_once(place)}


async def _pending(place: Place) -> Round:
    requests = wire.arms(wire.ids(TIMERS), wire.far(TIMERS), 1_000)
    async with serving(place) as server:
        await wire.put_type(server.port)
        before = server.rss_bytes()
        await wire.send_all(server.port, requests, 8)
        await asyncio.sleep(1)
        return {"memory a pending timer at 1 M": ((server.rss_bytes() - before) / TIMERS, "bytes", 0.0)}


async def _due_at_once(place: Place) -> Round:
    taker = Taker()
    async with serving(place) as server, listening(taker):
        await wire.put_type(server.port, url=taker.url, max_lag=0)
        due_at = wire.now_ms() + AHEAD_MS
        await wire.send_all(server.port, wire.arms(wire.ids(TIMERS), [due_at] * TIMERS, 1_000), 8)
        left_ms = due_at - 500 - wire.now_ms()
        assert left_ms > 0, "the machine is too busy to arm them in time"
        await asyncio.sleep(left_ms / 1000)
        before = highest = server.rss_bytes()
        async with asyncio.timeout(WAIT_S):
            while taker.timers < TIMERS:
                await asyncio.sleep(0.02)
                highest = max(highest, server.rss_bytes())
        return {
            "1 M due at one instant: memory added": ((highest - before) / 1e6, "MB", 0.0),
            "1 M due at one instant: fired": (TIMERS / (taker.last_at_ms - due_at) * 1000, "/s", 0.0),
        }
