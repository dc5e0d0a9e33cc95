"""A15: a re-arm during the delivery is wiped by the delivery's completion.

When a callback ended, the service put its "done" over whatever stood under the id by then, the newer timer that the
callback had set included (Metaswitch/chronos PR #221).
"""

import asyncio
import math
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cases import SLACK_S, each, instant, millis, receipts, seeded, sized
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

IDS = sized(1_000, 300)
HOLD_S = sized(3.0, 1.0)
LATER_S = sized(5.0, 2.0)
SOON_S = sized(0.5, 0.3)
MAX_LAG_S = 0.5
BACKOFF_S = 0.2


class Variant(NamedTuple):
    rearm_in_s: float
    status: int = 200
    killed: bool = False


VARIANTS = {
    "answered 200": Variant(LATER_S),
    "due again meanwhile": Variant(SOON_S),
    "answered 500": Variant(LATER_S, status=500),
    "killed before the answer": Variant(LATER_S, killed=True),
}


@pytest.mark.slow
async def test_a_rearm_from_inside_the_delivery_stands(tmp_path: Path) -> None:
    seeded()

    async def run(name: str) -> None:
        await the_rearm_stands(tmp_path / name.replace(" ", "-"), VARIANTS[name])

    await each(run, VARIANTS)


async def the_rearm_stands(data: Path, variant: Variant) -> None:
    rearmed: dict[str, tuple[int, float]] = {}  # id -> generation and time of the acknowledged re-arm
    ended: dict[str, float] = {}  # id -> when its first delivery was answered
    all_rearmed = asyncio.Event()

    async def rearm(delivery: Delivery) -> Answer:
        new = [id for id in delivery.ids if id not in rearmed]
        if not new:
            return Answer()
        at = millis(time.time() + variant.rearm_in_s)
        answer = await timerd.arm([{"id": id, "type": "t", "fire_at": at} for id in new])
        for result in answer["results"]:
            assert result["status"] == "moved", result
            rearmed[result["id"]] = result["generation"], instant(result["fire_at"])
        shown = await timerd.get(new[0])
        assert shown is not None
        assert (shown["generation"], instant(shown["fire_at"])) == rearmed[new[0]]
        if len(rearmed) == IDS:
            all_rearmed.set()
        await asyncio.sleep(HOLD_S)  # the case: the answer takes its time
        ended.update(dict.fromkeys(new, time.time()))
        return Answer(variant.status)

    async with Processor(rearm) as processor, Process(data) as timerd:
        retry = {"min_backoff": BACKOFF_S, "max_backoff": 1, "jitter": 0}
        await timerd.put_type("t", url=processor.url, max_lag=MAX_LAG_S, batch_size=100, retry=retry)
        await timerd.arm([{"id": f"id-{n}", "type": "t", "delay": 0.5} for n in range(IDS)])
        await asyncio.wait_for(all_rearmed.wait(), 30)
        able = 0.0
        if variant.killed:
            await timerd.kill_and_start()
            able = time.time()

        def delivered_anew() -> bool:
            newest = {timer["id"]: timer["generation"] for _, timer in processor.timers()}
            return all(newest.get(id) == generation for id, (generation, _) in rearmed.items())

        await processor.until(delivered_anew)
        for id, received in receipts(processor).items():
            generation, at = rearmed[id]
            times = [delivery.at for delivery, timer in received if timer["generation"] == generation]
            first_ended = math.inf if variant.killed else ended[id]
            begin = max(at, able, 0 if first_ended == math.inf else first_ended)
            assert at <= times[0] <= begin + MAX_LAG_S + SLACK_S, f"{id}: {times[0] - begin:.3f} s"
            assert len(times) == 1, f"{id}: the new generation was delivered {len(times)} times"
            if variant.status == 200 and not variant.killed:
                assert len(received) == 2, f"{id}: the old generation was repeated"

        async def all_fired() -> bool:
            return bool((await timerd.stats("t"))["live"] == 0)

        await timerd.until(all_fired)
        assert (await timerd.stats("t"))["replaced"] == IDS
        assert not timerd.complaints()
