"""Bodies: payloads that lie apart, read from the logs of this node.

With one log for all shards they are read straight away. With one a shard, all are asked at the same time, and a
delivery waits for none that stands still: whose servers have answered nothing for `READ_S`. Such a one is named once,
and not asked for deliveries any more; the read that found it out goes on, and its end says that the shard can be read
again. Readers wait: they are not many, and bounded elsewhere.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from timerd.engine.errors import LogFailed
from timerd.engine.timer import BodyRef
from timerd.group import STILL_MS, Group, here, unless_ended

READ_S: Final = STILL_MS / 1000  # without a single answer: then others' timers are not to wait any longer

log = structlog.get_logger()


class Fetched(NamedTuple):
    """What a delivery has got."""

    bodies: list[bytes | None]
    """Parallel to the places; None for one that can't be read, or whose shard is not here."""
    unread: frozenset[int] = frozenset()
    """Indexes of those that nobody has answered for."""
    still: frozenset[int] = frozenset()
    """Their shards."""


class Bodies:
    """The hand of `Runners`, which lends who has a shard and which groups there are."""

    def __init__(
        self, of: Mapping[int, Group], groups: Sequence[Group], failed: Callable[[Group, BaseException], None]
    ) -> None:
        self.sole: Group | None = None
        """The only one that there will ever be."""
        self.on_still: Callable[[int], None] = lambda shard: None
        """Told of a shard whose payloads can't be read just now."""
        self.on_read: Callable[[int], None] = lambda shard: None
        """Told when they can."""
        self._of = of
        self._groups = groups
        self._failed = failed
        self._still: dict[Group, asyncio.Task[Any]] = {}  # -> the read that nobody waits for

    async def read_bodies(self, places: Sequence[BodyRef]) -> list[bytes | None]:
        """The payloads, however long that takes; None for one that can't be read, or whose shard is not here."""
        if self.sole is not None:
            return await self.sole.log.read_bodies(places)
        found: list[bytes | None] = [None] * len(places)
        wanted = self._by_group(places)
        parts = await asyncio.gather(*(self._read(group, some) for group, (_, some) in wanted.items()))
        for (indexes, _), part in zip(wanted.values(), parts, strict=True):
            for index, body in zip(indexes, part, strict=True):
                found[index] = body
        return found

    async def fetch(self, places: Sequence[BodyRef]) -> Fetched:
        """The payloads, for a delivery: without those of shards that stand still."""
        if self.sole is not None:
            return Fetched(await self.sole.log.read_bodies(places))
        found: list[bytes | None] = [None] * len(places)
        wanted = self._by_group(places)
        loop = asyncio.get_running_loop()
        reading = {
            loop.create_task(self._read(group, some)): group
            for group, (_, some) in wanted.items()
            if group not in self._still
        }
        rest = set(reading)
        try:
            while rest:
                before = {task: reading[task].log.body_answers for task in rest}
                done, rest = await asyncio.wait(rest, timeout=READ_S)
                for task in done:
                    for index, body in zip(wanted[reading[task]][0], task.result(), strict=True):
                        found[index] = body
                for task in [task for task in rest if reading[task].log.body_answers == before[task]]:
                    rest.remove(task)
                    self._stands_still(reading[task], task)
        finally:
            for task in rest:
                task.cancel()
        still = [group for group in wanted if group in self._still]
        unread = frozenset(index for group in still for index in wanted[group][0])
        return Fetched(found, unread, frozenset(shard for group in still for shard in group.runner.shards))

    async def _read(self, group: Group, places: Sequence[BodyRef]) -> Sequence[bytes | None]:
        """Until its shards go: then nobody else is to wait for it."""
        read = None
        try:
            read = await unless_ended(group, group.log.read_bodies(places))
        except LogFailed as error:
            self._failed(group, error)
        return [None] * len(places) if read is None else read

    def _stands_still(self, group: Group, task: asyncio.Task[Any]) -> None:
        if group in self._still:
            task.cancel()  # another delivery has found it out at the same time
            return
        self._still[group] = task
        for shard in here(group, self._of):
            log.warning("payloads_unread", shard=shard, reason=f"its servers have answered nothing for {READ_S:g} s")
            self.on_still(shard)
        task.add_done_callback(partial(self._goes_on, group))

    def _goes_on(self, group: Group, task: asyncio.Task[Any]) -> None:
        del self._still[group]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(group, error)
        for shard in here(group, self._of):
            log.info("payloads_read", shard=shard)
            self.on_read(shard)

    def _by_group(self, places: Sequence[BodyRef]) -> dict[Group, tuple[list[int], list[BodyRef]]]:
        """What is to be read where, with its indexes. Places of shards that are not here are in none."""
        found: dict[Group, tuple[list[int], list[BodyRef]]] = {}
        for index, place in enumerate(places):
            if (group := self._group_of(place)) is not None:
                indexes, some = found.setdefault(group, ([], []))
                indexes.append(index)
                some.append(place)
        return found

    def _group_of(self, place: BodyRef) -> Group | None:
        for group in self._groups:
            shard = group.log.shard_of(place)
            return group if shard is None else self._of.get(shard)
        return None
