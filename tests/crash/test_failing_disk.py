"""A disk that says no: failed and short writes, failed and slow syncs. What was acknowledged is there after a start.

A preload library (tests/support/disk_shim.c) fails the calls. A sync that fails leaves what it was for in doubt, as
Linux does: whatever it has not covered is taken back, in part or in whole, before the next start.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from tests.crash.load import Load
from tests.support.cases import FULL, millis, sized
from tests.support.disk_shim import APPEND, DiskShim
from tests.support.process import Process
from tests.support.processor import Processor

EXIT_FAILED = 70
LOADED_S = 0.4
LATE_S = 10.0  # much more than a machine that has nothing else to do needs
ENDS_S = 20
SEED = 5
SLOW_S = sized(2.0, 1.0)


class Rig:
    """A process on the shim, under the load of the kill rounds."""

    def __init__(self, directory: Path) -> None:
        self.rng = Random(SEED)
        self.disk = DiskShim(directory, undo=True)
        self.timerd = Process(directory / "data", "--segment-bytes", str(1 << 20), env=self.disk.env)
        self.load = Load(self.timerd, self.rng)

    async def check_after_power_cut(self) -> None:
        """What no sync has covered goes; everything acknowledged is there at the next start."""
        await self.timerd.wait()
        self.disk.clear()
        self.disk.cut_power(self.timerd.data, self.rng)
        await self.timerd.start()
        self.load.book.settle({timer["id"]: timer for timer in await self.timerd.list()})
        assert not self.load.book.wrong
        assert self.load.book.counts["arms"] > 100


@asynccontextmanager
async def loaded(directory: Path) -> AsyncIterator[tuple[Rig, asyncio.Task[None]]]:
    rig = Rig(directory)
    async with Processor(rig.load.answer) as processor, rig.timerd:
        await rig.load.put_types(processor.url)
        calling = asyncio.create_task(rig.load.until_killed())
        await asyncio.sleep(LOADED_S)
        yield rig, calling


FAILURES = [("sync", "eio"), ("write", "eio"), ("write", "enospc")]


@pytest.mark.slow
@pytest.mark.parametrize(("call", "action"), FAILURES if FULL else FAILURES[:1])
async def test_a_failed_sync_or_write_ends_the_process_and_is_not_repeated(
    tmp_path: Path, call: str, action: str
) -> None:
    async with loaded(tmp_path) as (rig, calling):
        rig.disk.order("write", ".log", "short", times=20)  # which is no failure: the rest is written next
        await until_struck(rig.disk, 20)
        rig.disk.order(call, ".log", action, last_write_max=APPEND)  # once: a second attempt would succeed
        assert await rig.timerd.wait(ENDS_S) == EXIT_FAILED
        await calling
        assert "the log failed" in rig.timerd.stderr[-1]
        seen = rig.disk.seen()
        last = max(n for n, line in enumerate(seen) if line.startswith("fault"))
        assert seen[last].startswith(f"fault {call}")
        segment = seen[last].split()[-1]
        assert not [line for line in seen[last + 1 :] if line.endswith(segment)], "touched after the failure"

        # The next start finds the disk no better; the one after it does.
        rig.disk.order("sync", ".log", "eio")
        assert not await (await rig.timerd.spawn())
        assert await rig.timerd.wait(ENDS_S) == EXIT_FAILED
        assert "Traceback" not in "".join(rig.timerd.stderr)
        await rig.check_after_power_cut()


async def until_struck(disk: DiskShim, times: int) -> None:
    async with asyncio.timeout(ENDS_S):
        while disk.struck() < times:
            await asyncio.sleep(0.02)


ELSEWHERE = {
    "a body's sync": ("sync", ".bodies", -1),
    "a body's write": ("write", ".bodies", -1),
    "a directory's sync": ("sync", "dir", -1),
    "a spare's sync or an append's": ("sync", ".log", -1),
    "a spare's write or an append's": ("write", ".log", -1),
}


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="TIMERD_CASES=full")
@pytest.mark.parametrize("where", ELSEWHERE)
async def test_a_failure_elsewhere_ends_the_process_or_does_no_harm(tmp_path: Path, where: str) -> None:
    async with loaded(tmp_path) as (rig, calling):
        call, name, last_write_max = ELSEWHERE[where]
        rig.disk.order(call, name, "eio", times=2, last_write_max=last_write_max)
        ended = asyncio.create_task(rig.timerd.wait())
        began = time.monotonic()
        while not ended.done() and (rig.disk.struck() < 2 or time.monotonic() - began < 2 * LOADED_S):
            await asyncio.wait([ended], timeout=0.1)
            assert time.monotonic() - began < ENDS_S, "nothing of that kind was done"
        rig.timerd.kill()
        assert await ended in (EXIT_FAILED, -9)
        await calling
        await rig.check_after_power_cut()


@pytest.mark.slow
async def test_a_slow_sync_holds_answers_back_and_loses_nothing(tmp_path: Path) -> None:
    disk = DiskShim(tmp_path, undo=True)
    async with Processor() as processor, Process(tmp_path / "data", env=disk.env) as timerd:
        await timerd.put_type("t", url=processor.url)
        await timerd.arm([{"id": "before", "type": "t", "delay": "1h"}])
        due = {f"due-{n}": millis(time.time()) + 300 + 100 * n for n in range(10)}
        await timerd.arm([{"id": id, "type": "t", "fire_at": at} for id, at in due.items()])
        disk.order("sync", ".log", "slow", ms=int(SLOW_S * 1000), last_write_max=APPEND)
        began = time.monotonic()
        arming = asyncio.create_task(timerd.arm([{"id": "slow", "type": "t", "delay": "1h"}]))
        status, _ = await timerd.request("GET", "/healthz")
        assert status == 200
        assert not arming.done(), "acknowledged before its sync has returned"
        await arming
        assert time.monotonic() - began >= SLOW_S, "acknowledged before its sync has returned"
        await processor.until(lambda: processor.ids == due.keys())
        for delivery in processor.deliveries:
            for id in delivery.ids:
                assert 0 <= delivery.at - due[id] / 1000 < SLOW_S + LATE_S, id

        # And a kill in the middle of one: what was not acknowledged is gone or whole, the rest is there.
        disk.order("sync", ".log", "slow", ms=60_000, last_write_max=APPEND)
        arming = asyncio.create_task(timerd.arm([{"id": "never", "type": "t", "delay": "1h"}]))
        async with asyncio.timeout(ENDS_S):
            while not disk.unsynced():
                await asyncio.sleep(0.01)
        assert not arming.done()
        timerd.kill()
        await asyncio.gather(arming, return_exceptions=True)
        await timerd.wait()
        disk.clear()
        disk.cut_power(timerd.data, Random(SEED))
        await timerd.start()
        assert {"before", "slow"} <= {timer["id"] for timer in await timerd.list()} <= {"before", "slow", "never"}
        assert not timerd.complaints()


@pytest.mark.slow
async def test_a_catalogue_that_can_not_be_stored_is_refused_and_the_process_goes_on(tmp_path: Path) -> None:
    disk = DiskShim(tmp_path)
    async with Process(tmp_path / "data", env=disk.env) as timerd:
        for n, name in enumerate(("sqlite-journal", "catalog.sqlite")):
            disk.order("sync", name, "eio")
            status, answer = await timerd.request("PUT", f"/v1/types/t{n}", {"url": "http://127.0.0.1:9/"})
            assert disk.struck() == n + 1
            assert status == 507, answer
            status, answer = await timerd.request("PUT", f"/v1/types/t{n}", {"url": "http://127.0.0.1:9/"})
            assert status == 201, answer
        await timerd.kill_and_start()
        _, answer = await timerd.request("GET", "/v1/types")
        assert [type["name"] for type in answer["types"]] == ["t0", "t1"]
