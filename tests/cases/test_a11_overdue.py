"""A11: overdue while down means dropped.

Entries whose time passed while the service was down, or busy for a second, were skipped without a word
(rabbitmq/rabbitmq-delayed-message-exchange #25, agronholm/apscheduler #292, #296).
"""

import asyncio
import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.support.cases import each, instant, millis, outside, receipts, seeded, sized
from tests.support.clock_shim import ClockShim
from tests.support.process import Process
from tests.support.processor import Processor

TIMERS = 200
FIRST_S, LAST_S = sized((10.0, 20.0), (1.8, 2.8))
STOP_S = sized(5.0, 0.6)
START_S = sized(90.0, 3.0)
FREEZE_S, THAW_S = sized((8.0, 40.0), (1.5, 4.0))
MAX_LAG_S = 0.5
DAYS_DOWN = 10
LONG_AWAY = "killed for ten days"


async def until_time(at: float) -> None:
    await asyncio.sleep(max(0.0, at - time.time()))


@pytest.mark.slow
async def test_what_fell_due_meanwhile_is_delivered(tmp_path: Path) -> None:
    rng = seeded()

    async def run(away: str) -> None:
        directory = tmp_path / away.replace(" ", "-")
        directory.mkdir()
        await is_delivered(directory, away, rng)

    await each(run, ["stopped", "killed", LONG_AWAY, "frozen"])


async def is_delivered(directory: Path, away: str, rng: Random) -> None:
    clock = ClockShim(directory) if away == LONG_AWAY else None
    async with Processor() as processor, Process(directory / "data", env=clock.env if clock else None) as timerd:
        await timerd.put_type("t", url=processor.url, max_lag=MAX_LAG_S)
        begin = time.time()
        asked = {f"id-{n}": millis(begin + rng.uniform(FIRST_S, LAST_S)) for n in range(TIMERS)}
        await timerd.arm([{"id": id, "type": "t", "fire_at": at} for id, at in asked.items()])
        if away == "frozen":
            await until_time(begin + FREEZE_S)
            timerd.signal(signal.SIGSTOP)
            await until_time(begin + THAW_S)
            timerd.signal(signal.SIGCONT)
        else:
            await until_time(begin + STOP_S)
            if away == "stopped":
                assert await timerd.stop() == 0
            else:
                timerd.kill()
                await timerd.wait()
            assert not processor.ids
            await until_time(begin + START_S)
            if clock:
                clock.shift(days=DAYS_DOWN)
            await timerd.start()
        back = time.time()
        await processor.until(lambda: len(processor.ids) == TIMERS)
        if clock:
            dispatched = instant(processor.deliveries[0].body["dispatched_at"])
            assert dispatched - back > (DAYS_DOWN - 1) * 86_400, "the shim does not work"
        await timerd.arm([{"id": "watch", "type": "t", "delay": 2 * MAX_LAG_S}])
        await processor.until(lambda: "watch" in processor.ids)
        due = {id: at / 1_000 for id, at in asked.items()}
        assert not outside(processor, due, max_lag_s=MAX_LAG_S, since=back)
        assert set(processor.counts.values()) == {1}
        for id, ((_, timer),) in receipts(processor).items():
            assert id == "watch" or millis(instant(timer["fire_at"])) == asked[id]
        assert not timerd.complaints()
