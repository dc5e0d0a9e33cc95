"""A07: a far-future timer breaks the event loop.

A sleep until the next deadline, in milliseconds, did not fit the 32 bits that poll takes: one timer 25 days ahead, and
the loop threw on every turn or ended (twisted/twisted #6259, aio-libs/aiohttp #967, dabeaz/curio #377).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.cases import each, instant, millis, outside, seeded, sized, stamp
from tests.support.process import Process
from tests.support.processor import Processor

DAY_S = 86_400
EDGE_S = 24 * DAY_S + 20 * 3_600 + 31 * 60 + 22
"""The last whole second before 2^31 milliseconds."""
FAR_S = {
    "20 days": 20 * DAY_S,
    "before the edge": EDGE_S,
    "behind the edge": EDGE_S + 2,
    "2^32 ms": 2**32 // 1000 + 1,
    "25 days": 25 * DAY_S,
    "50 days": 50 * DAY_S,
    "60 days": 60 * DAY_S,
    "400 days": 400 * DAY_S,
    "almost the horizon": 3_659 * DAY_S,
}
END = "9999-12-31T23:59:59Z"
NEVER = {"id": "never", "type": "t", "fire_at": END}
IDLE_S = sized(30.0, 2.5)
NEAR_S = sized(2.0, 1.0)
STARTS = sized(("first", "killed", "stopped"), ("first", "killed"))
CPU_SHARE_MAX = 0.05
MAX_LAG_S = 0.5


async def far_timers_cost_nothing_and_stop_nothing(data: Path) -> None:
    async with Processor() as processor, Process(data) as timerd:
        await timerd.put_type("t", url=processor.url, max_lag=MAX_LAG_S)
        now = time.time()
        asked = {id: millis(now + far_s) for id, far_s in FAR_S.items()}
        await timerd.arm([{"id": id, "type": "t", "fire_at": at} for id, at in asked.items()])
        status, answer = await timerd.request("POST", "/v1/timers", {"timers": [NEVER]})
        assert status == 422, "beyond the documented horizon"
        assert answer["type"].endswith("/horizon-exceeded"), answer
        due = {}
        for start in STARTS:
            if start == "killed":
                await timerd.kill_and_start()
            elif start == "stopped":
                assert await timerd.stop() == 0
                await timerd.start()
            used_s = timerd.cpu_s()
            await asyncio.sleep(IDLE_S)  # the case: it sleeps towards nothing but far times
            used_s = timerd.cpu_s() - used_s
            print(f"{start}: {used_s:.2f} s CPU in {IDLE_S} s")
            assert used_s < CPU_SHARE_MAX * IDLE_S
            answer = await timerd.arm([{"id": start, "type": "t", "fire_at": stamp(time.time() + NEAR_S)}])
            due[start] = instant(answer["results"][0]["fire_at"])
            await processor.until(lambda: processor.ids >= due.keys())
            assert not outside(processor, due, max_lag_s=MAX_LAG_S)
            assert processor.counts == dict.fromkeys(due, 1), "a far timer was delivered"
            listed = {timer["id"]: millis(instant(timer["fire_at"])) for timer in await timerd.list()}
            assert listed == asked
        assert not timerd.complaints()


async def the_end_of_the_calendar_is_no_end(data: Path) -> None:
    """An operator may move the horizon as far as times are written."""
    async with Processor() as processor, Process(data, "--max-horizon", "2950000d") as timerd:
        await timerd.put_type("t", url=processor.url, max_lag=0)
        await timerd.arm([NEVER])
        for n in range(2):
            await timerd.arm([{"id": f"near-{n}", "type": "t", "delay": 0.3}])
            await processor.until(lambda: f"near-{n}" in processor.ids)  # noqa: B023 (done with before the next round)
            shown = await timerd.get("never")
            assert shown is not None
            assert instant(shown["fire_at"]) == instant(END)
            await timerd.kill_and_start()
        assert set(processor.counts) == {"near-0", "near-1"}
        assert not timerd.complaints()


@pytest.mark.slow
async def test_a_far_timer_breaks_nothing(tmp_path: Path) -> None:
    seeded()

    async def run(story: Callable[[Path], Awaitable[None]]) -> None:
        await story(tmp_path / story.__name__)

    await each(run, [far_timers_cost_nothing_and_stop_nothing, the_end_of_the_calendar_is_no_end])
