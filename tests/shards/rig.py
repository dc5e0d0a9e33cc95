"""Nodes that share shards, each shard with a memory log of its own, on virtual time.

A `Shelf` keeps what each shard's log holds, for whoever opens it next; opening one fences the writer before. A log can
be held (its appends do not return), refused (they fail) or fenced.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from tests.sim.clock import SimClock
from tests.sim.loop import VirtualLoop
from timerd import boot
from timerd.engine.callback import CallbackRequest, encode_request
from timerd.engine.errors import LogFailed
from timerd.engine.message import Filter, Refused
from timerd.engine.ring import build_table, slot_of
from timerd.engine.settings import Settings
from timerd.engine.timer import BodyRef, Timer, TimerType
from timerd.node import Node
from timerd.ports import Answer, Frame, Request
from timerd_storage.memory_catalog import MemoryCatalog
from timerd_storage.memory_log import MemoryLog


class ShardLog(MemoryLog):
    """One writer's."""

    def __init__(self, shard: int) -> None:
        super().__init__(shard=shard)
        self.free = asyncio.Event()
        self.free.set()
        self.fails = False
        self.taken = False
        """Another has opened it."""
        self.unsure = False
        """A delivery has to ask first."""
        self.confirms = 0
        self.answers = asyncio.Event()
        self.answers.set()
        """Else payloads are asked for in vain."""
        self.asked = 0
        self.shelf: Shelf | None = None

    async def append(self, frames: Sequence[Frame], waiting_bytes: int = 0) -> int:
        await self.free.wait()
        if self.fails:
            raise LogFailed("the disk is gone")
        if self.taken:
            assert self._shard is not None
            self.fenced = (self._shard,)
            return 0
        return await super().append(frames, waiting_bytes)

    def is_confirmed(self) -> bool:
        return not self.unsure and self.free.is_set()

    async def confirm(self) -> bool:
        self.confirms += 1
        await self.free.wait()
        if self.taken:
            assert self._shard is not None
            self.fenced = (self._shard,)
        return not self.taken

    async def read_bodies(self, places: Sequence[BodyRef]) -> list[bytes | None]:
        self.asked += 1
        await self.answers.wait()
        return await super().read_bodies(places)


class Shelf:
    def __init__(self) -> None:
        self.logs: dict[int, ShardLog] = {}

    def open(self, shard: int) -> ShardLog:
        log = ShardLog(shard)
        before = self.logs.get(shard)
        if before is not None:
            before.taken = True
            again = before.reopen()
            log.begun, log._segments, log._bodies = True, again._segments, again._bodies
        self.logs[shard] = log
        return log


class Target:
    """What is delivered, by (id, generation), and to which node's clock; it may be told to hang."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.seen: Counter[tuple[str, int]] = Counter()
        self.at: dict[str, int] = {}
        self.bodies: dict[str, Any] = {}
        self.free = asyncio.Event()
        self.free.set()
        self.posts = 0
        self.open = 0

    async def post(self, request: Request) -> Answer:
        self.posts += 1
        self.open += 1
        try:
            if "Timerd-Timer-Id" not in request.headers:
                for timer in msgspec.json.decode(request.body)["timers"]:
                    self.seen[timer["id"], timer["generation"]] += 1
                    self.at.setdefault(timer["id"], self._clock.now().wall_ms)
                    self.bodies[timer["id"]] = timer.get("payload")
            else:
                id = request.headers["Timerd-Timer-Id"]
                self.seen[id, int(request.headers["Timerd-Generation"])] += 1
                self.at.setdefault(id, self._clock.now().wall_ms)
            await self.free.wait()
        finally:
            self.open -= 1
        return Answer(200)

    async def close(self) -> None:
        pass


class Rig:
    def __init__(self, loop: VirtualLoop, shards: int, type: TimerType) -> None:
        self.loop = loop
        self.clock = SimClock(loop)
        self.shards = shards
        self.table = build_table(range(shards))
        self.type = type
        self.shelf = Shelf()
        self.catalog = MemoryCatalog()
        self.target = Target(self.clock)
        self.nodes: list[Node] = []
        self.lost: list[tuple[int, int, str]] = []  # (node, shard, why)

    async def node(self, *shards: int) -> Node:
        number = len(self.nodes)
        settings = Settings(node=f"n{number}", shards=self.shards)
        node = await boot.join(
            settings, self.table, self.catalog, self.clock, self.target, random.Random(number).random
        )
        self.nodes.append(node)
        node.on_lost = lambda shard, why: self.lost.append((number, shard, why))
        if not node.types:
            await node.put_type(self.type, False, None)
        for shard in shards:
            assert await self.take(node, shard)
        return node

    async def take(self, node: Node, shard: int) -> bool:
        return await node.take(shard, self.shelf.open(shard))

    def ids(self, shard: int, count: int, prefix: str = "id") -> list[str]:
        """Of this shard."""
        found: list[str] = []
        n = 0
        while len(found) < count:
            id = f"{prefix}{n}"
            if self.table.shards[slot_of(id)] == shard:
                found.append(id)
            n += 1
        return found

    def timers(self, ids: list[str], in_ms: int, payload: bytes | None = None) -> list[Timer]:
        at = self.clock.now().wall_ms + in_ms
        made = []
        for id in ids:
            if self.type.kind == "callback":
                request = encode_request(CallbackRequest("POST", f"http://{id}.test/", (), "", payload or b""))
                made.append(Timer(at, 0, id, self.type.name, request))
            else:
                made.append(Timer(at, 0, id, self.type.name, payload))
        return made

    async def arm(self, node: Node, ids: list[str], in_ms: int, payload: bytes | None = None) -> None:
        done = await node.arm(self.timers(ids, in_ms, payload), None, True, None)
        assert not isinstance(done, Refused), done
        assert not done.unavailable

    async def until(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                for node in self.nodes:
                    assert not node.failed.done(), node.failed.exception()
                assert not self.loop.errors, self.loop.errors
                await asyncio.sleep(0.01)

    def delivered(self, ids: Sequence[str]) -> bool:
        return set(ids) <= set(self.target.at)

    async def listed(self, node: Node) -> list[str]:
        page = await node.list(Filter(), 1_000, None)
        assert not isinstance(page, Refused)
        return sorted(view.id for view in page[0])


PROCESSOR = TimerType("t", url="http://t/", max_lag_ms=0)
CALLBACKS = TimerType("t", kind="callback", max_lag_ms=0, max_in_flight=64)


def play(story: Callable[[Rig], Coroutine[Any, Any, None]], shards: int = 3, type: TimerType = PROCESSOR) -> Rig:
    """Run a story to its end, in no time."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)

    async def whole() -> Rig:
        rig = Rig(loop, shards, type)
        await story(rig)
        for log in rig.shelf.logs.values():
            log.free.set()
            log.answers.set()
        rig.target.free.set()
        for node in rig.nodes:
            assert not node.failed.done(), node.failed.exception()
            await node.stop(1_000)
        return rig

    try:
        rig = loop.run_until_complete(whole())
        assert not loop.errors, loop.errors
        return rig
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        asyncio.set_event_loop(None)
