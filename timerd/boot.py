"""From a log to a running node: replay, check, own.

A start either has everything that was acknowledged, or refuses (`CorruptLog`, `IncompleteDirectory`, `WrongShards`,
`WrongClock`).
"""

from collections.abc import Callable

import structlog

from timerd.clock import is_believable
from timerd.engine.errors import CorruptLog, IncompleteDirectory
from timerd.engine.now import Now
from timerd.engine.replay import Replay
from timerd.engine.ring import RingTable, build_table
from timerd.engine.settings import Settings
from timerd.engine.shard import Shard
from timerd.keys import Keys
from timerd.node import Node
from timerd.ports import Catalog, Clock, Deliver, Log
from timerd.scaling import SHARDS_DEFAULT

log = structlog.get_logger()


class WrongShards(Exception):
    """The number of shards asked for is not the data directory's."""


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
    shards = await _recover(settings, stored, table, log_port, now)
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
    return Node(settings, shards, table, await catalog.types(), keys, log_port, catalog, clock, deliver, random)


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


async def _recover(
    settings: Settings, stored: RingTable | None, table: RingTable, log_port: Log, now: Now
) -> list[Shard]:
    moved = table if table.version > 1 else None
    replays = {shard: Replay(shard, table.slots_of(shard), now, moved) for shard in table.known_ids}
    frames = 0
    async for frame in log_port.replay():
        if stored is None and settings.shards is None:
            raise IncompleteDirectory(
                "the data directory has a log and no catalogue (catalog.sqlite), which holds the types. Put it back; "
                "or, if it is lost, start once with --shards N, as many as it had, and put the types again"
            )
        if frame.shard not in replays:
            raise CorruptLog("the log", 0, f"a frame of shard {frame.shard}, which the ring table does not have")
        try:
            replays[frame.shard].feed(frame.lsn, list(frame.records))
        except (AssertionError, TypeError, KeyError):
            if stored is not None:
                raise
            raise WrongShards(f"the log was not written with {len(replays)} shards") from None
        frames += 1
    await log_port.check_bodies([place for replay in replays.values() for place in replay.live_bodies()])
    kept = -(-settings.dead_letters_kept // len(table.shard_ids))
    shards = []
    for replay in replays.values():
        state = replay.finish()
        if isinstance(state, str):
            raise CorruptLog("the log", 0, state)
        shards.append(Shard(state, kept))
    log.info("recovered", frames=frames, timers=sum(shard.state.timers for shard in shards))
    return shards
