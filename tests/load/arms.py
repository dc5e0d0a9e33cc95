"""Arms at a fixed rate, whatever becomes of them: an open loop, as many callers who do not know of each other make.

Each request arms timers whose ids are the next serial numbers, due in a few seconds; what was acknowledged is kept, for
the judge. A `Mover` beside it moves far timers to and fro: load that leaves nothing behind.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from typing import Final

from tests.load.wire import MINIMAL, TYPE, Pool, Reply, request

TICK_S: Final = 0.01
AHEAD_MS: Final = (1_000, 3_000)
ANSWER_S_MAX: Final = 20.0  # a patient caller
STORM_ANSWER_S: Final = 1.0  # one that is not
STORM_TRIES_S: Final = 60.0  # what it can't get done in a minute it gives up
HOUR_MS: Final = 3_600_000


class Told:
    """What callers were told since somebody last looked."""

    def __init__(self) -> None:
        self.taken = 0
        """Timers."""
        self.refused = 0
        """Timers, by 503, 429 and 507."""
        self.requests = Counter[int]()
        """By status."""
        self.bare_refusals = 0
        """503 and 429 that did not say when to come back."""
        self.took_s: list[float] = []
        self.unsent = 0
        """Timers of requests for which every connection was busy."""

    def note(self, reply: Reply, timers: int, took_s: float) -> None:
        self.requests[reply.status] += 1
        if reply.taken:
            self.taken += timers
            self.took_s.append(took_s)
        elif reply.status in (503, 429, 507):
            self.refused += timers
            self.bare_refusals += reply.status != 507 and not reply.retry_after


class Arms:
    """Arms `rate` timers a second, in requests of `batch`."""

    def __init__(self, port: int, connections: int, batch: int, told: Told, rng: random.Random) -> None:
        self.pool = Pool(port, connections)
        self.rate = 0.0
        self.storming = False
        """Callers that wait for a second and then ask again at once, whatever the answer was."""
        self.acknowledged: list[tuple[int, int]] = []
        """[first, end) of serial numbers."""
        self.due = Counter[int]()
        """By Unix second: what was acknowledged to be due then."""
        self.told = told
        self.batch = batch
        self._rng = rng
        self._next = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until cancelled."""
        owed = 0.0
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            owed += self.rate * min(now - last, 1.0)
            last = now
            while owed >= self.batch:
                owed -= self.batch
                task = asyncio.get_running_loop().create_task(self._arm())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def settle(self, seconds: float) -> None:
        """Begin nothing more, and wait for what is under way."""
        self.rate = 0.0
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        self.pool.close()

    async def _arm(self) -> None:
        first, end = self._next, self._next + self.batch
        self._next = end
        due_ms = time.time_ns() // 1_000_000 + self._rng.randrange(*AHEAD_MS)
        data = request("POST", "/v1/timers", _items([b"%d" % n for n in range(first, end)], due_ms), MINIMAL)
        begin = time.perf_counter()
        while True:
            asked = time.perf_counter()
            reply = await self.pool.ask(data, STORM_ANSWER_S if self.storming else ANSWER_S_MAX)
            if reply is None:
                self.told.unsent += end - first
                return
            self.told.note(reply, end - first, time.perf_counter() - asked)
            if reply.taken:
                self.acknowledged.append((first, end))
                self.due[max(due_ms // 1000, int(time.time()))] += end - first
                return
            if not self.storming or time.perf_counter() - begin > STORM_TRIES_S:
                return
            await asyncio.sleep(0)  # at once, but let others be heard


class Mover:
    """Far timers that are moved an hour to and fro: twice the requests are made beforehand, so it costs little."""

    def __init__(self, port: int, count: int, batch: int, connections: int, told: Told) -> None:
        self.pool = Pool(port, connections)
        self.rate = 0.0
        self.batch = batch
        self.told = told
        begin = time.time_ns() // 1_000_000
        parts = [[b"far:%d" % n for n in range(at, min(at + batch, count))] for at in range(0, count, batch)]
        self._ways = [
            [
                request("POST", "/v1/timers", _items(ids, begin + hours * HOUR_MS + n), MINIMAL)
                for n, ids in enumerate(parts)
            ]
            for hours in (2, 3)
        ]
        self._waiting: Iterator[bytes] = cycle(self._ways[1] + self._ways[0])
        self._tasks: set[asyncio.Task[None]] = set()

    async def lay(self) -> None:
        """Arm them all, and move them to and fro: the due queue keeps stale entries, and has as many as it may then."""
        for data in self._ways[0] + self._ways[1] + self._ways[0]:
            reply = await self.pool.ask(data, 60)
            assert reply is not None, "every connection is busy"
            assert reply.taken, reply

    async def run(self) -> None:
        """Until cancelled."""
        owed = 0.0
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            owed = min(owed + self.rate * (now - last), self.rate)
            last = now
            while owed >= self.batch:
                owed -= self.batch
                task = asyncio.get_running_loop().create_task(self._move())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.pool.close()

    async def _move(self) -> None:
        asked = time.perf_counter()
        reply = await self.pool.ask(next(self._waiting), ANSWER_S_MAX)
        if reply is None:
            self.told.unsent += self.batch
        else:
            self.told.note(reply, self.batch, time.perf_counter() - asked)


def _items(ids: list[bytes], due_ms: int) -> bytes:
    tail = b'","type":"%s","fire_at":%d}' % (TYPE.encode(), due_ms)
    return b'{"timers":[{"id":"' + (tail + b',{"id":"').join(ids) + tail + b"]}"
