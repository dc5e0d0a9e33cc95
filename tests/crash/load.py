"""The load of the kill rounds: what is asked of the process until its connections break, and what is answered to it.

Arms in batches and singly, over several connections; moves of far timers; re-arms in answers; cancels of far timers
and of some that are nearly due; payloads that lie in the frame and such that lie apart; several types. It tells the
book, and judges nothing.
"""

import asyncio
import time
from collections.abc import Coroutine
from random import Random
from typing import Any

import aiohttp

from tests.crash.book import CANCELLED, Book, Version
from tests.support.cases import chunks, millis
from tests.support.process import Process
from tests.support.processor import Answer, Delivery

TYPES: dict[str, dict[str, Any]] = {
    "bulk": {"batch_size": 100, "max_lag": "50ms"},
    "large": {"batch_size": 1000, "max_lag": "300ms"},
    "single": {"batch_size": 1, "max_lag": 0, "max_in_flight": 64},
}
RETRY = {"min_backoff": "100ms", "max_backoff": "500ms"}
PADS = (None, 0, 300, 600, 2_500)
FAR = 3_000
ALONE = 1_000
CHAINS = 200
BATCHERS, SINGLES = 3, 4
BATCH = 200
CANCELS = 20
REFUSED = (503, 507)  # no room, as a whole: nothing of it was done
REFUSED_PAUSE_S = 0.02
HOUR_MS = 3_600_000


class Load:
    """One process's. `closing`: what comes is answered, and nothing is armed again. `refused`: for want of room."""

    def __init__(self, timerd: Process, rng: Random) -> None:
        self.timerd = timerd
        self.book = Book()
        self.closing = False
        self.refused = 0
        self._rng = rng
        self._serial = 0

    async def put_types(self, url: str) -> None:
        """The types that everything is of."""
        for name, fields in TYPES.items():
            await self.timerd.put_type(name, url=url, retry=RETRY, **fields)

    # ---- the processor's side

    async def answer(self, delivery: Delivery) -> Answer:
        """Take some time, so that batches are open at any moment."""
        results: list[dict[str, Any]] = []
        for timer in delivery.body["timers"]:
            id = timer["id"]
            retry = timer["attempt"] == 1 and not id.startswith("chain") and self._rng.random() < 0.05
            self.book.receive(delivery, timer, done=not retry)
            if retry:
                results.append({"id": id, "status": "retry"})
            elif id.startswith("chain"):
                results.append(self._next_link(id, timer["payload"]["n"]))
        await asyncio.sleep(self._rng.random() * (0.03 if delivery.body["type"] == "single" else 0.3))
        return Answer(body={"results": results})

    def _next_link(self, id: str, n: int) -> dict[str, Any]:
        self.book.link(id, n)
        if self.closing:
            return {"id": id, "status": "ok"}
        payload = {"n": n + 1, "pad": "r" * self._rng.choice((0, 100, 700))}
        return {"id": id, "status": "rearm", "delay": self._rng.uniform(0.1, 0.8), "payload": payload}

    # ---- the callers' side

    async def until_killed(self) -> None:
        """All callers, until their connections break. What is wrong in an answer is raised."""
        await asyncio.gather(
            *(self._caller(self._batches(n)) for n in range(BATCHERS)),
            *(self._caller(self._singles(n)) for n in range(SINGLES)),
            self._caller(self._cancels()),
        )

    async def close(self) -> None:
        """Make everything due that is there."""
        self.closing = True
        left = [timer for timer in await self.timerd.list() if not timer["id"].startswith("chain")]
        now = millis(time.time())
        for part in chunks(left, 1_000):
            await self._arm([{"id": timer["id"], "type": timer["type"], "fire_at": now} for timer in part])

    async def _caller(self, endless: Coroutine[Any, Any, None]) -> None:
        try:
            await endless
        except (aiohttp.ClientError, OSError):
            return

    async def _batches(self, worker: int) -> None:
        while True:
            far = self._rng.sample(range(worker, FAR, BATCHERS), BATCH // 2)
            timers = [self._timer(f"far-{n}", far=True) for n in far]
            timers += [self._timer(self._fresh("soon"), far=False) for _ in range(BATCH // 2 - 5)]
            if self.book.chains < CHAINS:
                chains = [{"type": self._type(), "delay": 0.1, "payload": {"n": 0}} for _ in range(5)]
                timers += [{"id": self._fresh("chain"), **chain} for chain in chains]
            await self._arm(timers)

    async def _singles(self, worker: int) -> None:
        while True:
            far = self._rng.random() < 0.5
            n = self._rng.randrange(worker, ALONE, SINGLES)
            timer = self._timer(f"alone-{n}" if far else self._fresh("soon"), far=far)
            version = self._asked(timer)
            id = timer.pop("id")
            status, result = await self.timerd.request("PUT", f"/v1/timers/{id}", timer)
            if status in REFUSED:
                await self._refused({id: version})
                continue
            assert status in (200, 201), result
            self.book.armed(id, version, result["generation"])

    async def _cancels(self) -> None:
        while True:
            timers = [self._timer(self._fresh("gone"), far=self._rng.random() < 0.5) for _ in range(2 * CANCELS)]
            if not await self._arm(timers):
                continue
            ids = [timer["id"] for timer in timers[:CANCELS]]
            for id in ids:
                self.book.ask(id, CANCELLED)
            status, answer = await self.timerd.request("POST", "/v1/timers:cancel", {"ids": ids})
            assert status == 200, answer
            for result in answer["results"]:
                if result["status"] == "cancelled" and not result["in_flight"]:
                    self.book.cancelled(result["id"])

    async def _arm(self, timers: list[dict[str, Any]]) -> bool:
        """Whether they were taken."""
        versions = {timer["id"]: self._asked(timer) for timer in timers if not timer["id"].startswith("chain")}
        status, answer = await self.timerd.request("POST", "/v1/timers", {"timers": timers})
        if status in REFUSED:
            await self._refused(versions)
            return False
        assert status == 200, answer
        for result in answer["results"]:
            if result["status"] == "unchanged":  # what was due in this very millisecond anyway
                continue
            assert result["status"] in ("created", "moved"), result
            if (id := result["id"]) in versions:
                self.book.armed(id, versions[id], result["generation"])
            else:
                self.book.chain(id)
        return True

    async def _refused(self, versions: dict[str, Version]) -> None:
        self.refused += 1
        for id, version in versions.items():
            self.book.refused(id, version)
        await asyncio.sleep(REFUSED_PAUSE_S)

    def _timer(self, id: str, *, far: bool) -> dict[str, Any]:
        in_ms = self._rng.randrange(HOUR_MS, 100 * HOUR_MS) if far else self._rng.randrange(2_000)
        timer = {"id": id, "type": self._type(), "fire_at": millis(time.time()) + in_ms}
        pad = self._rng.choice(PADS)
        return timer if pad is None else {**timer, "payload": {"serial": self._serial, "pad": "p" * pad}}

    def _type(self) -> str:
        return self._rng.choice(("bulk", "bulk", "bulk", "large", "large", "single"))

    def _asked(self, timer: dict[str, Any]) -> Version:
        version = Version.of(timer)
        self.book.ask(timer["id"], version)
        return version

    def _fresh(self, kind: str) -> str:
        self._serial += 1
        return f"{kind}-{self._serial}"
