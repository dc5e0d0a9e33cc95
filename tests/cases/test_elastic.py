"""Four shards become sixteen while their timers fire and are re-armed, and are killed in the middle: nothing is lost.

Every timer is a polling chain: its answer re-arms it, so that one lost anywhere is a chain that has ended. By default
20,000 of them with 500 re-arms a second; `TIMERD_ELASTIC=1000000 pytest -s tests/cases/test_elastic.py` for a million
with 5,000 (a quarter of an hour).
"""

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.cases import BUSY, instant, millis, seeded
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

TIMERS = int(os.environ.get("TIMERD_ELASTIC") or 20_000)
LARGE = TIMERS >= 200_000
RATE = 5_000 if LARGE else 500
PERIOD_S = TIMERS / RATE
MAX_LAG_S = 2.0 if LARGE else 0.5
BATCH = 800 if LARGE else 100
SLACK_S = 0.25 + 1.0 * BUSY
ARM_REQUEST = 5_000
CAPACITY = ("--shard-capacity", "1000000000")  # only by hand


class Chains:
    """What the target has seen, and its answers."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, int]] = Counter()
        self.unflagged = 0
        self.fires = 0
        self.lags: list[tuple[float, float]] = []
        """(received at, late by)"""

    def answer(self, delivery: Delivery) -> Answer:
        for timer in delivery.body["timers"]:
            key = (timer["id"], timer["generation"])
            self.seen[key] += 1
            if self.seen[key] > 1 and not timer.get("possible_duplicate"):
                self.unflagged += 1
        self.fires += len(delivery.ids)
        first = min(delivery.body["timers"], key=lambda timer: str(timer["fire_at"]))
        self.lags.append((delivery.at, delivery.at - instant(first["fire_at"])))
        results = [{"id": id, "status": "rearm", "delay": PERIOD_S} for id in delivery.ids]
        return Answer(body={"results": results})

    @property
    def repeats(self) -> int:
        return sum(count - 1 for count in self.seen.values())

    def worst_lag(self, since: float, until: float) -> float:
        """Of what was received in that time."""
        return max(lag for at, lag in self.lags if since <= at < until)


async def arm_all(timerd: Process) -> None:
    """All chains, spread over a period that begins when they are armed."""
    begin = time.time() + 2 + TIMERS / 40_000 * BUSY
    for start in range(0, TIMERS, ARM_REQUEST):
        timers = [
            {"id": f"chain-{n:07}", "type": "poll", "fire_at": millis(begin + (n * 7_919 % TIMERS) / RATE)}
            for n in range(start, min(TIMERS, start + ARM_REQUEST))
        ]
        status, answer = await timerd.request(
            "POST", "/v1/timers", {"timers": timers}, headers={"Prefer": "return=minimal"}
        )
        assert status == 200, answer


async def moving(timerd: Process) -> int:
    """Slots that are on the move."""
    status, answer = await timerd.request("GET", "/v1/shards")
    assert status == 200, answer
    return sum(shard["moving_in"] + shard["moving_out"] for shard in answer["shards"])


@pytest.mark.slow
async def test_four_shards_become_sixteen_under_load_and_kill(tmp_path: Path) -> None:
    seeded()
    chains = Chains()
    async with Processor(chains.answer) as processor, Process(tmp_path / "data", "--shards", "4", *CAPACITY) as timerd:
        await timerd.put_type("poll", url=processor.url, max_lag=MAX_LAG_S, batch_size=BATCH)
        await arm_all(timerd)
        await processor.until(lambda: chains.fires > RATE, PERIOD_S + 60)
        began = time.time()
        status, answer = await timerd.request("POST", "/v1/shards:scale", {"shards": 16})
        assert (status, answer["shards"], answer["ring_version"]) == (200, 16, 2), answer
        await asyncio.sleep(30 if LARGE else 0.5)
        assert await moving(timerd), "it was over before it was killed"
        killed = time.time()
        await timerd.kill_and_start()
        back = time.time()
        async with asyncio.timeout(900 if LARGE else 60):
            while await moving(timerd):
                await asyncio.sleep(0.2)
        rested = time.time()
        await asyncio.sleep(20 if LARGE else 2)
        # No more is re-armed to a time within the test, so that what there is stands still.
        await timerd.request("POST", "/v1/types/poll:pause")
        async with asyncio.timeout(60):
            while (await timerd.stats("poll"))["in_flight"]:
                await asyncio.sleep(0.1)
        stats = await timerd.stats("poll")
        listed = Counter([view["id"] for view in await timerd.list()])
        _, shards = await timerd.request("GET", "/v1/shards")
        caught_up = max((at for at, lag in chains.lags if at >= back and lag > MAX_LAG_S + SLACK_S), default=back)
        lags = chains.worst_lag(began, killed), chains.worst_lag(caught_up + 0.001, time.time())
        print(
            f"{TIMERS} timers, {RATE} re-arms a second: 4 -> 16 shards in {rested - began:.1f} s, killed after "
            f"{killed - began:.1f} s and back in {back - killed:.1f} s; {chains.fires} fires, {chains.repeats} "
            f"repeated, {chains.unflagged} not flagged; worst lag {lags[0]:.2f} s before the kill, {lags[1]:.2f} s "
            f"once it had caught up, {caught_up - back:.1f} s after the start"
        )
        assert listed == Counter(f"chain-{n:07}" for n in range(TIMERS)), "each id once"
        assert len(shards["shards"]) == 16
        assert sum(shard["timers"] for shard in shards["shards"]) == TIMERS
        assert stats["live"] == TIMERS
        assert stats["armed"] == TIMERS + stats["fired"], "every fire was a re-arm"
        assert stats["replaced"] == stats["cancelled"] == stats["dead"] == 0
        assert chains.fires - chains.repeats <= stats["fired"] <= chains.fires
        assert chains.repeats <= max(0.001 * chains.fires, 16 * BATCH)
        assert not chains.unflagged
        assert max(lags) < MAX_LAG_S + SLACK_S
        assert caught_up - back < 5 * (back - killed) + 5, "what was due meanwhile takes too long"
        assert not timerd.complaints()
