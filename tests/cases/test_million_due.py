"""A million timers due at one instant cost no memory, and nobody else any time (promise 7).

By default 100,000, with the bound in proportion; `TIMERD_DUE=1000000` for the million.
"""

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.support.cases import BUSY, millis, outside, seeded, sized
from tests.support.process import Process
from tests.support.processor import Answer, Processor

TIMERS = int(os.environ.get("TIMERD_DUE") or sized(1_000_000, 100_000))
GROWTH_BYTES_MAX = 100_000_000 * TIMERS // 1_000_000
ARMS_S = TIMERS / 20_000  # room to arm them all before they are due
ARM_REQUEST = 5_000
SLOW_S = 1.0
WATCHED_S = sized(10, 4)
CALM_A_SECOND = 20
CALM_LAG_S = 0.5


@pytest.mark.slow
async def test_a_million_due_at_once_grow_no_memory_and_delay_no_other_type(tmp_path: Path) -> None:
    seeded()
    async with (
        Processor(lambda delivery: Answer(delay_s=SLOW_S)) as slow,
        Processor() as calm,
        Process(tmp_path / "data") as timerd,
    ):
        await timerd.put_type("slow", url=slow.url)
        await timerd.put_type("calm", url=calm.url, max_lag=CALM_LAG_S)
        at = time.time() + ARMS_S * BUSY + 2
        for start in range(0, TIMERS, ARM_REQUEST):
            timers = [
                {"id": f"slow-{n:07}", "type": "slow", "fire_at": millis(at)} for n in range(start, start + ARM_REQUEST)
            ]
            status, _ = await timerd.request(
                "POST", "/v1/timers", {"timers": timers}, headers={"Prefer": "return=minimal"}
            )
            assert status == 200
        due = {f"calm-{n}": at - 1 + n / CALM_A_SECOND for n in range(CALM_A_SECOND * (WATCHED_S - 1))}
        await timerd.arm([{"id": id, "type": "calm", "fire_at": millis(when)} for id, when in due.items()])
        assert time.time() < at - 1, "too slow for its own due time"
        await asyncio.sleep(max(0.0, at - 1 - time.time()))  # all armed, nothing due: what memory is compared with
        before = timerd.rss_bytes()
        largest = before
        while time.time() < at + WATCHED_S:
            largest = max(largest, timerd.rss_bytes())
            await asyncio.sleep(0.05)
        await calm.until(lambda: calm.ids == due.keys())
        lates = sorted(delivery.at - due[id] for delivery in calm.deliveries for id in delivery.ids)
        print(
            f"{TIMERS} due at once, {len(slow.ids)} delivered in {WATCHED_S} s: {before / 1e6:.0f} MB before, "
            f"{(largest - before) / 1e6:+.1f} MB at most; the other type's worst lag {lates[-1]:.2f} s"
        )
        assert slow.ids, "nothing was delivered"
        assert slow.open_max <= 16
        assert largest - before < GROWTH_BYTES_MAX
        assert not outside(calm, {id: millis(when) / 1000 for id, when in due.items()}, max_lag_s=CALM_LAG_S)
        assert not timerd.complaints()
