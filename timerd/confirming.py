"""Confirming: whether the shards of a log are still ours, asked of it once for all deliveries that want to know.

A renewal is an append, and may stand still like one, with nothing said by the runner. So it is treated as one that does
(ADR 27): after `SLOW_S` the shard is said to be unsure, so that it is asked for nothing more, and after `CONFIRM_S`
nobody waits for it. It goes on, and its end says that the shard can be asked again, or ends it. Who asks meanwhile is
told at once.

It does not know what a delivery is, nor what becomes of timers whose shard is unsure.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from timerd.group import SLOW_MS, STILL_MS, Group, here, unless_ended

SLOW_S: Final = SLOW_MS / 1000
CONFIRM_S: Final = STILL_MS / 1000  # from its beginning, whoever asks when

log = structlog.get_logger()


class Confirming:
    """The hand of `Logs`, with what `Runners` lends that."""

    def __init__(
        self,
        of: Mapping[int, Group],
        failed: Callable[[Group, BaseException], None],
        fenced: Callable[[Group, int], bool],
    ) -> None:
        self.on_unsure: Callable[[int], None] = lambda shard: None
        """Told of a shard whose confirmation takes long."""
        self.on_sure: Callable[[int], None] = lambda shard: None
        """Told when that has ended, of those that are here."""
        self._of = of
        self._failed = failed
        self._fenced = fenced
        self._asked: dict[Group, asyncio.Future[bool]] = {}
        self._unsure: set[Group] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # one a group at most

    def ask(self, group: Group) -> asyncio.Future[bool]:
        """Whether its shards are ours, to be waited for and not cancelled; it ends within `CONFIRM_S`, with False if
        nothing is known by then."""
        told = self._asked.get(group)
        if told is None:
            loop = asyncio.get_running_loop()
            told = self._asked[group] = loop.create_future()
            task = loop.create_task(self._confirm(group, told))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return told

    async def _confirm(self, group: Group, told: asyncio.Future[bool]) -> None:
        loop = asyncio.get_running_loop()
        slow = loop.call_later(SLOW_S, self._takes_long, group)
        still = loop.call_later(CONFIRM_S, self._stands_still, group, told)
        began, ours = loop.time(), False
        try:
            ours = await self._ask(group)
        finally:
            del self._asked[group]
            slow.cancel()
            still.cancel()
            if told.done():
                for shard in here(group, self._of):
                    log.info("shard_confirmed", shard=shard, after_ms=round(1000 * (loop.time() - began)))
            else:
                told.set_result(ours)
            if group in self._unsure:
                self._unsure.remove(group)
                for shard in here(group, self._of):
                    self.on_sure(shard)

    async def _ask(self, group: Group) -> bool:
        try:
            ours = await unless_ended(group, group.log.confirm())
        except Exception as error:
            self._failed(group, error)
            return False
        if ours is False:
            for shard in group.log.fenced:
                self._fenced(group, shard)
        return bool(ours)

    def _takes_long(self, group: Group) -> None:
        self._unsure.add(group)
        for shard in here(group, self._of):
            self.on_unsure(shard)

    def _stands_still(self, group: Group, told: asyncio.Future[bool]) -> None:
        for shard in here(group, self._of):
            log.warning("shard_unconfirmed", shard=shard, reason=f"its log has not answered for {CONFIRM_S:g} s")
        told.set_result(False)
