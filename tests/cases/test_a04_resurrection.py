"""A04: compaction brings finished entries back.

A merge dropped the file with the deletion mark and kept an older one with the value, so a later start found the value
and no mark (basho/bitcask #82).
"""

import asyncio
import time
from pathlib import Path

import aiohttp
import pytest

from tests.support.cases import instant, millis, seeded, sized
from tests.support.process import Process
from tests.support.processor import Processor

DONE = sized(10_000, 1_500)
FAR = 5
LIVE = 500
CHURN = sized(50_000, 6_000)
FAR_S = 60 * 86_400
MAX_LAG_S = 0.5
ROUNDS = sized(3, 2)


@pytest.mark.slow
async def test_nothing_finished_comes_back(tmp_path: Path) -> None:
    rng = seeded()
    acknowledged: dict[str, int] = {}
    asked: dict[str, set[int]] = {}  # re-arms that got no answer: they may stand or not

    async with Processor() as processor, Process(tmp_path / "data", "--segment-bytes", "65536") as timerd:
        await timerd.put_type("t", url=processor.url, max_lag=MAX_LAG_S)
        now = time.time()
        done = [f"done-{n}" for n in range(DONE)]
        timers = [{"id": id, "type": "t", "delay": 0, "payload": rng.choice([None, "p" * 600])} for id in done]
        for n in range(FAR):
            at = millis(now + FAR_S + n)
            timers.insert(rng.randrange(len(timers)), {"id": f"far-{n}", "type": "t", "fire_at": at})
            acknowledged[f"far-{n}"] = at
        await timerd.arm(timers)

        async def churn(rounds: int) -> None:
            for _ in range(rounds):
                ids = rng.sample(range(LIVE), 100)
                moved = {f"live-{n}": millis(time.time() + 7 * 86_400 + rng.randrange(86_400)) for n in ids}
                for id, at in moved.items():
                    asked.setdefault(id, set()).add(at)
                await timerd.arm([{"id": id, "type": "t", "fire_at": at} for id, at in moved.items()])
                for id, at in moved.items():
                    acknowledged[id] = at
                    asked[id].discard(at)

        async def churn_until_killed() -> None:
            try:
                await churn(1_000_000)
            except (aiohttp.ClientError, OSError):
                return

        async def nothing_came_back(round: str) -> None:
            await timerd.arm([{"id": f"watch-{round}", "type": "t", "fire_at": millis(time.time() + 2 * MAX_LAG_S)}])
            await processor.until(lambda: f"watch-{round}" in processor.ids)
            finished[f"watch-{round}"] = 1
            assert processor.counts == finished, "a finished timer was delivered again"
            listed = {timer["id"]: millis(instant(timer["fire_at"])) for timer in await timerd.list()}
            assert listed.keys() == acknowledged.keys()
            for id, at in listed.items():
                assert at == acknowledged[id] or at in asked.get(id, ()), id

        finished = dict.fromkeys(done, 1)
        await processor.until(lambda: len(processor.ids) == DONE)
        await churn(CHURN // 100)
        await nothing_came_back("0")
        segments = sorted((tmp_path / "data").glob("*.log"))
        assert int(segments[0].stem) > 1, "nothing was compacted"
        for round in range(ROUNDS):
            assert await timerd.stop() == 0
            await timerd.start()
            await nothing_came_back(f"stop-{round}")
            oldest = int(min((tmp_path / "data").glob("*.log")).stem)
            churning = asyncio.create_task(churn_until_killed())
            async with asyncio.timeout(60):
                while int(min((tmp_path / "data").glob("*.log")).stem) < oldest + 2:
                    await asyncio.sleep(0.005 + rng.random() * 0.01)
            timerd.kill()
            await churning
            await timerd.start()
            await nothing_came_back(f"kill-{round}")
        assert not timerd.complaints()
