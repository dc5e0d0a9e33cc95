"""Loops that keep their phase (`rearm` with `fire_at` + the step) come through an outage within the catch-up rate.

Each answer re-arms a loop to the next turn that it has missed. So the backlog is made by the answers themselves, and
whatever took such a turn for due at once would let it go round as fast as the target answers.
"""

import asyncio
import time
from bisect import bisect_right
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.cases import millis
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

LOOPS = 6
STEP_MS = 2_000
RATE = 8.0
GRACE_S = 0.6
DOWN_S = 9.0
MISSED = round(LOOPS * DOWN_S * 1000 / STEP_MS)  # turns, and some more in the meantime


class Looping(Processor):
    """Answers each turn with the next, and keeps when those came that are overdue beyond the grace."""

    def __init__(self) -> None:
        super().__init__(self.step)
        self.late: list[float] = []

    def step(self, delivery: Delivery) -> Answer:
        results = []
        for timer in delivery.body["timers"]:
            due_s = datetime.fromisoformat(timer["fire_at"]).timestamp()
            self.late += [delivery.at] if delivery.at - due_s > GRACE_S else []
            results.append({"id": timer["id"], "status": "rearm", "fire_at": millis(due_s) + STEP_MS})
        return Answer(body={"results": results})

    def most_in(self, seconds: float) -> int:
        return max((bisect_right(self.late, at + seconds) - n for n, at in enumerate(self.late)), default=0)


@pytest.mark.slow
async def test_turns_that_loops_have_missed_come_at_the_catch_up_rate(tmp_path: Path) -> None:
    async with Looping() as target, Process(tmp_path / "data") as timerd:
        misfire = {"grace": GRACE_S, "max_per_second": RATE}
        await timerd.put_type("loop", url=target.url, max_lag=0, misfire=misfire)
        at = millis(time.time() + 1)
        await timerd.arm([{"id": f"loop-{n}", "type": "loop", "fire_at": at + n} for n in range(LOOPS)])
        await target.until(lambda: len(target.ids) == LOOPS)
        timerd.kill()
        await timerd.wait()
        target.late.clear()
        await asyncio.sleep(DOWN_S)
        began = time.time()
        await timerd.start()
        await target.until(lambda: len(target.late) >= MISSED)
        took = time.time() - began
        print(f"{len(target.late)} missed turns in {took:.1f} s, {target.most_in(1.0)} in the fullest second")
        assert target.most_in(1.0) <= RATE + 1 + 2, "the rate, its burst of one, and requests that were under way"
        assert took > (MISSED - 2) / RATE
        await target.until(lambda: time.time() - target.late[-1] > STEP_MS / 1000)  # all are on time again
        assert (await timerd.stats("loop"))["live"] == LOOPS
        assert not timerd.complaints()
