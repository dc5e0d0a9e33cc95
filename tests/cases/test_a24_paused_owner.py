"""A24: the paused owner wakes up and goes on working.

A node that stood still past its lease went on where it had stopped, and ran or cleaned up on top of the new owner: who
owned was looked at before the pause, and not at the write (kagkarlsson/db-scheduler #402, d2iq-archive/marathon #1039,
temporalio/temporal PR #12016).

On one machine the owner of a data directory is the process that holds its lock, stopped or not. It loses it when it is
killed, or when somebody takes the lock file away and starts another one.
"""

import asyncio
import itertools
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from tests.support.cases import BUSY, each, millis, outside, seeded, sized
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

FROZEN_S = sized(40.0, 2.5)
"""Above every limit of time that is set here."""
TIMEOUT_S = 1.0
MAX_LAG_S = 0.5
FINISHED, OPEN, DUE, MEANWHILE, LATER = 100, 20, 200, 40, 50
SMALL = ("--segment-bytes", "65536")
CHURNED = 500
REFUSED_S = 5 * BUSY
EXIT_FAILED = 70
EXIT_LOCKED = 3


class Slowly:
    """Answers at once, but holds what is named `open` until it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> Answer:
        if any(id.startswith("open") for id in delivery.ids):
            await self.let_go.wait()
        return Answer()


async def arm_all(timerd: Process, due: dict[str, float], type: str = "t") -> None:
    await timerd.arm([{"id": id, "type": type, "fire_at": millis(at)} for id, at in due.items()])


async def ready(timerd: Process, processor: Processor) -> None:
    """Types, and timers that have been fired and recorded."""
    fields = {"max_lag": MAX_LAG_S, "request_timeout": TIMEOUT_S, "retry": {"min_backoff": "100ms"}}
    await timerd.put_type("t", url=processor.url, **fields)
    await timerd.put_type("open", url=processor.url, **{**fields, "max_lag": 0, "batch_size": 5, "max_in_flight": 16})
    await timerd.arm([{"id": f"finished-{n}", "type": "t", "delay": 0} for n in range(FINISHED)])

    async def all_fired() -> bool:
        return bool((await timerd.stats("t"))["fired"] == FINISHED)

    await timerd.until(all_fired)


async def open_some(timerd: Process, processor: Processor, prefix: str) -> set[str]:
    """Deliveries that are open."""
    ids = {f"{prefix}-{n}" for n in range(OPEN)}
    await timerd.arm([{"id": id, "type": "open", "delay": 0} for id in ids])
    await processor.until(lambda: processor.ids >= ids)
    return ids


async def compact(timerd: Process) -> None:
    """Arm the same ids until the first segment of now is gone."""
    first = min(timerd.data.glob("*.log"))
    async with asyncio.timeout(60):
        for n in itertools.count():
            churned = [{"id": f"churn-{i}", "type": "t", "delay": 3_600 + n} for i in range(CHURNED)]
            await timerd.arm(churned)
            if not first.exists():
                return


async def is_refused(process: Process, holder: Process) -> None:
    begin = time.monotonic()
    lines = len(process.stderr)
    started = await process.spawn()
    assert await process.wait(REFUSED_S) == EXIT_LOCKED
    assert time.monotonic() - begin < REFUSED_S
    assert not await started
    said = "".join(process.stderr[lines:])
    assert str(process.data) in said
    assert f"process {holder.pid} on " in said, said


async def it_goes_on_and_is_killed_the_next_time(directory: Path) -> None:
    slowly = Slowly()
    first, second = Process(directory / "data", *SMALL), Process(directory / "data", *SMALL)
    async with Processor(slowly) as processor, first, AsyncExitStack() as stack:
        stack.push_async_exit(second.__aexit__)
        await ready(first, processor)
        begin = time.time()
        due = {f"due-{n}": millis(begin + 1 + FROZEN_S * n / DUE) / 1000 for n in range(DUE)}
        later = {f"later-{n}": millis(begin + FROZEN_S + 3) / 1000 for n in range(LATER)}
        await arm_all(first, due | later)
        opened = await open_some(first, processor, "open")
        first.signal(signal.SIGSTOP)
        slowly.let_go.set()
        arming = {id: asyncio.create_task(arm_all(first, {id: begin + FROZEN_S + 2})) for id in
                  [f"meanwhile-{n}" for n in range(MEANWHILE)]}  # fmt: skip
        await is_refused(second, first)
        await asyncio.sleep(max(0.0, begin + FROZEN_S - time.time()))
        first.signal(signal.SIGCONT)
        resumed = time.time()
        armed = {id for id, task in arming.items() if not (await asyncio.gather(task, return_exceptions=True))[0]}
        await compact(first)
        await processor.until(lambda: processor.ids >= due.keys() | later.keys() | armed)
        wrong = outside(processor, due | later, max_lag_s=MAX_LAG_S, since=resumed)
        assert not wrong
        churned = {f"churn-{n}" for n in range(CHURNED)}
        finished = {f"finished-{n}" for n in range(FINISHED)}

        async def only_churn_lives() -> bool:
            return {timer["id"] for timer in await first.list()} == churned

        await first.until(only_churn_lives)
        assert {id for id, count in processor.counts.items() if count > 1} <= opened, "finished, and delivered again"
        assert not first.complaints()

        # The next time it never goes on, and the other one takes the directory over.
        slowly.let_go.clear()
        before = processor.counts
        at = time.time() + 1
        due = {f"second-{n}": millis(at) / 1000 for n in range(DUE)}
        await arm_all(first, due)
        opened = await open_some(first, processor, "open-again")
        first.signal(signal.SIGSTOP)
        await is_refused(second, first)
        first.kill()
        await first.wait()
        killed = time.time()
        slowly.let_go.set()
        await second.start()
        started = time.time()
        await processor.until(lambda: processor.ids >= due.keys() and all(processor.counts[id] >= 2 for id in opened))
        assert not outside(processor, due, max_lag_s=MAX_LAG_S, since=started)
        assert all(processor.counts[id] == count for id, count in before.items()), "finished, and delivered again"
        # It may deliver before its ready line has been read here.
        repeats = [timer for delivery, timer in processor.timers() if timer["id"] in opened and delivery.at >= killed]
        assert repeats
        assert all(timer["possible_duplicate"] for timer in repeats)
        await second.until(lambda: only_these_live(second, churned))
        assert finished <= processor.ids
        assert not second.complaints()


async def only_these_live(timerd: Process, ids: set[str]) -> bool:
    return {timer["id"] for timer in await timerd.list()} == ids


async def its_lock_file_was_taken_away(directory: Path) -> None:
    slowly = Slowly()
    first, second = Process(directory / "data", *SMALL), Process(directory / "data", *SMALL)
    async with Processor(slowly) as processor, first, AsyncExitStack() as stack:
        stack.push_async_exit(second.__aexit__)
        await ready(first, processor)
        begin = time.time()
        due = {f"due-{n}": millis(begin + 1 + n / DUE) / 1000 for n in range(DUE)}
        await arm_all(first, due)
        opened = await open_some(first, processor, "open")
        first.signal(signal.SIGSTOP)
        slowly.let_go.set()
        arming = [asyncio.create_task(arm_all(first, {f"meanwhile-{n}": begin + 2})) for n in range(MEANWHILE)]
        (first.data / "lock").unlink()
        await second.start()
        await processor.until(lambda: processor.ids >= due.keys())

        async def all_done() -> bool:
            return await only_these_live(second, set())

        await second.until(all_done)
        await compact(second)
        counts = processor.counts
        first.signal(signal.SIGCONT)
        assert await first.wait(10 * BUSY) == EXIT_FAILED
        assert "the lock file was" in "".join(first.stderr + first.log)
        answers = await asyncio.gather(*arming, return_exceptions=True)
        assert all(isinstance(answer, (aiohttp.ClientError, AssertionError)) for answer in answers), "armed by nobody"
        assert processor.counts == counts, "it went on delivering"
        assert {id for id, count in counts.items() if count > 1} <= opened

        # What the other one has is whole.
        churned = {f"churn-{n}" for n in range(CHURNED)}
        await compact(second)
        await second.kill_and_start()
        assert await only_these_live(second, churned)
        assert not second.complaints()
        (second.data / "lock").unlink()  # and without a pause
        assert await second.wait(10 * BUSY) == EXIT_FAILED
        await second.start()
        assert await only_these_live(second, churned)


STORIES = {"goes on": it_goes_on_and_is_killed_the_next_time, "lock gone": its_lock_file_was_taken_away}


@pytest.mark.slow
async def test_an_owner_that_stood_still_knows_what_it_owns(tmp_path: Path) -> None:
    seeded()

    async def run(name: str) -> None:
        directory = tmp_path / name.replace(" ", "-")
        directory.mkdir()
        await STORIES[name](directory)

    await each(run, STORIES)
