"""A group: the shards of one log, with the runner that takes their turns and the upkeep of the log."""

import asyncio
from collections.abc import Sequence

from timerd.engine.ring import RingTable
from timerd.engine.shard import Shard
from timerd.ports import Clock, Log
from timerd.runner import Runner
from timerd.upkeep import Upkeep


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
