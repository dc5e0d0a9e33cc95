"""From a log to a running node: replay, check, own.

A start either has everything that was acknowledged, or refuses (`CorruptLog`, `IncompleteDirectory`, `WrongShards`,
`WrongClock`).
"""

from collections.abc import Callable

from timerd.clock import is_believable
from timerd.engine.errors import IncompleteDirectory
from timerd.engine.ring import RingTable, build_table
from timerd.engine.settings import Settings
from timerd.keys import Keys
from timerd.node import Node
from timerd.ports import Catalog, Clock, Deliver, Log
from timerd.recovery import WrongShards, recover_shards
from timerd.scaling import SHARDS_DEFAULT

__all__ = ["WrongClock", "WrongShards", "join", "recover", "start"]


class WrongClock(Exception):
    """The wall clock is beyond belief; generations taken from it would run out."""


async def start(
    settings: Settings,
    log_port: Log,
    catalog: Catalog,
    clock: Clock,
    deliver: Deliver,
    random: Callable[[], float],
) -> Node:
    """Recover all shards and take them up; the node takes turns when this returns. Raises LogFailed, too."""
    node = await recover(settings, log_port, catalog, clock, deliver, random)
    await node.start()
    return node


async def recover(
    settings: Settings,
    log_port: Log,
    catalog: Catalog,
    clock: Clock,
    deliver: Deliver,
    random: Callable[[], float],
) -> Node:
    """A node with what the log holds, and with nothing written yet: its `start` does that."""
    now = clock.now()
    if not is_believable(now):
        raise WrongClock("the wall clock is beyond the year 2200; set it before timerd starts")
    stored = await catalog.ring()
    table = _ring(settings, stored)
    shards = await recover_shards(settings, table, log_port, now, table.known_ids, stored=stored is not None)
    if stored is not None and not log_port.begun:
        raise IncompleteDirectory(
            "the data directory has a catalogue and no log: its timers are gone from here. Put the log files back; "
            "or, to begin with no timers, take catalog.sqlite away as well"
        )
    if stored is None:
        # Not before the log has its first segment: a catalogue without a log is a log that was lost.
        await catalog.put_ring(table)
    for shard in shards:
        shard.own(clock.now())
    keys = Keys(await catalog.keys(), catalog, clock)
    groups = [(log_port, shards)]
    return Node(settings, groups, table, await catalog.types(), keys, catalog, clock, deliver, random)


async def join(
    settings: Settings,
    table: RingTable,
    catalog: Catalog,
    clock: Clock,
    deliver: Deliver,
    random: Callable[[], float],
) -> Node:
    """A node of a cluster, which holds nothing yet: `Node.take` gives it shards of this table."""
    if not is_believable(clock.now()):
        raise WrongClock("the wall clock is beyond the year 2200; set it before timerd starts")
    keys = Keys(await catalog.keys(), catalog, clock)
    node = Node(settings, [], table, await catalog.types(), keys, catalog, clock, deliver, random)
    await node.start()
    return node


def _ring(settings: Settings, stored: RingTable | None) -> RingTable:
    """The table that the data directory began with, or a first one."""
    if stored is None:
        return build_table(range(settings.shards or SHARDS_DEFAULT))
    if stored.version == 1 and settings.shards not in (None, len(stored.shard_ids)):
        raise WrongShards(
            f"the data directory has {len(stored.shard_ids)} shards and {settings.shards} are asked for; "
            "POST /v1/shards:scale changes their number"
        )
    return stored
