"""A16: taken out of the store before it is handed over.

A poller removed due jobs from the sorted set first and pushed them to the queue afterwards; a crash in between lost
them, in one report a great many (sidekiq/sidekiq #1841, PR #843).
"""

import asyncio
import itertools
import time
from pathlib import Path

import pytest

from tests.support.cases import millis, receipts, seeded, sized
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor
from tests.support.proxy import Proxy

TIMERS = sized(20_000, 4_000)
OVER_S = sized(20.0, 5.0)
KILLS = sized(20, 4)
BATCH = sized(200, 50)
ANSWER_S = 0.2
SLOTS = 4
MAX_LAG_S = 0.5
RECORDED_S = 1.0
"""An answer that was given longer ago than this is on disk; what was answered later may be repeated after a kill."""


@pytest.mark.slow
async def test_a_crash_at_any_moment_loses_nothing_that_was_due(tmp_path: Path) -> None:
    rng = seeded()
    answered: dict[str, float] = {}
    killed: list[float] = []

    async def slow(delivery: Delivery) -> Answer:
        await asyncio.sleep(ANSWER_S)  # the case
        answered.update(dict.fromkeys(delivery.ids, time.time()))
        return Answer()

    async with Processor(slow) as processor, Process(tmp_path / "data") as timerd:
        await timerd.put_type("t", url=processor.url, batch_size=BATCH, max_lag=MAX_LAG_S, max_in_flight=SLOTS)
        begin = time.time() + 1
        ids = {f"id-{n}" for n in range(TIMERS)}
        await timerd.arm([{"id": id, "type": "t", "fire_at": millis(begin + rng.random() * OVER_S)} for id in ids])
        for _ in range(KILLS):
            await asyncio.sleep(rng.random() * 2 * OVER_S / KILLS)  # the case: a random moment
            killed.append(time.time())
            await timerd.kill_and_start()
        await processor.until(lambda: processor.ids == ids, timeout_s=OVER_S + 60)

        repeats = 0
        for id, received in receipts(processor).items():
            for (before, _), (again, timer) in itertools.pairwise(received):
                repeats += 1
                kill = [at for at in killed if before.at <= at <= again.at]
                assert kill, f"{id} was repeated without a crash in between"
                assert kill[0] - before.at < ANSWER_S + RECORDED_S, f"{id} had long been answered at the kill"
                assert timer.get("possible_duplicate"), f"{id} is not flagged"
        print(f"{KILLS} kills: {repeats} repeats of {TIMERS}")
        assert repeats <= KILLS * SLOTS * BATCH
        assert not timerd.complaints()


@pytest.mark.slow
async def test_an_answer_that_was_never_read_is_no_loss(tmp_path: Path) -> None:
    seeded()
    rounds = sized(20, 2)
    async with Processor() as processor, Proxy(processor.url) as proxy, Process(tmp_path / "data") as timerd:
        await timerd.put_type("t", url=proxy.url, batch_size=BATCH, max_lag=0, max_in_flight=SLOTS)

        async def all_recorded() -> bool:
            return bool((await timerd.stats("t"))["live"] == 0)

        for round in range(rounds):
            processor.deliveries.clear()
            proxy.hold()
            ids = {f"id-{round}-{n}" for n in range(BATCH)}
            await timerd.arm([{"id": id, "type": "t", "delay": 0.1} for id in ids])
            await processor.until(lambda: processor.ids == ids)  # noqa: B023 (done with before the next round)
            async with asyncio.timeout(10):
                while not proxy.held_bytes:
                    await asyncio.sleep(0.005)
            timerd.kill()
            await timerd.wait()
            proxy.drop()
            before = len(processor.deliveries)
            await timerd.start()
            await timerd.until(all_recorded)
            assert processor.counts == dict.fromkeys(ids, 2)
            for delivery in processor.deliveries[before:]:
                assert all(timer.get("possible_duplicate") for timer in delivery.body["timers"])
