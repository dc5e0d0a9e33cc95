"""A17: a clean stop forgets what was already delivered.

The progress of delivery was not saved on the way down, so a restart sent a large part of the messages twice
(apache/rocketmq #3473).
"""

import asyncio
import time
from pathlib import Path

import aiohttp
import pytest

from tests.support.cases import seeded, sized
from tests.support.process import Process
from tests.support.processor import Answer, Processor

TIMERS = sized(10_000, 4_000)
BATCH = 100
SLOTS = 4
ANSWER_S = sized(0.3, 0.15)
GRACE_S = 10


@pytest.mark.slow
async def test_a_stop_in_the_middle_repeats_nothing(tmp_path: Path) -> None:
    seeded()
    acknowledged: set[str] = set()
    options = ("--grace", str(GRACE_S))
    async with (
        Processor(lambda delivery: Answer(delay_s=ANSWER_S)) as processor,
        Process(tmp_path / "data", *options) as timerd,
    ):
        await timerd.put_type("t", url=processor.url, batch_size=BATCH, max_in_flight=SLOTS)
        ids = {f"id-{n}" for n in range(TIMERS)}
        await timerd.arm([{"id": id, "type": "t", "delay": 0} for id in ids])

        async def arm_until_stopped() -> None:
            try:
                for n in range(1_000_000):
                    status, _ = await timerd.request(
                        "POST", "/v1/timers", {"timers": [{"id": f"more-{n}", "type": "t", "delay": "1h"}]}
                    )
                    if status != 200:
                        return
                    acknowledged.add(f"more-{n}")
            except (aiohttp.ClientError, OSError):
                return

        arming = asyncio.create_task(arm_until_stopped())
        await processor.until(lambda: len(processor.ids) >= TIMERS // 2)
        asked = time.monotonic()
        assert await timerd.stop() == 0
        took = time.monotonic() - asked
        before = len(processor.ids)
        await arming
        print(f"stopped in {took:.2f} s with {before} of {TIMERS} delivered, {len(acknowledged)} armed meanwhile")
        assert took < GRACE_S
        assert before < TIMERS, "the stop came too late to be one in the middle"
        await timerd.start()
        await processor.until(lambda: processor.ids == ids)
        assert processor.counts == dict.fromkeys(ids, 1)
        assert not any(timer.get("possible_duplicate") for _, timer in processor.timers())

        async def the_rest_is_far() -> bool:
            return {timer["id"] for timer in await timerd.list()} >= acknowledged

        await timerd.until(the_rest_is_far)
        assert not timerd.complaints()
