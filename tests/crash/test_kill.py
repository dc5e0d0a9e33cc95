"""kill -9 of the real process under load, round after round on one data directory: 0 acknowledged timers lost.

A round arms at least 10,000 timers (in batches and singly, over several connections, by re-arms in answers, with and
without payloads that lie apart), cancels some, and is ended by a kill while a batch is open. After the start the book
is compared with what is listed and what the processor has received. What was not acknowledged may be there or not,
but only as it was asked for.

`TIMERD_ROUNDS=n` for more rounds, `TIMERD_SEED=n` for the same choices again (not the same interleaving).
"""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest

from tests.support.cases import instant, millis, seeded, sized
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

ROUNDS = int(os.environ.get("TIMERD_ROUNDS") or sized(20, 5))
ACKNOWLEDGED = 10_000  # a round, at least
FAR = 4_000
CHAINS = 300
BATCHERS, SINGLES = 3, 6
BATCH = 200
CANCELS = 20
HOUR_MS = 3_600_000


class Version(NamedTuple):
    """A timer as it was asked for, in a form that compares."""

    fire_at: int
    payload: bytes

    @staticmethod
    def of(timer: Mapping[str, Any]) -> "Version":
        """`timer` as it is listed or delivered."""
        return Version(millis(instant(timer["fire_at"])), msgspec.json.encode(timer.get("payload")))


CANCELLED = Version(0, b"")


class Book:
    """What was asked for and what was acknowledged. One task at a time asks about an id."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.known: dict[str, Version] = {}
        self.asked: dict[str, list[Version]] = {}
        """Since the last acknowledgement; any of these may stand."""
        self.generations: dict[str, int] = {}
        self.cancelled: set[tuple[str, int]] = set()
        """(id, generation) of acknowledged cancels that were not too late: never to be received."""
        self.received: set[tuple[str, Version]] = set()

    def ask(self, id: str, version: Version) -> None:
        self.asked.setdefault(id, []).append(version)

    def acknowledge(self, id: str, version: Version, generation: int) -> None:
        self.known[id] = version
        self.asked.pop(id, None)
        if version is CANCELLED:
            self.cancelled.add((id, generation))
        else:
            self.generations[id] = generation
        self.acknowledged += 1

    def settle(self, listed: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Compare with all timers listed after a start. What is wrong; what was open is decided by what was seen."""
        wrong = []
        for id in self.known.keys() | self.asked.keys():
            possible = [self.known.get(id, CANCELLED), *self.asked.pop(id, [])]
            timer = listed.get(id)
            if timer is None:
                if CANCELLED not in possible and not any((id, version) in self.received for version in possible):
                    wrong.append(f"{id}: lost, {possible[0]}")
                self.known.pop(id, None)
                continue
            version = Version.of(timer)
            if version not in possible:
                wrong.append(f"{id}: listed as {version}, which is none of {possible}")
            elif len(possible) == 1 and timer["generation"] != self.generations[id]:
                wrong.append(f"{id}: generation {timer['generation']}, acknowledged was {self.generations[id]}")
            self.known[id] = version
            self.generations[id] = timer["generation"]
        wrong += [f"{id}: never asked for" for id in listed.keys() - self.known.keys() if not id.startswith("chain")]
        return wrong


class Load:
    """What is done to the process, and what its processor answers."""

    def __init__(self, timerd: Process, rng: Random) -> None:
        self.timerd = timerd
        self.rng = rng
        self.book = Book()
        self.chains: dict[str, int] = {}  # id -> the last number received; the next is that one or the one after
        self.acknowledged_chains: set[str] = set()
        self.broken: list[str] = []
        self.closing = False
        self._serial = 0

    # ---- the processor's side

    async def answer(self, delivery: Delivery) -> Answer:
        results: list[dict[str, Any]] = []
        for timer in delivery.body["timers"]:
            id = timer["id"]
            if (id, timer["generation"]) in self.book.cancelled:
                self.broken.append(f"{id}: received after its cancel was acknowledged")
            if id.startswith("chain"):
                results.append(self._next_link(id, timer["payload"]["n"]))
            else:
                self.book.received.add((id, Version.of(timer)))
                if timer["attempt"] == 1 and self.rng.random() < 0.05:
                    results.append({"id": id, "status": "retry"})
        await asyncio.sleep(self.rng.random() * 0.3)  # so that batches are open at any moment
        return Answer(body={"results": results})

    def _next_link(self, id: str, n: int) -> dict[str, Any]:
        last = self.chains[id]
        if n not in (last, last + 1):
            self.broken.append(f"{id}: link {n} after {last}")
        self.chains[id] = n
        if self.closing:
            return {"id": id, "status": "ok"}
        payload = {"n": n + 1, "pad": "r" * self.rng.choice((0, 100, 700))}
        return {"id": id, "status": "rearm", "delay": self.rng.uniform(0.1, 0.8), "payload": payload}

    # ---- the callers' side

    async def until_killed(self) -> None:
        """All callers, until their connections break."""
        await asyncio.gather(
            *(self._caller(self._batch(n)) for n in range(BATCHERS)),
            *(self._caller(self._single(n)) for n in range(SINGLES)),
            self._caller(self._cancel()),
        )

    async def _caller(self, endless: Any) -> None:
        try:
            await endless
        except (aiohttp.ClientError, OSError):
            return

    async def _batch(self, worker: int) -> None:
        while True:
            far = self.rng.sample(range(worker, FAR, BATCHERS), BATCH // 2)
            timers = [self._timer(f"far-{n}", far=True) for n in far]
            timers += [self._timer(self._fresh("soon"), far=False) for _ in range(BATCH // 2 - 5)]
            if len(self.chains) < CHAINS:
                chains = [self._fresh("chain") for _ in range(5)]
                timers += [{"id": id, "type": "t", "delay": 0.1, "payload": {"n": 0}} for id in chains]
            await self._arm(timers)

    async def _single(self, worker: int) -> None:
        while True:
            far = self.rng.random() < 0.5
            timer = self._timer(self._fresh("alone" if far else "soon"), far=far)
            version = self._asked(timer)
            id = timer.pop("id")
            status, result = await self.timerd.request("PUT", f"/v1/timers/{id}", timer)
            assert status == 201, result
            self.book.acknowledge(id, version, result["generation"])

    async def _cancel(self) -> None:
        """Arm, and cancel some of them: far ones, and some that are nearly due."""
        while True:
            timers = [self._timer(self._fresh("gone"), far=self.rng.random() < 0.5) for _ in range(2 * CANCELS)]
            await self._arm(timers)
            ids = [timer["id"] for timer in timers[:CANCELS]]
            for id in ids:
                self.book.ask(id, CANCELLED)
            status, answer = await self.timerd.request("POST", "/v1/timers:cancel", {"ids": ids})
            assert status == 200, answer
            for result in answer["results"]:
                id = result["id"]
                if result["status"] == "cancelled" and not result["in_flight"]:
                    self.book.acknowledge(id, CANCELLED, self.book.generations[id])

    async def _arm(self, timers: list[dict[str, Any]]) -> None:
        versions = {timer["id"]: self._asked(timer) for timer in timers if not timer["id"].startswith("chain")}
        answer = await self.timerd.arm(timers)
        for result in answer["results"]:
            assert result["status"] in ("created", "moved"), result
            if (id := result["id"]) in versions:
                self.book.acknowledge(id, versions[id], result["generation"])
            else:
                self.acknowledged_chains.add(id)
                self.book.acknowledged += 1

    def _timer(self, id: str, *, far: bool) -> dict[str, Any]:
        in_ms = self.rng.randrange(HOUR_MS, 100 * HOUR_MS) if far else self.rng.randrange(2_000)
        timer = {"id": id, "type": "t", "fire_at": millis(time.time()) + in_ms}
        pad = self.rng.choice((None, 0, 300, 600, 2_500))
        return timer if pad is None else {**timer, "payload": {"serial": self._serial, "pad": "p" * pad}}

    def _asked(self, timer: Mapping[str, Any]) -> Version:
        version = Version(timer["fire_at"], msgspec.json.encode(timer.get("payload")))
        self.book.ask(timer["id"], version)
        return version

    def _fresh(self, kind: str) -> str:
        self._serial += 1
        if kind == "chain":
            self.chains[f"chain-{self._serial}"] = 0
        return f"{kind}-{self._serial}"


@pytest.mark.slow
async def test_kill_9_under_load_loses_no_acknowledged_timer(tmp_path: Path) -> None:
    rng = seeded()
    timerd = Process(tmp_path / "data", "--segment-bytes", str(1 << 20))
    load = Load(timerd, rng)
    recoveries: list[float] = []
    async with Processor(load.answer) as processor, timerd:
        retry = {"min_backoff": "100ms", "max_backoff": "500ms"}
        await timerd.put_type("t", url=processor.url, batch_size=100, max_lag="50ms", retry=retry)
        for round in range(ROUNDS):
            before = load.book.acknowledged
            calling = asyncio.create_task(load.until_killed())
            await processor.until(lambda: load.book.acknowledged - before >= ACKNOWLEDGED and processor.open > 0, 120)  # noqa: B023
            await asyncio.sleep(rng.random() * 0.05)  # not always just behind an acknowledgement
            async with asyncio.timeout(10):
                while not processor.open:
                    await asyncio.sleep(0)
            timerd.kill()
            open_batches = processor.open
            await calling
            acknowledged = load.book.acknowledged - before
            assert acknowledged >= ACKNOWLEDGED
            began = time.monotonic()
            await timerd.start()
            recoveries.append(time.monotonic() - began)
            listed = {timer["id"]: timer for timer in await timerd.list()}
            wrong = load.book.settle(listed)
            wrong += [f"{id}: the chain is broken" for id in load.acknowledged_chains - listed.keys()]
            load.acknowledged_chains |= listed.keys() & load.chains.keys()
            print(
                f"round {round + 1}: {acknowledged} acknowledged, {open_batches} batches open at the kill, "
                f"ready again in {recoveries[-1]:.2f} s, {len(listed)} timers there, {len(wrong)} wrong"
            )
            assert not wrong, wrong[:10]
            assert not load.broken, load.broken[:10]

        # In the end everything is made due, and everything arrives.
        load.closing = True
        left = {timer["id"]: timer for timer in await timerd.list() if not timer["id"].startswith("chain")}
        now = millis(time.time())
        generations = {}
        for result in (await timerd.arm([{"id": id, "type": "t", "fire_at": now} for id in left]))["results"]:
            generations[result["id"]] = result["generation"]

        async def nothing_is_left() -> bool:
            return bool((await timerd.stats("t"))["live"] == 0)

        await timerd.until(nothing_is_left, 120)
        received = {(timer["id"], timer["generation"]) for _, timer in processor.timers()}
        lost = generations.items() - received
        assert not lost, lost
        assert load.acknowledged_chains <= processor.ids
        assert not load.broken, load.broken[:10]
        assert not timerd.complaints()
        print(
            f"{ROUNDS} rounds, {load.book.acknowledged} acknowledged, 0 lost; "
            f"ready again in {min(recoveries):.2f} to {max(recoveries):.2f} s"
        )
