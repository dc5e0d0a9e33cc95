"""A03: a change that takes the quick path is not logged.

A job put back without a delay kept its new priority only until the restart, because the log was written only when
there was a delay (beanstalkd/beanstalkd #597).
"""

import asyncio
import time
from pathlib import Path

import pytest

from tests.support.cases import instant, outside, seeded, sized, stamp
from tests.support.process import Process
from tests.support.processor import Processor

HOUR_S = 3600
MAX_LAG_S = 1.0
Z_S, W_S = sized((5.0, 3.0), (2.5, 1.5))
Z_WATCHED_S = sized(60.0, 4.0)


@pytest.mark.slow
async def test_rearms_to_now_the_past_and_another_type_survive_a_kill(tmp_path: Path) -> None:
    seeded()
    retry = {"min_backoff": "100ms", "max_backoff": "500ms"}
    async with Processor() as processor, Processor() as other, Process(tmp_path / "data") as timerd:
        await timerd.put_type("t", url=processor.url, max_lag=MAX_LAG_S, retry=retry)
        await timerd.put_type("u", url=other.url, max_lag=MAX_LAG_S, retry=retry)
        await processor.stop()
        await other.stop()
        start = time.time()
        w_at = stamp(start + W_S)
        await timerd.arm(
            [
                {"id": "x", "type": "t", "fire_at": stamp(start + HOUR_S)},
                {"id": "y", "type": "t", "fire_at": stamp(start + HOUR_S)},
                {"id": "z", "type": "t", "fire_at": stamp(start + Z_S)},
                {"id": "w", "type": "t", "fire_at": w_at},
            ]
        )
        changes = [
            {"id": "x", "type": "t", "fire_at": stamp(time.time())},
            {"id": "y", "type": "t", "fire_at": stamp(time.time() - 5)},
            {"id": "z", "type": "t", "fire_at": stamp(start + HOUR_S)},
            {"id": "w", "type": "u", "fire_at": w_at},
        ]
        answers = await asyncio.gather(*(timerd.arm([change]) for change in changes))
        assert [answer["results"][0]["status"] for answer in answers] == ["moved"] * 4
        timerd.kill()
        assert time.time() < start + 1
        await processor.start()
        await other.start()
        await timerd.start()
        ready = time.time()
        await timerd.arm([{"id": "watch", "type": "t", "fire_at": stamp(start + Z_WATCHED_S)}])
        await other.until(lambda: "w" in other.ids)
        await processor.until(lambda: "watch" in processor.ids, timeout_s=Z_WATCHED_S + 10)
        assert not outside(processor, {"x": start, "y": start}, max_lag_s=MAX_LAG_S, since=ready)
        assert not outside(other, {"w": start + W_S}, max_lag_s=MAX_LAG_S, since=ready)
        assert processor.counts == {"x": 1, "y": 1, "watch": 1}
        assert other.counts == {"w": 1}
        (left,) = await timerd.list()
        assert left["id"] == "z"
        assert 0 <= instant(left["fire_at"]) - (start + HOUR_S) < 0.0011
