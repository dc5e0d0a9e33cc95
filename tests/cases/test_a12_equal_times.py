"""A12: two entries with the same time crash the heap.

Heap entries were tuples of a time and an object, so that a tie made Python compare the objects, and the scheduler's
loop was gone (aws/aws-durable-execution-sdk-python #271, apache/cassandra-python-driver PR #466).
"""

import asyncio
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.cases import BUSY, chunks, each, millis, outside, seeded, sized
from tests.support.process import Process
from tests.support.processor import Processor

TIMERS = sized(5_000, 2_000)
SINGLY = sized(500, 200)
REARMED = 500
TYPES = ("t", "u", "v")
IN_S = sized(15.0, 5.0) * BUSY
MAX_LAG_S = 1.0
RESTARTED = "restarted before it is due"
ODD_IDS = ["1", "01", "001", "10", "a", "A", "aa", " ", "-1", "1.0", "None", "é", "e\u0301"]


@pytest.mark.slow
async def test_timers_of_one_instant_are_all_delivered_once(tmp_path: Path) -> None:
    rng = seeded()

    async def run(name: str) -> None:
        await all_are_delivered_once(tmp_path / name.replace(" ", "-"), name == RESTARTED, rng)

    await each(run, ["one run", RESTARTED])


async def all_are_delivered_once(data: Path, restarted: bool, rng: Random) -> None:
    async with Processor() as processor, Process(data) as timerd:
        for type in TYPES:
            await timerd.put_type(type, url=processor.url, max_lag=MAX_LAG_S)
        at = millis(time.time() + IN_S)
        ids = ODD_IDS + [str(n) for n in range(100, 100 + TIMERS - len(ODD_IDS))]
        payloads: list[Any] = [None, {"a": 1}, "p" * 600]

        def timer(id: str) -> dict[str, Any]:
            payload = rng.choice(payloads)
            fields = {"id": id, "type": rng.choice(TYPES), "fire_at": at}
            return fields if payload is None else {**fields, "payload": payload}

        timers = [timer(id) for id in ids]
        rng.shuffle(timers)
        singly, together = timers[:SINGLY], timers[SINGLY:]
        for part in chunks(singly, 50):
            await asyncio.gather(*(timerd.arm([one]) for one in part))
        for part in chunks(together, 300):
            await timerd.arm(part)
        again = rng.sample(timers, REARMED)
        for _ in range(2):
            await timerd.arm([{**one, "payload": rng.random()} for one in again])
        later = {f"later-{n}": at / 1000 + 1 + n / 10 for n in range(10)}
        await timerd.arm([{"id": id, "type": "t", "fire_at": millis(when)} for id, when in later.items()])
        if restarted:
            await timerd.kill_and_start()
        assert time.time() < at / 1000, "too slow for its own due time"
        due = {**dict.fromkeys(ids, at / 1000), **later}
        await processor.until(lambda: processor.ids >= due.keys(), timeout_s=IN_S + 20)
        assert not outside(processor, due, max_lag_s=MAX_LAG_S)
        assert processor.counts == dict.fromkeys(due, 1)
        assert not timerd.complaints()
