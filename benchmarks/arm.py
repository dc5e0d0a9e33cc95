"""Arms in batches of 1,000: the shortest form, and the default form beside it."""

from datetime import UTC, datetime
from typing import Final

from benchmarks import wire
from benchmarks.figure import Round, Stopwatch
from benchmarks.server import Place, serving

TIMERS: Final = 500_000
BATCH: Final = 1_000
CONNECTIONS: Final = 8


async def run(place: Place) -> Round:
    """One round, each form on a server of its own."""
    text = [datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds") for at in wire.far(TIMERS)]
    return {
        **await _form(place, "arm in batches, minimal", wire.far(TIMERS), wire.MINIMAL, False),
        **await _form(place, "move in batches, minimal", wire.far(TIMERS), wire.MINIMAL, True),
        **await _form(place, "arm in batches, results", wire.far(TIMERS), b"", False),
        **await _form(place, "arm in batches, results, RFC 3339", text, b"", False),
    }


async def _form(place: Place, name: str, times: list[int] | list[str], lines: bytes, again: bool) -> Round:
    ids = wire.ids(TIMERS)
    requests = wire.arms(ids, times, BATCH, lines)
    async with serving(place) as server:
        await wire.put_type(server.port)
        if again:
            before = [at + wire.HOUR_MS for at in wire.far(TIMERS)]
            await wire.send_all(server.port, wire.arms(ids, before, BATCH), CONNECTIONS)
        else:
            warm = wire.arms(wire.ids(20_000, "warm"), wire.far(20_000), BATCH, lines)
            await wire.send_all(server.port, warm, CONNECTIONS)
        watch = Stopwatch(server)
        took = await wire.send_all(server.port, requests, CONNECTIONS)
        watch.stop()
    return {
        name: (TIMERS / watch.took_s, "/s", watch.others),
        f"{name}: CPU": (watch.cpu_s / TIMERS * 1e6, "us", watch.others),
        f"{name}: p99": (took[len(took) * 99 // 100] * 1000, "ms", watch.others),
    }
