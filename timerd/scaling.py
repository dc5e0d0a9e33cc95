"""How many shards there are: the ring table of the moment, how it is published, and the controller that wants another.

Shards write their counts to the utilisation table, the controller reads it; they never talk to each other, so either
may begin anew alone. A table is durable before anybody is told of it, and follows one that has come to rest in every
shard: so a slot never moves twice at once (cluster/PROTOCOL.md).
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import ceil
from typing import Any, Final

import structlog
from msgspec.structs import replace

from timerd.engine.errors import CatalogFull
from timerd.engine.message import Message, Refused, SetTypes, ShardTally, Tally
from timerd.engine.move_message import SetPull, SetTable
from timerd.engine.ring import SHARDS_MAX, SLOTS, RingTable, next_table
from timerd.engine.settings import Settings
from timerd.engine.shard import Shard
from timerd.engine.state import State
from timerd.engine.timer import TimerType
from timerd.ports import Catalog, Clock, Utilisation
from timerd.report import Scaled
from timerd.runners import Runners

SHARDS_DEFAULT: Final = 8
LOOK_S: Final = 30.0
RAISE_ABOVE: Final = 0.8
AIM: Final = 0.6  # where a raise, or a lowering, brings the mean
LOWER_BELOW: Final = 0.3
LOWER_AFTER: Final = 10  # looks in a row that find so little
PULL_PER_SECOND: Final = 10_000  # timers that all shards together take over in the background

log = structlog.get_logger()


class Scaling:
    """One for each node."""

    def __init__(
        self,
        settings: Settings,
        table: RingTable,
        runners: Runners,
        catalog: Catalog,
        clock: Clock,
        types: Callable[[], Mapping[str, TimerType]],
        ask_all: Callable[[Callable[[Any], Message]], Awaitable[list[Any]]],
    ) -> None:
        self.table = table
        """The ring table of the moment."""
        self.on_table: Callable[[RingTable], None] = lambda table: None
        """Told of every other one."""
        self.stopped = False
        """Nothing is published any more; a table that is durable by then is found by the next start."""
        self._settings = settings
        self._runners = runners
        self._catalog = catalog
        self._clock = clock
        self._types = types
        self._ask_all = ask_all
        self._lock = asyncio.Lock()
        self._few = 0
        self._resting = False

    def tell(self) -> None:
        """Tell all shards of the table. One that has never had another need not hear of it."""
        table = self.table
        if table.version > 1:
            # As long as slots move some shards hold what will be with others.
            count = len(table.shard_ids) if self._resting else min(len(table.shard_ids), len(set(table.previous)))
            kept = ceil(self._settings.dead_letters_kept / count)
            receivers = {table.shards[slot] for slot in range(SLOTS) if table.source_of(slot) is not None}
            pace = SetPull(max(1, PULL_PER_SECOND // max(1, len(receivers))))
            for shard in self._runners.shards:
                self._runners.send_ahead(shard, SetTable(table, kept, waits=True))
                self._runners.send_ahead(shard, pace)

    async def scale(self, shards: int, *, by_hand: bool = True) -> Scaled | Refused:
        """Have so many shards. What is asked for by hand the controller never goes below."""
        if not self._runners.shares_bodies:
            return Refused("shards-fixed", "the number of shards is fixed in a cluster")
        async with self._lock:
            before = self.table
            if len(before.shard_ids) == shards:
                if by_hand and before.least != shards:
                    return await self._keep(replace(before, least=shards))
                return Scaled(shards, before.version, not await self.at_rest())
            if self.stopped or not await self.at_rest():
                return Refused("shards-moving", "timers are still on their way between shards", (), 5)
            table = await work_out(before, shards)
            moving = sum(old != new for old, new in zip(before.shards, table.shards, strict=True))
            if not await self._runners.upkeep.make_way(moving, table.version):
                self._runners.upkeep.want_room()
                return Refused("storage-full", "the disk has no room for timers on the move")
            table = replace(table, least=shards if by_hand else before.least)
            try:
                await self._catalog.put_ring(table)
            except CatalogFull:
                self._runners.upkeep.close_way()
                return Refused("storage-full", "the ring table could not be written: the disk is full")
            if self.stopped:
                self._runners.upkeep.close_way()
                return Refused("overloaded", "timerd is stopping", (), 5)
            self._publish(table)
            log.info("ring_table_published", version=table.version, shards=shards, by_hand=by_hand)
            return Scaled(shards, table.version, True)

    async def _keep(self, table: RingTable) -> Scaled | Refused:
        """The same table, with another floor for the controller."""
        try:
            await self._catalog.put_ring(table)
        except CatalogFull:
            return Refused("storage-full", "the ring table could not be written: the disk is full")
        self.table = table
        return Scaled(len(table.shard_ids), table.version, not await self.at_rest())

    def _publish(self, table: RingTable) -> None:
        """Go by a table that is durable. Shards that it names for the first time begin here, with nothing."""
        now = self._clock.now()
        kept = ceil(self._settings.dead_letters_kept / len(table.shard_ids))
        for id in table.known_ids:
            if id not in self._runners.shards:
                shard = Shard(State(id, [], now), kept)
                shard.own(now)
                self._runners.add_shard(shard)
                self._runners.send(id, SetTypes(self._types()))
        self.table = table
        self._resting = False
        self.on_table(table)
        self.tell()

    async def at_rest(self) -> bool:
        """Whether every slot is plainly owned, by what is durable."""
        if self.table.version == 1:
            return True
        return rests(self.table, await self._ask_all(lambda token: Tally(token)))

    # ---- the controller

    async def run(self) -> None:
        """Look at the utilisation again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception as error:  # nobody needs the controller to live
                log.warning("shards_not_looked_at", reason=str(error) or type(error).__name__)

    async def look(self) -> None:
        """Write this node's counts, read everybody's, and act on them."""
        tallies: list[ShardTally] = await self._ask_all(lambda token: Tally(token))
        now = self._clock.now().wall_ms
        capacity = self._settings.shard_capacity
        counted = [
            Utilisation(tally.shard, self._settings.node, sum(t.live for t in tally.types.values()), capacity, now)
            for tally in tallies
        ]
        if not self._runners.shares_bodies:
            return
        await self._catalog.put_utilisation(counted)
        if self.table.version > 1 and not self._resting and rests(self.table, tallies):
            self._resting = True
            self.tell()
        wanted = self.wanted(await self._catalog.utilisation())
        if wanted != len(self.table.shard_ids) and isinstance(done := await self.scale(wanted, by_hand=False), Refused):
            log.info("not_scaled", shards=wanted, reason=done.detail)

    def wanted(self, rows: Sequence[Utilisation]) -> int:
        """How many shards there should be by the utilisation table."""
        count = len(self.table.shard_ids)
        timers = sum(row.timers for row in rows)
        capacity = self._settings.shard_capacity
        mean = timers / (count * capacity)
        fit = ceil(timers / (AIM * capacity))
        self._few = self._few + 1 if mean < LOWER_BELOW else 0
        if mean > RAISE_ABOVE:
            return min(SHARDS_MAX, max(fit, count))
        least = self.table.least or self._settings.shards or SHARDS_DEFAULT
        if self._few >= LOWER_AFTER and count > least:
            self._few = 0
            return max(fit, least, 1)
        return count


async def work_out(table: RingTable, shards: int) -> RingTable:
    """The table that follows. It takes a tenth of a second, so not in the loop."""
    return await asyncio.to_thread(next_table, table, range(shards))


def rests(table: RingTable, tallies: Sequence[ShardTally]) -> bool:
    """Whether each shard owns as many slots as the table gives it, and none of them is on the move."""
    wanted = Counter(table.shards)
    return all(tally.slots == wanted[tally.shard] and not tally.ceded and not tally.adopted for tally in tallies)
