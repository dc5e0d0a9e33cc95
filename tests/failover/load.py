"""A steady load through all nodes: arms, cancels, re-arms in answers, and timers due all the time, on every shard.

Each call goes to the next node, whatever state that is in, and each asks on time, whatever became of the one before:
what a fault holds up shows as a gap, not as less load. Every arm says when it expires, so that none that was held up
somewhere comes after a later one. Outcomes that are not known stay open in the book.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

import aiohttp

from tests.crash.book import CANCELLED, Version
from tests.failover.book import ClusterBook
from tests.failover.cluster import Cluster
from tests.support.cases import chunks, millis, stamp
from tests.support.process import Process
from tests.support.processor import Answer, Delivery

TYPES: dict[str, dict[str, Any]] = {
    "chain": {"batch_size": 50, "max_lag": "100ms", "max_in_flight": 48},
    "probe": {"batch_size": 20, "max_lag": 0, "max_in_flight": 48},
    "bulk": {"batch_size": 100, "max_lag": "200ms", "max_in_flight": 24},
}
MAX_LAG_S = 0.2
RETRY = {"min_backoff": "100ms", "max_backoff": "500ms"}
EXPIRES_S = 12.0
"""An arm that is accepted later than this is refused."""
PATIENCE_S = 20.0
"""A call without an answer is given up then. timerd's own waits end sooner."""
AGAIN_S = 30.0
"""An id whose last outcome is unknown rests for so long."""
HOUR_MS = 3_600_000
CHAINS, CHAIN_S = 8, 2.0  # of each shard, on average; each comes once in that time
PROBES, PROBE_S = 40, 0.5  # ids of each shard, on average; one is armed in that time
BULK, BULK_S = 15, 0.5
CANCEL_S = 1.0
PADS = (None, None, 0, 300, 1_200)


class Load:
    """`run` until it is cancelled; `paused` stands still while it is set, but for the chains."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self.cluster = cluster
        self.book = ClusterBook()
        self.closing = False
        self._rng = rng
        self._serial = itertools.count(1)
        self._turn = itertools.count()
        self._go = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._open_until = 0.0
        self._probes: dict[int, deque[str]] = {}
        self._resting: deque[tuple[float, str]] = deque()

    async def begin(self, url: str) -> None:
        """Types, chains, and the ids that are asked about; where they live is read from a list."""
        node = self.cluster.nodes[self.cluster.running[0]]
        for name, fields in TYPES.items():
            await node.put_type(name, url=url, retry=RETRY, **fields)
        names = [f"probe-{n}" for n in range(PROBES * self.cluster.shards)]
        chains = [f"chain-{n}" for n in range(CHAINS * self.cluster.shards)]
        for part in chunks(names, 500):
            await self._arm(node, [self._timer(id, "probe", HOUR_MS) for id in part])
        for part in chunks(chains, 500):
            await self._arm(node, [
                {"id": id, "type": "chain", "delay": self._rng.uniform(1, 1 + CHAIN_S), "payload": {"n": 0}}
                for id in part
            ])  # fmt: skip
        for timer in await node.list():
            self.book.shard_of[timer["id"]] = timer["shard"]
            if timer["id"].startswith("probe"):
                self._probes.setdefault(timer["shard"], deque()).append(timer["id"])
        assert len(self._probes) == self.cluster.shards, f"ids on shards {sorted(self._probes)} only"
        self._go.set()

    # ---- the processor's side

    async def answer(self, delivery: Delivery) -> Answer:
        """Take a little time, so that batches are open at any moment."""
        results: list[dict[str, Any]] = []
        done = []
        for timer in delivery.body["timers"]:
            id = timer["id"]
            retry = timer["attempt"] == 1 and not id.startswith("chain") and self._rng.random() < 0.03
            again = self.book.is_known(id, timer["generation"])
            self.book.receive(delivery, timer, done=not retry)
            if retry:
                results.append({"id": id, "status": "retry"})
                continue
            done.append((id, timer["generation"]))
            if id.startswith("chain"):
                results.append(self._next_link(id, timer["payload"]["n"], again))
        await asyncio.sleep(self._rng.random() * 0.1)
        self.book.answered(done)
        return Answer(body={"results": results})

    def _next_link(self, id: str, n: int, again: bool) -> dict[str, Any]:
        if not again:  # one that comes again, and late, is judged with the repeats
            self.book.link(id, n)
        if self.closing:
            return {"id": id, "status": "ok"}
        return {"id": id, "status": "rearm", "delay": CHAIN_S, "payload": {"n": n + 1}}

    # ---- the callers' side

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for shard in self._probes:
                group.create_task(self._every(PROBE_S, lambda shard=shard: self._probe(shard)))  # type: ignore[misc]
            group.create_task(self._every(BULK_S, self._bulk))
            group.create_task(self._every(CANCEL_S, self._cancel))

    async def pause(self) -> None:
        """Ask nothing more, and wait until nothing that was asked can happen any more."""
        self._go.clear()
        while self._calls:
            await asyncio.wait(self._calls)
        await asyncio.sleep(max(0.0, self._open_until - time.time()))

    def go_on(self) -> None:
        self._go.set()

    async def burst(self, name: str, count: int) -> None:
        """Arms to one node, one by one and all at once."""
        timers = [self._timer(self._fresh("burst"), "bulk", self._rng.randrange(2_000)) for _ in range(count)]
        await asyncio.gather(*(self._arm(self.cluster.nodes[name], [timer]) for timer in timers))

    async def close(self) -> None:
        """Make everything due that is there, and let the chains end."""
        self.closing = True
        node = self.cluster.nodes[self.cluster.running[0]]
        left = [timer for timer in await node.list() if not timer["id"].startswith("chain")]
        for part in chunks(left, 1_000):
            await self._arm(node, [{"id": timer["id"], "type": timer["type"], "fire_at": millis(time.time())}
                                   for timer in part])  # fmt: skip

    async def _every(self, period_s: float, call: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(self._rng.random() * period_s)
        while True:
            await self._go.wait()
            task = asyncio.ensure_future(call())
            self._calls.add(task)
            task.add_done_callback(self._ended)
            await asyncio.sleep(period_s)

    def _ended(self, task: "asyncio.Future[None]") -> None:
        self._calls.discard(task)  # type: ignore[arg-type]
        if not task.cancelled() and (error := task.exception()):
            self.book.fault("bad answers", repr(error))

    def _next_node(self) -> Process:
        nodes = list(self.cluster.nodes.values())
        return nodes[next(self._turn) % len(nodes)]

    async def _probe(self, shard: int) -> None:
        while self._resting and self._resting[0][0] < time.time():
            _, id = self._resting.popleft()
            self._probes[self.book.shard_of[id]].append(id)
        if not self._probes[shard]:
            return  # all of them rest
        id = self._probes[shard].popleft()
        known = await self._arm(self._next_node(), [self._timer(id, "probe", self._rng.randrange(200, 2_000))])
        if known:
            self._probes[shard].append(id)
        else:
            self._resting.append((time.time() + AGAIN_S, id))

    async def _bulk(self) -> None:
        soon = [self._timer(self._fresh("soon"), "bulk", self._rng.randrange(3_000)) for _ in range(BULK - 1)]
        far = [self._timer(self._fresh("far"), "bulk", self._rng.randrange(HOUR_MS, 100 * HOUR_MS))]
        await self._arm(self._next_node(), soon + far)

    async def _cancel(self) -> None:
        in_ms = (1_500, 10 * HOUR_MS)
        timers = [self._timer(self._fresh("gone"), "bulk", in_ms[n % 2]) for n in range(6)]
        if not await self._arm(self._next_node(), timers):
            return
        ids = [timer["id"] for timer in timers[:4]]
        for id in ids:
            self.book.ask(id, CANCELLED)
        status, answer = await self._call(self._next_node(), "/v1/timers:cancel", {"ids": ids})
        if status != 200:
            return
        for result in answer["results"]:
            if result["status"] == "cancelled" and not result["in_flight"]:
                self.book.cancelled(result["id"])

    async def _arm(self, node: Process, timers: list[dict[str, Any]]) -> bool:
        """Whether it is known what became of all of them."""
        chains = {timer["id"] for timer in timers if timer["id"].startswith("chain")}
        versions = {timer["id"]: Version.of(timer) for timer in timers if timer["id"] not in chains}
        for id, version in versions.items():
            self.book.ask(id, version)
        status, answer = await self._call(node, "/v1/timers", {"timers": timers})
        results = answer.get("results", []) if isinstance(answer, dict) else []
        if status == 200 or results:
            missing = []
            for result in results:
                if (id := result["id"]) in chains:
                    self.book.chain(id)
                elif result["status"] in ("created", "moved"):
                    self.book.armed(id, versions[id], result["generation"])
                    self.book.acknowledged_on(id)
                else:
                    missing.append(result["status"])
            if set(missing) - {"unavailable"} or len(results) != len(timers) or (status == 200 and missing):
                self.book.fault("bad answers", f"{status} {answer}")
            return not missing
        if status in (-1, 409, 507) or (status == 503 and "overloaded" in str(answer)):
            for id, version in versions.items():
                self.book.refused(id, version)
            return True
        if status not in (0, 503):
            self.book.fault("bad answers", f"{status} {answer}")
        return False

    async def _call(self, node: Process, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Status -1: nobody listens there, so nothing was done. 0: no answer."""
        if node.process is None or node.process.returncode is not None:
            return -1, None  # and its port may be somebody else's by now
        begin = time.time()
        headers = {"Timerd-Expires": stamp(begin + EXPIRES_S)}
        try:
            async with asyncio.timeout(PATIENCE_S):
                status, answer = await node.request("POST", path, body, headers=headers)
        except aiohttp.ClientConnectorError:
            status, answer = -1, None
        except (aiohttp.ClientError, OSError, TimeoutError):
            status, answer = 0, None
        self.book.answers.append((time.time(), status, time.time() - begin))
        if status in (0, 503):
            self._open_until = max(self._open_until, begin + EXPIRES_S + 1)
        return status, answer

    def _timer(self, id: str, type: str, in_ms: int) -> dict[str, Any]:
        timer = {"id": id, "type": type, "fire_at": millis(time.time()) + in_ms}
        pad = self._rng.choice(PADS)
        return timer if pad is None else {**timer, "payload": {"pad": "p" * pad}}

    def _fresh(self, kind: str) -> str:
        return f"{kind}-{next(self._serial)}"
