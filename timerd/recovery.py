"""From a log to shards: replay and check, of all shards of a data directory or of one of a cluster.

It either has everything that was acknowledged, or refuses (`CorruptLog`, `IncompleteDirectory`, `WrongShards`).
"""

from collections.abc import Collection

import structlog

from timerd.engine.errors import CorruptLog, IncompleteDirectory
from timerd.engine.now import Now
from timerd.engine.replay import Replay
from timerd.engine.ring import RingTable
from timerd.engine.settings import Settings
from timerd.engine.shard import Shard
from timerd.ports import Log

log = structlog.get_logger()


class WrongShards(Exception):
    """The number of shards asked for is not the data directory's."""


async def recover_shards(
    settings: Settings,
    table: RingTable,
    log_port: Log,
    now: Now,
    wanted: Collection[int],
    *,
    stored: bool = True,
) -> list[Shard]:
    """The `wanted` shards of the table, which are all that the log may hold. `stored`: the table was there before."""
    moved = table if table.version > 1 else None
    replays = {shard: Replay(shard, table.slots_of(shard), now, moved) for shard in wanted}
    frames = 0
    async for frame in log_port.replay():
        if not stored and settings.shards is None:
            raise IncompleteDirectory(
                "the data directory has a log and no catalogue (catalog.sqlite), which holds the types. Put it back; "
                "or, if it is lost, start once with --shards N, as many as it had, and put the types again"
            )
        if frame.shard not in replays:
            raise CorruptLog("the log", 0, f"a frame of shard {frame.shard}, which the ring table does not have")
        try:
            replays[frame.shard].feed(frame.lsn, list(frame.records))
        except (AssertionError, TypeError, KeyError):
            if stored:
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
    of = {"shard": shards[0].id} if len(shards) == 1 else {}  # in a cluster each comes by itself
    log.info("recovered", **of, frames=frames, timers=sum(shard.state.timers for shard in shards))
    return shards
