"""The soak's two ways of going round: a target whose answers arm again, and a caller whose calls do.

Nineteen of twenty deliveries are armed again by the answer; the others are answered as done, and the caller arms them.
The caller also moves timers that wait. Both tell the judge.
"""

import asyncio
import random
import time
from datetime import datetime
from typing import Final

import msgspec

from tests.load.chains import Chains
from tests.load.target import Batch
from tests.load.wire import TYPE, Pool, request

ANSWERED: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
DONE_SHARE: Final = 0.05
MOVES_A_SECOND: Final = 1_000
MOVE_AHEAD_MS: Final = 5_000  # a timer that is nearly due is left alone
REQUEST: Final = 500
TICK_S: Final = 0.1
PACKED: Final = b"Accept: application/msgpack\r\n"


class Item(msgspec.Struct, gc=False):
    """One result of an arm."""

    id: str
    status: str
    generation: int


class Armed(msgspec.Struct):
    """The answer to an arm."""

    results: list[Item]


class Rounds:
    """The target."""

    def __init__(self, chains: Chains, interval_ms: int, rng: random.Random) -> None:
        self.delay_s = 0.0
        self.fired = 0
        self.lags_ms: list[float] = []
        """Since the reader took them."""
        self.done: list[int] = []
        """Answered as done: to be armed by a call."""
        self.done_share = DONE_SHARE
        self._chains = chains
        self._interval_ms = interval_ms
        self._rng = rng
        self._decode = msgspec.json.Decoder(Batch).decode

    def next_at(self, now: int) -> int:
        """When a timer is to fire next: about an interval from now."""
        return now + int(self._interval_ms * (0.9 + 0.2 * self._rng.random()))

    def answer(self, body: bytes) -> bytes:
        timers = self._decode(body).timers
        now = time.time_ns() // 1_000_000
        deliver = self._chains.deliver
        again = []
        for timer in timers:
            n = int(timer.id)
            fire_at = ms(timer.fire_at)
            if not deliver(n, timer.generation, fire_at, timer.possible_duplicate, now):
                continue
            if not timer.possible_duplicate:
                self.lags_ms.append(now - max(fire_at, timer.generation // 1000))
            if self._rng.random() < self.done_share:
                self._chains.answer(n, 0)
                self.done.append(n)
                continue
            at = self.next_at(now)
            self._chains.answer(n, at)
            again.append(b'{"id":"%d","status":"rearm","fire_at":%d}' % (n, at))
        self.fired += len(timers)
        answer = b'{"results":[%s]}' % b",".join(again)
        return ANSWERED % len(answer) + answer


class Caller:
    """Arms by calls, again and again until each is acknowledged."""

    def __init__(self, port: int, chains: Chains, rounds: Rounds, rng: random.Random) -> None:
        self.port = port
        self.moving = False
        self.acknowledged = 0
        self.refused = 0
        self.broken = 0
        """Calls of which nobody knows what became; they were made again."""
        self._chains = chains
        self._rounds = rounds
        self._rng = rng
        self._pool = Pool(port, 64)
        self._busy: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._decode = msgspec.msgpack.Decoder(Armed).decode

    @property
    def idle(self) -> bool:
        """Whether nothing waits for an acknowledgement."""
        return not self._tasks and not self._rounds.done

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            ids, self._rounds.done[:] = self._rounds.done[:REQUEST], self._rounds.done[REQUEST:]
            ids = [n for n in ids if n not in self._busy]
            if self.moving:
                now = time.time_ns() // 1_000_000
                for n in self._rng.sample(range(self._chains.count), round(MOVES_A_SECOND * TICK_S)):
                    if self._chains.next_at(n) > now + MOVE_AHEAD_MS and n not in self._busy:
                        ids.append(n)
            if ids := list(dict.fromkeys(ids)):
                task = asyncio.get_running_loop().create_task(self.arm(ids))
                self._tasks.add(task)
                task.add_done_callback(self._done)

    async def arm(self, ids: list[int], fire_ats: list[int] | None = None) -> None:
        """Arm these, until it is acknowledged."""
        now = time.time_ns() // 1_000_000
        fire_ats = fire_ats or [self._rounds.next_at(now) for _ in ids]
        timers = [{"id": str(n), "type": TYPE, "fire_at": at} for n, at in zip(ids, fire_ats, strict=True)]
        data = request("POST", "/v1/timers", msgspec.msgpack.encode({"timers": timers}), PACKED, b"msgpack")
        self._busy.update(ids)
        for n, at in zip(ids, fire_ats, strict=True):
            self._chains.call(n, at)
        while True:
            reply = await self._pool.ask(data, 30)
            if reply is not None and reply.taken:
                break
            if reply is not None and reply.status > 0:
                assert reply.status in (503, 507), reply
                self.refused += 1
            else:
                self.broken += 1
            await asyncio.sleep(0.2 + self._rng.random())
        now = time.time_ns() // 1_000_000
        for n, at, result in zip(ids, fire_ats, self._decode(reply.body).results, strict=True):
            self._chains.acknowledge(n, result.generation, at, now)
        self.acknowledged += len(ids)
        self._busy.difference_update(ids)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._pool.close()

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()


def ms(text: str) -> int:
    """Unix ms of a time as timerd writes it."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)
