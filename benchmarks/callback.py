"""Callbacks: 20,000 that are due within one second, each a request of its own to one target on the other core."""

import asyncio
from itertools import repeat
from typing import Final

import msgspec

from benchmarks import wire
from benchmarks.figure import Round, Stopwatch
from benchmarks.processor import Hook, listening
from benchmarks.server import Place, serving

CALLBACKS: Final = 20_000
AHEAD_MS: Final = 6_000  # time to arm them all before they are due
SPREAD_MS: Final = 1_000
IN_FLIGHT: Final = 256  # one host gets a quarter of it
BODY: Final = "x" * 300
WAIT_S: Final = 120
ALLOW: Final = ("--callback-allow", "127.0.0.0/8")


async def run(place: Place) -> Round:
    """One round."""
    hook = Hook()
    async with serving(place, *ALLOW) as server, listening(hook):
        await wire.put_type(server.port, url=None, kind="callback", max_in_flight=IN_FLIGHT)
        due_at = wire.now_ms() + AHEAD_MS
        fire_ats = [due_at + n * SPREAD_MS // CALLBACKS for n in range(CALLBACKS)]
        requests = repeat(msgspec.json.encode({"url": hook.url, "body": BODY}), CALLBACKS)
        await wire.send_all(server.port, wire.arms(wire.ids(CALLBACKS), fire_ats, 1_000, requests=requests), 4)
        assert wire.now_ms() < due_at - 200, "the machine is too busy to arm them in time"
        await asyncio.sleep((due_at - 100 - wire.now_ms()) / 1000)
        watch = Stopwatch(server)
        async with asyncio.timeout(WAIT_S):
            while hook.timers < CALLBACKS:  # noqa: ASYNC110 - looking costs less than being told
                await asyncio.sleep(0.005)
            while (counts := await wire.stats(server.port))["fired"] < CALLBACKS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        watch.stop()
        assert (counts["live"], counts["retried"]) == (0, 0)
    return {
        "callbacks": (CALLBACKS / (hook.last_at_ms - due_at) * 1000, "/s", watch.others),
        "callbacks: CPU": (watch.cpu_s / CALLBACKS * 1e6, "us", watch.others),
        "callbacks: rate at a whole core": (CALLBACKS / watch.cpu_s, "/s", watch.others),
    }
