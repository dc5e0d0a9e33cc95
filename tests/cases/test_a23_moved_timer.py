"""A23: a moved timer starts over or fires twice.

A node that took a timer over counted its whole delay anew, at the latest with the second move, and what was just on its
way out on the old node fired on both (esatterwhite/skyring #13, #22, #34).

Here timers move when the shards become more, and a kill comes in the middle of the second move; timers that nobody
waits for make that move long enough to be met. In a cluster their owner is killed, and then the next one.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.failover.cluster import Cluster
from tests.support.cases import BUSY, each, instant, millis, outside, receipts, seeded, sized
from tests.support.process import Process
from tests.support.processor import Processor

UNIT_S = sized(20.0, 2.0 * min(3.0, BUSY))
"""Grown after one and two of these; due after three, and what is re-armed after six."""
DUE, REARMED, FAR = 500, 100, 50
FILLING = 30_000
MAX_LAG_S = 1.0
FAR_S = 30 * 86_400.0
BOTH = 2
LEASE_S = sized(5.0, 1.0)
OWNED_S = sized(20.0, 5.0 * min(3.0, BUSY))
LATER = sized(6, 4)
"""Owners are killed after one and two `OWNED_S`; due after three, and what is re-armed after so many."""
TAKEN_S = 15.0 * BUSY


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


async def shards_become_more(directory: Path) -> None:
    rng = seeded()
    async with Processor() as processor, Process(directory / "data", "--shards", "4") as timerd:
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


async def owners_are_killed(directory: Path) -> None:
    rng = seeded()
    cluster = Cluster(directory, "--cluster-lease", str(LEASE_S), nodes=2, servers=sized(3, 1), shards=4)
    async with Processor() as processor, cluster:
        nodes = cluster.nodes
        await nodes["node-0"].put_type("t", url=processor.url, max_lag=MAX_LAG_S)
        begin = time.time()
        due = {f"due-{n}": millis(begin + 3 * OWNED_S) / 1000 for n in range(DUE)}
        far = {f"far-{n}": millis(begin + FAR_S) / 1000 for n in range(FAR)}
        await arm(nodes["node-0"], due | far)
        shard = (await shards_of(nodes["node-0"]))["due-0"]
        for number in (1, 2):
            await asyncio.sleep(max(0.0, begin + number * OWNED_S - time.time()))
            await cluster.settled()
            owner = (await cluster.owners("node-0"))[shard]
            nodes[owner].kill()
            await nodes[owner].wait()
            if number == 1:
                await cluster.restart(owner)
        survivor = nodes["node-1" if owner == "node-0" else "node-0"]
        later = {id: millis(begin + LATER * OWNED_S) / 1000 for id in rng.sample(sorted(due), REARMED)}

        async def rearmed() -> bool:
            timers = [{"id": id, "type": "t", "fire_at": millis(at)} for id, at in later.items()]
            status, answer = await survivor.request("POST", "/v1/timers", {"timers": timers})
            assert status in (200, 503), answer
            return status == 200

        await survivor.until(rearmed, TAKEN_S)
        assert time.time() < begin + 3 * OWNED_S, "this machine is too slow for the case"
        await cluster.restart(owner)
        due |= later
        await processor.until(lambda: processor.ids >= due.keys(), LATER * OWNED_S + 60)
        wrong = outside(processor, due, max_lag_s=MAX_LAG_S + TAKEN_S)
        assert not wrong
        repeats = {id: count for id, count in processor.counts.items() if count > 1}
        assert not repeats, "nothing was on its way at a kill"
        await cluster.settled()
        for node in nodes.values():
            listed = await node.list("&type=t")
            assert Counter(timer["id"] for timer in listed) == Counter(far.keys()), "each of the far ones, once"
            assert all(abs(instant(timer["fire_at"]) - far[timer["id"]]) < 0.001 for timer in listed), "at its instant"
        assert not cluster.complaints()


STORIES = {"more shards": shards_become_more, "killed owners": owners_are_killed}


@pytest.mark.slow
async def test_a_timer_that_moves_keeps_its_time(tmp_path: Path) -> None:
    async def run(name: str) -> None:
        directory = tmp_path / name.replace(" ", "-")
        directory.mkdir()
        await STORIES[name](directory)

    await each(run, STORIES)
