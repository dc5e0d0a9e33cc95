"""SIGSTOP and SIGCONT with timers due meanwhile and deliveries open: late by as much as it stood still, and no more.

What a target answered meanwhile is there when it goes on and counts, once, also when the time for the answer has run
out by then: nobody was there to look.
"""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.support.cases import FULL, millis, sized
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

LATE_S = 10.0  # much more than a machine that has nothing else to do needs
FROZEN_S = sized(6.0, 2.0)
ANSWER_S = 0.4
OPEN, DUE, FAR = 40, 200, 50
BATCH = 5
SLOTS = OPEN // BATCH


@pytest.mark.slow
@pytest.mark.parametrize("timeout_s", [1.0, 60.0] if FULL else [1.0])
async def test_a_process_that_stood_still_goes_on(tmp_path: Path, timeout_s: float) -> None:
    gate = asyncio.Event()

    async def answer(delivery: Delivery) -> Answer:
        if not gate.is_set():
            await gate.wait()
            await asyncio.sleep(ANSWER_S)
        return Answer()

    async with Processor(answer) as processor, Process(tmp_path / "data") as timerd:
        fields = {"max_lag": 0, "batch_size": BATCH, "max_in_flight": SLOTS, "request_timeout": timeout_s}
        await timerd.put_type("open", url=processor.url, **fields)
        await timerd.put_type("t", url=processor.url, max_lag=0)
        begin = time.time()
        due = {f"due-{n}": millis(begin + 1 + FROZEN_S * n / DUE) for n in range(DUE)}
        far = {f"far-{n}" for n in range(FAR)}
        await timerd.arm([{"id": id, "type": "t", "fire_at": at} for id, at in due.items()])
        await timerd.arm([{"id": id, "type": "t", "delay": "1h"} for id in far])
        opened = {f"open-{n}" for n in range(OPEN)}
        await timerd.arm([{"id": id, "type": "open", "delay": 0} for id in opened])
        await processor.until(lambda: processor.ids >= opened)
        timerd.signal(signal.SIGSTOP)
        stopped = time.time()
        gate.set()  # all of them are answered while it stands still
        arming = asyncio.create_task(timerd.arm([{"id": "meanwhile", "type": "t", "delay": "1h"}]))
        await asyncio.sleep(FROZEN_S)
        before = len(processor.deliveries)
        assert not arming.done()
        timerd.signal(signal.SIGCONT)
        resumed = time.time()
        await arming
        await processor.until(lambda: processor.ids >= due.keys())

        async def nothing_is_open() -> bool:
            return bool((await timerd.stats("open"))["live"] == 0)

        await timerd.until(nothing_is_open)
        assert {timer["id"] for timer in await timerd.list()} == far | {"meanwhile"}
        assert processor.counts == dict.fromkeys(opened | due.keys(), 1)
        assert not any(timer.get("possible_duplicate") for _, timer in processor.timers())
        lates = []
        for n, delivery in enumerate(processor.deliveries):
            assert n < before or delivery.at >= resumed or delivery.at < stopped
            for id in delivery.ids:
                if id in due:
                    assert delivery.at * 1000 >= due[id], f"{id} is early"
                    lates.append(delivery.at - max(due[id] / 1000, resumed if due[id] / 1000 > stopped else 0))
        print(f"worst lag behind the due time or the resumption {max(lates):.2f} s")
        assert max(lates) < LATE_S
        assert not timerd.complaints()
