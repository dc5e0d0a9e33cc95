"""A million pending callbacks with bodies of 2 KB: memory, disk, a start, and what churn of other timers writes.

The bodies lie apart, so none of them should be read at a start, and few copied while other timers come and go.
"""

import asyncio
import json
from pathlib import Path
from typing import Final

from benchmarks import wire
from benchmarks.figure import Round
from benchmarks.server import Place, serving

CALLBACKS: Final = 1_000_000
BODY_BYTES: Final = 2_000
CHURN: Final = 2_000_000  # arms of other timers, each moved again and again, as a polling service does
CHURNED: Final = 50_000
LOAD: Final = 8


async def run(place: Place) -> Round:
    """One round."""
    async with serving(place) as server:
        await wire.put_type(server.port, url=None, kind="callback")
        before = server.rss_bytes()
        await _arm(server.port)
        await asyncio.sleep(2)
        pending = server.rss_bytes() - before
        disk = _bytes(server.data)
        bodies = _bytes(server.data, "*.bodies*") or disk
        await server.kill()
        start_s = await server.start()
        started = server.rss_bytes()
        written = server.written_bytes()
        await wire.call(server.port, "PUT", "/v1/types/other", {"url": "http://127.0.0.1:9/"})
        for round in range(CHURN // CHURNED):
            fire_ats = [at + round for at in wire.far(CHURNED)]
            requests = wire.arms(wire.ids(CHURNED, "other"), fire_ats, 1_000, type="other")
            await wire.send_all(server.port, requests, LOAD)
        churned = server.written_bytes() - written
        after = _bytes(server.data)
    live = CALLBACKS * BODY_BYTES
    return {
        "memory a callback at 1 M": (pending / CALLBACKS, "bytes", 0.0),
        "disk of 1 M callbacks of 2 KB": (disk / 1e9, "GB", 0.0),
        "of it bodies": (bodies / 1e9, "GB", 0.0),
        "start with them": (start_s, "s", 0.0),
        "memory after the start": (started / 1e6, "MB", 0.0),
        "disk after 2 M arms of other timers": (after / 1e9, "GB", 0.0),
        "written by these arms": (churned / 1e9, "GB", 0.0),
        "written by these arms, of the live bodies": (churned / live * 100, "%", 0.0),
    }


async def _arm(port: int) -> None:
    step = 50_000
    for at in range(0, CALLBACKS, step):
        ids = [f"callback:{n:07d}" for n in range(at, at + step)]
        bodies = [json.dumps(f"{n:08d}" + "x" * (BODY_BYTES - 8)) for n in range(at, at + step)]
        requests = wire.arms(ids, wire.far(step), 1_000, requests=(_request(body) for body in bodies))
        await wire.send_all(port, requests, 4)


def _request(body: str) -> bytes:
    return b'{"url":"https://example.com/hook","body":%s}' % body.encode()


def _bytes(data: Path, pattern: str = "*") -> int:
    return sum(path.stat().st_blocks * 512 for path in data.rglob(pattern) if path.is_file())
