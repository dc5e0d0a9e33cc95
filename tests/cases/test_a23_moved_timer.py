"""A23: a moved timer starts over or fires twice.

A node that took a timer over counted its whole delay anew, at the latest with the second move, and what was just on its
way out on the old node fired on both (esatterwhite/skyring #13, #22, #34).

Here timers move when the shards become more, and a kill comes in the middle of the second move. Timers that nobody
waits for make that move long enough to be met.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.cases import instant, millis, outside, receipts, seeded, sized
from tests.support.process import Process
from tests.support.processor import Processor

UNIT_S = sized(20.0, 2.0)
"""Grown after one and two of these; due after three, and what is re-armed after six."""
DUE, REARMED, FAR = 500, 100, 50
FILLING = 30_000
MAX_LAG_S = 1.0
FAR_S = 30 * 86_400.0
BOTH = 2


async def scale(timerd: Process, shards: int) -> None:
    """Ask for more, as soon as the move before is over."""

    async def begun() -> bool:
        status, answer = await timerd.request("POST", "/v1/shards:scale", {"shards": shards})
        assert status in (200, 503), answer
        return status == 200

    await timerd.until(begun)


async def moving(timerd: Process) -> int:
    """Slots that are on the move."""
    status, answer = await timerd.request("GET", "/v1/shards")
    assert status == 200, answer
    return sum(shard["moving_in"] + shard["moving_out"] for shard in answer["shards"])


async def shards_of(timerd: Process) -> dict[str, int]:
    """Where each timer is."""
    return {timer["id"]: timer["shard"] for timer in await timerd.list("&type=t")}


async def arm(timerd: Process, due: dict[str, float]) -> None:
    await timerd.arm([{"id": id, "type": "t", "fire_at": millis(at)} for id, at in due.items()])


@pytest.mark.slow
async def test_a_timer_that_moves_keeps_its_time(tmp_path: Path) -> None:
    rng = seeded()
    async with Processor() as processor, Process(tmp_path / "data", "--shards", "4") as timerd:
        await timerd.put_type("t", url=processor.url, max_lag=MAX_LAG_S)
        await timerd.put_type("filling", url=processor.url)
        await timerd.arm([{"id": f"filling-{n}", "type": "filling", "delay": FAR_S} for n in range(FILLING)])
        begin = time.time()
        due = {f"due-{n}": millis(begin + 3 * UNIT_S) / 1000 for n in range(DUE)}
        far = {f"far-{n}": millis(begin + FAR_S) / 1000 for n in range(FAR)}
        await arm(timerd, due | far)
        at_first = await shards_of(timerd)

        await asyncio.sleep(begin + UNIT_S - time.time())
        await scale(timerd, 5)
        await asyncio.sleep(begin + 2 * UNIT_S - time.time())
        between = await shards_of(timerd)
        await scale(timerd, 6)
        await asyncio.sleep(rng.uniform(0, 0.05))
        assert await moving(timerd), "it was over before it was killed"
        await timerd.kill_and_start()
        ready = time.time()

        await asyncio.sleep(max(0.0, begin + 2.25 * UNIT_S - time.time()))
        later = {id: millis(begin + 6 * UNIT_S) / 1000 for id in rng.sample(sorted(due), REARMED)}
        await arm(timerd, later)
        rearmed = time.time()
        assert rearmed < begin + 3 * UNIT_S, "this machine is too slow for the case"
        due |= later
        at_last = await shards_of(timerd)
        await processor.until(lambda: processor.ids >= due.keys(), 6 * UNIT_S + 60)

        async def still() -> bool:
            return not await moving(timerd)

        await timerd.until(still)
        moved = {id for id, shard in at_first.items() if between[id] != shard or at_last[id] != shard}
        assert moved & due.keys(), "nothing has moved"
        assert len(set(at_last.values())) == 6
        wrong = outside(processor, due, max_lag_s=MAX_LAG_S, since=ready)
        assert not wrong
        counts = processor.counts
        repeats = {id: count for id, count in counts.items() if count > 1}
        assert repeats.keys() <= moved
        assert all(count <= BOTH for count in repeats.values()), repeats
        assert all(timer["possible_duplicate"] for id in repeats for _, timer in receipts(processor)[id][1:])
        listed = await timerd.list("&type=t")
        assert Counter(timer["id"] for timer in listed) == Counter(far.keys()), "each of the far ones, once"
        assert all(abs(instant(timer["fire_at"]) - far[timer["id"]]) < 0.001 for timer in listed), "at its instant"
        print(f"{len(moved)} of {len(at_first)} moved, {len(repeats)} repeated")
        assert not timerd.complaints()
