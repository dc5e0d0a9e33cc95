"""What bodies cost in sixty days: bytes written to body files for each byte of a body that was accepted.

The shipped log, upkeep and node in this process, on real files and a virtual clock. Callbacks with bodies of 2 KB come
at a steady rate. Half of them are due within a day and half at any time in sixty days; a tenth is cancelled, and a
tenth is armed anew with another body, at some time before they are due. Small timers of another type churn beside
them. The first sixty days fill the service, the second are measured, as the disk sees them: every write to a body file
is counted, heads and copies among them.

Scaled down: a million live bodies lie in 128 segments of 16 MiB; here as many segments are smaller by as much as the
live bodies are fewer. Everything that upkeep decides about bodies, it decides in segments and in parts of what is live.
"""

import heapq
import logging
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

import structlog

from benchmarks.figure import Round
from benchmarks.server import Place
from timerd import boot
from timerd.engine.callback import CallbackRequest, encode_request
from timerd.engine.message import ArmDone
from timerd.engine.settings import Settings
from timerd.engine.timer import Timer, TimerType
from timerd.node import Node
from timerd.ports import Answer, Request
from timerd.virtual_clock import VirtualClock
from timerd_storage import body
from timerd_storage.disk import OsDisk
from timerd_storage.file_log import SEGMENT_BYTES, FileLog
from timerd_storage.memory_catalog import MemoryCatalog
from timerd_storage.worker import ThreadWorker

LIVE: Final = 1_000_000 // 64
SEGMENT: Final = SEGMENT_BYTES // 64
BODY_BYTES: Final = 2_000
DAY_MS: Final = 86_400_000
DAYS: Final = 60
STEP_MS: Final = DAY_MS // 24
MEAN_LIFE_DAYS: Final = (0.5 + DAYS / 2) / 2
CHURNED: Final = 500  # small timers, all armed anew at every step
CANCELLED, REPLACED = 0.1, 0.1
BEGIN_MS: Final = 1_796_000_000_000
KIND: Final = {"hook": "callback", "churn": "processor"}


class CountingDisk(OsDisk):
    """This machine's disk, and the bytes written to body files. It syncs nothing: nobody will ask for the data."""

    def __init__(self) -> None:
        super().__init__()
        self.body_bytes = 0
        self._bodies: set[int] = set()

    def open(self, path: Path, *, create: bool = False) -> int:
        file = super().open(path, create=create)
        (self._bodies.discard if body.number_of(path.name) is None else self._bodies.add)(file)
        return file

    def write(self, file: int, offset: int, data: bytes) -> None:
        super().write(file, offset, data)
        if file in self._bodies:
            self.body_bytes += len(data)

    def sync(self, file: int) -> None:
        """Not."""

    def sync_directory(self, path: Path) -> None:
        """Not."""


class Taken:
    """Answers 200 at once, whatever it is."""

    async def post(self, request: Request) -> Answer:
        return Answer(200)

    async def close(self) -> None:
        """Nothing to close."""


class Load:
    """What arrives, step by step, from a fixed seed."""

    def __init__(self, node: Node, clock: VirtualClock) -> None:
        self.accepted = 0
        self.payload_bytes = 0  # all have the same size
        self._node = node
        self._clock = clock
        self._random = random.Random(0)
        self._made = 0
        self._later: list[tuple[int, str, int | None]] = []  # what callers will do: (when, id, new fire time or none)

    async def step(self) -> None:
        """Everything of one step, by the clock as it stands."""
        now = self._clock.now().wall_ms
        armed: list[Timer] = []
        cancelled: list[str] = []
        for _ in range(round(LIVE / MEAN_LIFE_DAYS * STEP_MS / DAY_MS)):
            self._made += 1
            id = f"callback:{self._made:08d}"
            days = DAYS if self._random.random() < 0.5 else 1
            at = now + int(self._random.random() * days * DAY_MS)
            armed.append(self._callback(id, at))
            fate = self._random.random()
            if fate < CANCELLED + REPLACED:
                when = now + int(self._random.random() * (at - now))
                anew = when + int(self._random.random() * days * DAY_MS)
                heapq.heappush(self._later, (when, id, None if fate < CANCELLED else anew))
        while self._later and self._later[0][0] <= now:
            _, id, new = heapq.heappop(self._later)
            if new is None:
                cancelled.append(id)
            else:
                armed.append(self._callback(id, new))
        small = [Timer(now + 2 * STEP_MS, 0, f"churn:{n:06d}", "churn") for n in range(CHURNED)]
        for at in range(0, len(armed), 100):
            await self._arm(armed[at : at + 100])
        await self._arm(small)
        if cancelled:
            await self._node.cancel(cancelled, None)

    async def _arm(self, timers: list[Timer]) -> None:
        done = await self._node.arm(timers, None, False, None)
        assert isinstance(done, ArmDone), done

    def _callback(self, id: str, at: int) -> Timer:
        # Random bytes: no file system's compression makes it look better.
        request = CallbackRequest("POST", "http://127.0.0.1:9/", (), "body_base64", self._random.randbytes(BODY_BYTES))
        payload = encode_request(request)
        self.payload_bytes = len(payload)
        self.accepted += len(payload)
        return Timer(at, 0, id, "hook", payload)


async def run(place: Place) -> Round:
    """One round; it is the same every time, but for its duration."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    begin = time.perf_counter()
    directory = Path(tempfile.mkdtemp(prefix="timerd-bench-", dir=place.data))
    disk, worker, clock = CountingDisk(), ThreadWorker(), VirtualClock(BEGIN_MS)
    try:
        log = await FileLog.open(directory, disk, worker, SEGMENT)
        node = await boot.start(Settings(), log, MemoryCatalog(), clock, Taken(), random.Random(0).random)
        turner = node.turner(clock)
        for name, kind in KIND.items():
            await node.put_type(TimerType(name, "http://127.0.0.1:9/", kind), False, None)
        load = Load(node, clock)
        marks, ratios = [], []
        for day in range(2 * DAYS + 1):
            if day % DAYS == 0:
                tally = await node.tally()
                marks.append((disk.body_bytes, load.accepted, tally.bodies_accepted_bytes, tally.bodies_copied_bytes))
            for _ in range(DAY_MS // STEP_MS if day < 2 * DAYS else 0):
                await load.step()
                await turner.turn_to(clock.now().wall_ms + STEP_MS)
            if day >= DAYS:
                tally = await node.tally()
                ratios.append(log.usage().body_bytes / (tally.types["hook"].live * load.payload_bytes))
        live = tally.types["hook"].live
        segments = len(log.body_segments())
        await node.stop(0)
        await log.close()
    finally:
        await worker.close()
        shutil.rmtree(directory)
    _, first, second = marks
    written, accepted, told, copied = (after - before for after, before in zip(second, first, strict=True))
    assert told == accepted
    return {
        "60 days: live bodies": (live, "", 0.0),
        "60 days: segments of bodies": (segments, "", 0.0),
        "60 days: bodies accepted": (accepted / 1e6, "MB", 0.0),
        "60 days: written to body files, of that": (written / accepted, "x", 0.0),
        "60 days: copies alone, of that": (copied / accepted, "x", 0.0),
        "60 days: body files, of the live bodies, at most": (max(ratios), "x", 0.0),
        "60 days: took": (time.perf_counter() - begin, "s", 0.0),
    }
