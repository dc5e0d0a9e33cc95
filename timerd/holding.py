"""Holding: which shards of a cluster this node has, and how it takes one up, lets one go, and loses one.

To take a shard is to replay its log and to store `Owned` behind it. To let it go is to begin no more deliveries of it,
let those end that are open, and store `Closed`. It is lost when another writer has it, or when its log has failed; then
nothing that was decided and not stored is ever heard of, and whoever waits for it is told that it is gone.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from timerd.dispatch import Dispatch
from timerd.engine.message import GONE, Close, Tally
from timerd.engine.ring import RingTable
from timerd.engine.settings import Settings
from timerd.group import Group
from timerd.ports import Clock, Log
from timerd.recovery import recover_shards
from timerd.runners import CLOSE_S, Runners

log = structlog.get_logger()


class Holding:
    """Of one node of a cluster. `greet` tells a new shard, by its runner, what all shards know."""

    def __init__(
        self,
        settings: Settings,
        runners: Runners,
        dispatch: Dispatch,
        clock: Clock,
        table: Callable[[], RingTable],
        greet: Callable[[Group, int], None],
    ) -> None:
        self._settings = settings
        self._runners = runners
        self._dispatch = dispatch
        self._clock = clock
        self._table = table
        self._greet = greet
        self._coming: set[int] = set()

    @property
    def held(self) -> Mapping[int, int]:
        """Shard -> epoch."""
        return {id: shard.state.epoch for id, shard in self._runners.shards.items()}

    async def take(self, shard: int, log_port: Log) -> bool:
        """See `Node.take`."""
        assert shard not in {*self._runners.shards, *self._coming}, "it is held here"
        self._coming.add(shard)
        try:
            try:
                [made] = await recover_shards(self._settings, self._table(), log_port, self._clock.now(), [shard])
            except BaseException:
                await log_port.close()
                raise
            made.own(self._clock.now())
            group = self._runners.add(log_port, [made])
            return await self._own(group, shard)
        finally:
            self._coming.discard(shard)

    async def _own(self, group: Group, shard: int) -> bool:
        owned: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def durable(answer: Any) -> None:
            if answer is not GONE and not owned.done():
                self._runners.hold(group)  # before anything else that this turn has come to is heard of
                owned.set_result(None)

        self._dispatch.shutting.forget(shard)  # whatever stood against it was of one before
        self._greet(group, shard)
        group.runner.send(shard, Tally(durable))
        self._runners.run(group)
        either: list[asyncio.Future[Any]] = [owned, group.ended]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            owned.cancel()
            if shard in self._runners.shards:
                self._let_go(shard)
            await self._runners.end(group, "nobody waits for it")
            raise
        if owned.done():
            log.info("shard_taken", shard=shard)
            return True
        await self._runners.end(group, "it could not be taken")  # it has ended; its log is closed when this returns
        if group.error is not None:
            raise group.error
        return False

    async def release(self, shard: int, grace_ms: int) -> bool:
        """See `Node.release`."""
        if shard not in self._runners.shards:
            return False
        group = self._runners.group_of(shard)
        if group.leaving:
            return False
        group.leaving = True
        clean = await self._dispatch.shutting.see_off(shard, grace_ms) and not group.ended.done()
        if group.ended.done():
            return False
        try:
            async with asyncio.timeout(max(CLOSE_S, grace_ms / 1000)):
                await group.upkeep.settle()
                if group.ended.done():  # its log has failed meanwhile, and with that it is gone
                    return False
                self._let_go(shard)
                if clean:
                    clean = await self._close(group, shard)
        except TimeoutError:
            clean = False
        if shard in self._runners.shards and self._runners.group_of(shard) is group:
            self._let_go(shard)
        await self._runners.end(group, "it was let go of")
        log.info("shard_released", shard=shard, clean=clean)
        return clean

    def _let_go(self, shard: int) -> None:
        self._runners.let_go(shard)
        self._dispatch.shutting.forget(shard)

    async def _close(self, group: Group, shard: int) -> bool:
        closed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        group.runner.send(shard, Close(lambda answer: None if closed.done() else closed.set_result(answer is not GONE)))
        return await closed
