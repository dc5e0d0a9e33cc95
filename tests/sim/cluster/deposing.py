"""A live owner is deposed: it is busy, nobody hears it, it hears of no plan, and others are given its shards.

It is cut off from the bucket of the members alone, as by a way to that bucket's leader that is broken while the way to
its shards' leaders is not. So the plan is there while its right to deliver still runs, and is renewed. Then, as the
takers wait, its way to everything else is cut as well: whenever that is; or with an answer on its way that says that an
append is stored; or behind an append with nothing to do until something is due at the edge of its right. That lasts
about as long as a lease, less or more; often its clock is the slowest that there may be, and the others' are the
fastest. A silence that is as long as it takes to be given up would come too late.

Plans are judged here too: nobody takes what no plan has given him; and what a deposed owner has lost, it does not take
back until it can read the plan.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tests.sim.account import Violation
from tests.sim.cluster.loop import RATE_MAX, RATE_MIN
from tests.sim.jetstream import Kept
from timerd.engine.plan import Plan, Seat
from timerd_cluster.ensemble import BUCKET, PLAN

if TYPE_CHECKING:
    from tests.sim.cluster.host import Host
    from tests.sim.cluster.world import World

GIVEN_UP_S: Final = 15.0
"""By then others have planned without it, unless there are none who can."""
WAITED_S: Final = 6.0
"""The moment that is waited for may not come."""
EDGES: Final = (0.5, 0.8), (0.92, 1.1)
"""Of a lease behind an append, from and to: about when the right ends, and about when a taker's wait does."""

_decode: Final = msgspec.json.Decoder(Plan).decode


class Deposing:
    """One for each run. Told of what is stored."""

    def __init__(self, world: "World", random: Random) -> None:
        self.cut_off: set[str] = set()
        """Hosts that nobody reaches, and which reach nobody."""
        self._world = world
        self._random = random
        self._plan = world.names.bucket_stream(BUCKET), world.names.bucket_subject(BUCKET, PLAN)
        self._given_up: dict[str, asyncio.Event] = {}
        self._stores: dict[str, asyncio.Event] = {}
        self._edge: dict[str, asyncio.Event] = {}
        self._edges = EDGES[0]
        self._has: dict[int, Any] = {}  # shard -> the process whose `Owned` is the last
        self._given: set[tuple[Seat | None, int]] = set()  # by any plan that there was
        self._lost: set[tuple[Any, int]] = set()  # which process has lost which shard while it could read no plan
        self._under_way: set[asyncio.Task[None]] = set()

    def stored(self, stream: str, kept: Kept, by: str) -> None:
        """A message has just been stored, which has come from that host."""
        if (stream, kept.subject) == self._plan:
            owners = _decode(kept.data).owners
            self._given.update((seat, shard) for shard, seat in enumerate(owners))
            seats = {seat.name for seat in owners if seat is not None}
            for name, event in self._given_up.items():
                if name not in seats:
                    event.set()
        elif by in self._stores and "-log-" in stream:
            self._stores[by].set()
            self._cut(by)  # before the answer has come
        elif by in self._edge and "-log-" in stream and self._is_at_edge(int(stream.rpartition("-")[2])):
            self._edge[by].set()

    def owned(self, shard: int, by: Any) -> None:
        """Somebody has taken a shard. Raises Violation."""
        if (by.seat, shard) not in self._given:
            raise Violation(f"{by} takes shard {shard}, which no plan has given it")
        if (by, shard) in self._lost:
            raise Violation(f"{by} takes shard {shard} back from {self._has[shard]}, by a plan that it can't have read")
        before, self._has[shard] = self._has.get(shard), by
        if before is not by and self._name(before) in self._given_up:
            self._lost.add((before, shard))

    def begin(self, host: "Host") -> None:
        """Depose it, while other things go on."""
        name = host.name
        if name in self._given_up or len(self._world.hosts) < 2:
            return
        task = asyncio.ensure_future(self._depose(name))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def relent(self) -> None:
        """No more of it."""
        for task in self._under_way:
            task.cancel()
        for name in list(self._given_up):
            self._end(name)

    async def _depose(self, name: str) -> None:
        r, world = self._random, self._world
        given_up = self._given_up[name] = asyncio.Event()
        world.servers.unheard.add(name)
        world.servers.untold.add(name)
        world.note(f"depose {name}")
        if await _within(given_up, GIVEN_UP_S):
            world.note(f"given up {name}")
            world.counts["owners deposed"] += 1
            if r.random() < 0.5:
                for host in world.hosts:
                    host.drift(RATE_MIN if host.name == name else RATE_MAX)
            how = r.choice(["cut", "stores", "stores", "edge", "edge", "edge", "free"])
            self._edges = r.choice(EDGES)
            await asyncio.sleep(r.choice([0.0, 0.3, 1.5]) * r.random())
            for moment, awaited in (("stores", self._stores), ("edge", self._edge)):
                if how == moment:
                    event = awaited[name] = asyncio.Event()
                    await _within(event, WAITED_S)
                    del awaited[name]
            if how == "edge":
                await asyncio.sleep(3 * world.swarm.latency_s)  # the answer has come
            if how != "free":
                self._cut(name)
            await asyncio.sleep(world.swarm.lease_ms / 1000 * r.uniform(0.5, 2.5))
            self._join(name)
            await asyncio.sleep(r.choice([0.0, 3.0, 15.0]) * r.random())
        self._end(name)

    def _is_at_edge(self, shard: int) -> bool:
        """Whether a shard has nothing to do until the edge of the right of whoever has just appended to it."""
        world = self._world
        story = world.streams.shards[shard]
        dues = [entry.version.fire_at for entry in story.account.entries.values() if not entry.dead]
        left = (min(dues, default=0) - world.wall_ms) / world.swarm.lease_ms
        return self._edges[0] <= left <= self._edges[1] and not world.checker.delivering(story.owner, shard)

    def _name(self, process: Any) -> str:
        return next((host.name for host in self._world.hosts if host.process is process), "")

    def _cut(self, name: str) -> None:
        if name not in self.cut_off:
            self._world.note(f"cut off {name}, deposed")
            self.cut_off.add(name)
            self._world.servers.cut_off.add(name)

    def _join(self, name: str) -> None:
        if name in self.cut_off:
            self.cut_off.discard(name)
            self._world.note(f"join {name}")
            self._world.servers.join(name)

    def _end(self, name: str) -> None:
        self._join(name)
        self._stores.pop(name, None)
        self._edge.pop(name, None)
        del self._given_up[name]
        self._lost = {
            each for each in self._lost if each[0] is not None and each[0].alive and self._name(each[0]) != name
        }
        self._world.servers.unheard.discard(name)
        self._world.servers.untold.discard(name)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
