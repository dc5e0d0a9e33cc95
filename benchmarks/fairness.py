"""Fairness: what a storm of one type costs the others. Three quiet types, 100 timers a second each, alone and then
beside a storm of a fourth.

The lag of a quiet timer is counted from when it is due to when its delivery starts (`dispatched_at`), as the promise
has it. The targets share one core, and what waits for them there is no lag of timerd's; it is shown apart (*comes in*).
Two of the quiet types have `max_lag` 0, one has a second: its timers are late by up to that on purpose. Those due while
the storm lasts are *beside* it, those due in the seconds before it *alone*.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from benchmarks import wire
from benchmarks.figure import Round, Stopwatch
from benchmarks.processor import TAKEN, Taker, listening
from benchmarks.server import Place, Server, serving

STORM: Final = "storm"
QUIET: Final = {"prompt": 0, "prompt too": 0, "patient": 1_000}
"""name -> max_lag in ms"""
QUIET_A_SECOND: Final = 100
ALONE_S: Final = 8
BESIDE_S: Final = 12  # at most, of a storm that lasts longer
ARM_S: Final = 20  # ahead of everything
LEAD_S: Final = 2  # at the beginning, that count for nothing
SHOWN_MS: Final = 5


class Storm(NamedTuple):
    """What comes down on one type."""

    name: str
    timers: int = 500_000
    max_in_flight: int = 16
    answers_after_s: float = 0.0
    payload_bytes: int = 0


STORMS: Final = (
    Storm("500,000, 16 slots"),
    Storm("500,000, 256 slots", max_in_flight=256),
    Storm("500,000, 16 slots, answers after 1 s", answers_after_s=1.0),
    Storm("500,000, 256 slots, answers after 1 s", max_in_flight=256, answers_after_s=1.0),
    Storm("40,000 of 8 KiB, 16 slots", timers=40_000, payload_bytes=8_192),
    Storm("40,000 of 8 KiB, 256 slots", timers=40_000, payload_bytes=8_192, max_in_flight=256),
)


class _Timer(msgspec.Struct):
    fire_at: str


class _Batch(msgspec.Struct):
    dispatched_at: str
    timers: list[_Timer]


_decode: Final = msgspec.json.Decoder(_Batch).decode


class Timekeeper(Taker):
    """Answers 200, and keeps when each timer was due and how late it came."""

    def __init__(self) -> None:
        super().__init__()
        self.lags: list[tuple[float, float, float]] = []

    def answer(self, body: bytes) -> bytes:
        now = time.time() * 1000
        batch = _decode(body)
        sent_at = _ms(batch.dispatched_at)
        for timer in batch.timers:
            due_at = _ms(timer.fire_at)
            self.lags.append((due_at, sent_at - due_at, now - due_at))
        return TAKEN


def _ms(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() * 1000


async def run(place: Place) -> Round:
    """One round of every storm."""
    found: Round = {}
    for storm in STORMS:
        found |= await weather(place, storm)
    return found


async def weather(place: Place, storm: Storm) -> Round:
    """One storm."""
    crowd = Taker()
    crowd.after_s = storm.answers_after_s
    keepers = {name: Timekeeper() for name in QUIET}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(place))
        for taker in (crowd, *keepers.values()):
            await stack.enter_async_context(listening(taker))
        await _put(server, STORM, crowd, max_lag=0, batch_size=800, max_in_flight=storm.max_in_flight)
        for name, max_lag_ms in QUIET.items():
            await _put(server, name.replace(" ", "-"), keepers[name], max_lag=max_lag_ms / 1000)
        begin = wire.now_ms() + ARM_S * 1_000
        storm_at = begin + ALONE_S * 1_000
        await _arm(server, storm, begin, storm_at)
        assert wire.now_ms() < begin, "the machine is too busy to arm them in time"
        await asyncio.sleep((storm_at - 50 - wire.now_ms()) / 1000)
        before, watch = server.rss_bytes(), Stopwatch(server)
        ends_at, largest = storm_at + BESIDE_S * 1_000, before
        while crowd.timers < storm.timers and wire.now_ms() < ends_at:
            await asyncio.sleep(0.02)
            largest = max(largest, server.rss_bytes())
        watch.stop()
        ended_at = min(ends_at, crowd.last_at_ms if crowd.timers >= storm.timers else ends_at)
        await asyncio.sleep(LEAD_S)
    row: Round = {}
    for kind, wanted in (("prompt", lambda lag: lag == 0), ("patient", bool)):
        lags = [pair for name, keeper in keepers.items() if wanted(QUIET[name]) for pair in keeper.lags]
        alone = _summary([lag for due, lag, _ in lags if begin + LEAD_S * 1_000 <= due < storm_at - 1_000])
        beside = _summary([lag for due, lag, _ in lags if storm_at - SHOWN_MS <= due < ended_at])
        beside["comes in p99"] = _summary([lag for due, _, lag in lags if storm_at - SHOWN_MS <= due < ended_at])["p99"]
        for part, values in (("alone", alone), ("beside", beside)):
            for label, value in values.items():
                row[f"{storm.name}: {kind} {part}, {label}"] = (value, "ms", watch.others)
    row[f"{storm.name}: storm"] = (crowd.timers / max(1, ended_at - storm_at) * 1_000, "/s", watch.others)
    row[f"{storm.name}: memory"] = ((largest - before) / 1e6, "MB", watch.others)
    return row


async def _put(server: Server, name: str, taker: Taker, **fields: float) -> None:
    await wire.call(server.port, "PUT", f"/v1/types/{name}", {"url": taker.url, **fields})


async def _arm(server: Server, storm: Storm, begin: int, storm_at: int) -> None:
    """All of it, a while before the first is due."""
    requests: list[bytes] = []
    span_ms = (ALONE_S + BESIDE_S) * 1_000
    for name in QUIET:
        times = list(range(begin, begin + span_ms, 1_000 // QUIET_A_SECOND))
        requests += wire.arms(wire.ids(len(times), name.replace(" ", "-")), times, 1_000, type=name.replace(" ", "-"))
    size = max(1, 1_000_000 // (1_000 + storm.payload_bytes))
    ids = wire.ids(storm.timers, STORM)
    if storm.payload_bytes:
        payload = b'"' + b"x" * (storm.payload_bytes - 2) + b'"'
        item = b'{"id":"%s","type":"storm","fire_at":%d,"payload":%s}'
        for at in range(0, len(ids), size):
            items = [item % (id.encode(), storm_at, payload) for id in ids[at : at + size]]
            requests.append(wire.request("POST", "/v1/timers", b'{"timers":[%s]}' % b",".join(items), wire.MINIMAL))
    else:
        requests += wire.arms(ids, [storm_at] * storm.timers, size, type=STORM)
    await wire.send_all(server.port, requests, 8)


def _summary(lags: list[float]) -> dict[str, float]:
    lags.sort()
    if not lags:
        return {}
    pick: Callable[[float], float] = lambda share: lags[min(len(lags) - 1, int(len(lags) * share))]  # noqa: E731
    return {"p50": pick(0.5), "p99": pick(0.99), "max": lags[-1]}
