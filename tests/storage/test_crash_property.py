"""Random work, random crashes: what was acknowledged is there, in order, and nothing is invented."""

import asyncio
import errno
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.sim.disk import FakeDisk, InlineWorker, ProcessEnded
from tests.storage.laid import HOME, armed, plain
from timerd.engine.errors import LogFailed
from timerd.engine.timer import BodyRef
from timerd.ports import Frame
from timerd_storage.file_log import FileLog

SHARDS = 3


class History:
    """What a log was told, what it acknowledged, and what it may therefore hold."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = FakeDisk()
        self.acknowledged: list[Frame] = []
        self.open: list[Frame] = []  # of the append whose outcome is not known
        self.bodies: dict[BodyRef, bytes] = {}  # acknowledged by the append that followed
        self.trimmed: dict[int, int] = {}  # shard -> all lsns before this one may be gone
        self.crashes = 0
        self.appending = False

    async def live(self) -> None:
        """One process: replay, check, work, and end in one of several ways."""
        worker = InlineWorker()
        log = await FileLog.open(HOME, self.disk, worker, self.random.choice([8192, 16_384, 40_000]))
        found = [frame async for frame in log.replay()]
        self.check(found)
        self.acknowledged, self.open = found, []
        await log.check_bodies(list(self.bodies))
        assert await log.read_bodies(list(self.bodies)) == list(self.bodies.values())
        self.disk.on_call = self.trap()
        with suppress(ProcessEnded, LogFailed):
            for _ in range(self.random.randint(0, 25)):
                await self.work(log)
            if self.random.random() < 0.3:
                await log.close()
        await self.crash(worker)

    async def crash(self, worker: InlineWorker) -> None:
        """The process is gone, with its tasks; the disk keeps what it keeps."""
        worker.kill()
        self.disk.on_call = None
        self.appending = False
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.random.random() < 0.5:
            self.disk.kill()  # what the cache holds will be lost in a power cut to come
        else:
            self.disk.crash(self.random)
        self.crashes += 1

    async def work(self, log: FileLog) -> None:
        kind = self.random.random()
        if kind < 0.1 and self.acknowledged:
            for shard in range(SHARDS):
                needed = self.next_lsn(shard) - self.random.randint(0, 3)
                self.trimmed[shard] = max(needed, self.trimmed.get(shard, 0))
            await log.trim(self.trimmed)
        elif kind < 0.2:
            await asyncio.sleep(0)
            await log.grant(self.random.randint(0, 5000), self.random.randint(0, 20_000))
            await asyncio.sleep(0)
        else:
            await self.append(log)

    async def append(self, log: FileLog) -> None:
        payloads = [self.random.randbytes(self.random.randint(0, 3000)) for _ in range(self.random.randint(0, 2))]
        places = log.place_bodies(0, [(f"body-{n}", payload) for n, payload in enumerate(payloads)])
        size = self.random.choice([1, 1, 5, 60, 200, 400])
        shards = self.random.sample(range(SHARDS), self.random.randint(1, SHARDS))
        self.open = [armed(shard, self.next_lsn(shard), size) for shard in shards]
        self.appending = True
        await log.append(self.open)
        self.appending = False
        self.acknowledged += self.open
        self.open = []
        self.bodies.update(zip(places, payloads, strict=True))

    def next_lsn(self, shard: int) -> int:
        held = max((frame.lsn for frame in self.acknowledged if frame.shard == shard), default=0)
        return max(held + 1, self.trimmed.get(shard, 1))

    def trap(self) -> Any:
        """Once in a while a verb ends the process, or fails: any verb, or one of an append, so that writes are torn."""
        of_appends = self.random.random() < 0.5
        left = self.random.randint(1, 40 if of_appends else 300)
        cut = self.random.random() < 0.7

        def on_call(verb: str, path: object) -> None:
            nonlocal left
            if of_appends and not self.appending:
                return
            left -= 1
            if left == 0 and cut:
                raise ProcessEnded
            if left == 0 and verb in ("write", "sync", "sync_directory"):
                raise OSError(errno.EIO, "planted")

        return on_call

    def check(self, found: list[Frame]) -> None:
        """All that was acknowledged and not trimmed, then a prefix of the append that was not, and no more."""
        kept = plain(found)
        known = plain(self.acknowledged)
        start = known.index(kept[0]) if kept and kept[0] in known else (len(known) if not known or not kept else None)
        assert start is not None or kept[0] in plain(self.open), "a frame that nobody wrote"
        gone = known if start is None else known[:start]
        for shard, lsn, _ in gone:
            assert lsn < self.trimmed.get(shard, 0), f"shard {shard}: lsn {lsn} was acknowledged and is missing"
        rest = kept if start is None else kept[len(known) - start :]
        if start is not None:
            assert kept[: len(known) - start] == known[start:]
        assert rest == plain(self.open)[: len(rest)]


def run(work: Coroutine[Any, Any, None]) -> None:
    async def quietly() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # tasks end with their process
        await work

    asyncio.run(quietly())


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(min_value=0, max_value=2**32))
def test_what_was_acknowledged_is_there_after_any_crash(seed: int) -> None:
    history = History(seed)

    async def lives() -> None:
        for _ in range(8):
            await history.live()

    run(lives())
    note(f"seed {seed}: {history.crashes} crashes, {len(history.acknowledged)} frames")


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(min_value=0, max_value=2**32))
def test_a_crash_in_the_middle_of_recovery_changes_nothing(seed: int) -> None:
    history = History(seed)

    async def lives() -> None:
        for _ in range(3):
            await history.live()
            for _ in range(6):
                worker = InlineWorker()
                history.disk.on_call = history.trap()
                with suppress(ProcessEnded, LogFailed, OSError):
                    log = await FileLog.open(HOME, history.disk, worker, 8192)
                    history.check([frame async for frame in log.replay()])
                await history.crash(worker)

    run(lives())
    note(f"seed {seed}")
