"""A06: a new, earlier timer does not wake the sleeper.

A job added while the scheduler slept towards a far wake-up, or just before it lay down, ran only at that wake-up
(agronholm/apscheduler #755, KonataDev/Konata.Core #129).
"""

import asyncio
import time
from pathlib import Path
from random import Random

import pytest

from tests.support.cases import each, instant, outside, seeded, sized, stamp
from tests.support.process import Process
from tests.support.processor import Processor

ROUNDS = sized(500, 30)
OFFSET_MS = sized((20, 1_000), (20, 250))
CLIENTS = 8
USUAL_LATE_S = 0.25


async def armed(timerd: Process, id: str, delay_s: float) -> float:
    """Arm one; when it is due."""
    answer = await timerd.arm([{"id": id, "type": "t", "fire_at": stamp(time.time() + delay_s)}])
    return instant(answer["results"][0]["fire_at"])


async def an_earlier_timer_wakes(data: Path, id: str) -> None:
    """A timer an hour away, and then this one."""
    async with Processor() as processor, Process(data, "--shards", "1") as timerd:
        await timerd.put_type("t", url=processor.url, max_lag=0)
        await armed(timerd, "far", 3600)
        idle_from = timerd.cpu_s()
        await asyncio.sleep(3)  # the case: it must have been asleep for a while
        assert timerd.cpu_s() - idle_from < 0.3
        due = {id: await armed(timerd, id, 2)}
        await processor.until(lambda: id in processor.ids)
        assert not outside(processor, due, max_lag_s=0)


async def none_is_lost_on_the_way_to_sleep(data: Path, rng: Random) -> None:
    due: dict[str, float] = {}

    async with Processor() as processor, Process(data, "--shards", "1") as timerd:
        await timerd.put_type("t", url=processor.url, max_lag=0)
        await armed(timerd, "far", 3600)

        async def one(id: str, delay_s: float) -> None:
            due[id] = await armed(timerd, id, delay_s)

        for round in range(ROUNDS):
            await asyncio.gather(*(one(f"{round}-{n}", rng.randint(*OFFSET_MS) / 1000) for n in range(CLIENTS)))
            await processor.until(lambda: len(processor.ids) == len(due))
        lates = sorted(delivery.at - due[id] for delivery in processor.deliveries for id in delivery.ids)
        print(f"{len(due)} timers: p50 {lates[len(lates) // 2]:.4f} s, p95 {lates[len(lates) * 95 // 100]:.4f} s, "
              f"worst {lates[-1]:.4f} s")  # fmt: skip
        assert not outside(processor, due, max_lag_s=0)
        assert lates[len(lates) * 95 // 100] < USUAL_LATE_S
        assert set(processor.counts.values()) == {1}


@pytest.mark.slow
async def test_a_sleeping_shard_is_woken(tmp_path: Path) -> None:
    rng = seeded()

    async def run(name: str) -> None:
        data = tmp_path / name
        await (none_is_lost_on_the_way_to_sleep(data, rng) if name == "rounds" else an_earlier_timer_wakes(data, name))

    await each(run, ["another", "far", "rounds"])
