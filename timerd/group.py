"""A group: the shards of one log, with the runner that takes their turns and the upkeep of the log."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from timerd.engine.ring import RingTable
from timerd.engine.shard import Shard
from timerd.ports import Clock, Log
from timerd.runner import Runner
from timerd.upkeep import Upkeep

SLOW_MS: Final = 200  # what its log does for it and takes longer is to be waited for by no more Takes
STILL_MS: Final = 1_000  # and longer than this, by nothing

T = TypeVar("T")


class Group:
    """The shards of one log."""

    def __init__(self, log: Log, shards: Sequence[Shard], clock: Clock, table: RingTable) -> None:
        self.log = log
        self.runner = Runner(shards, log, clock)
        self.upkeep = Upkeep(self.runner, log, table, lambda error: None)
        self.task: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why its shards are not here any more."""
        self.error: BaseException | None = None
        """What ended it, if it was the log."""
        self.leaving = False
        """Its shards are let go of: nobody need be told when they have ended."""
        self.held = False
        """Its shards are asked, and what they say is heard."""
        self.slow = self.still = False


def here(group: Group, of: Mapping[int, Group]) -> list[int]:
    """The group's shards that have not been let go of, by who has which: one of the same number may be another's."""
    return [shard for shard in group.runner.shards if of.get(shard) is group]


async def unless_ended(group: Group, work: Coroutine[Any, Any, T]) -> T | None:
    """What it comes to; None when the group ends first: then it is broken off. Raises what it raises."""
    task = asyncio.get_running_loop().create_task(work)
    ended: asyncio.Future[Any] = group.ended
    try:
        await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
        return None if ended.done() else task.result()
    finally:
        task.cancel()
