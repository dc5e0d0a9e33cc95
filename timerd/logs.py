"""Logs: what is asked of the logs of this node themselves: room, places for payloads, and whether shards are ours.

With one log for all shards it is asked straight away; with one a shard each is asked for its part.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from timerd.confirming import Confirming
from timerd.engine.timer import BodyRef
from timerd.group import Group
from timerd.upkeep import Upkeep

Bodies = Sequence[tuple[int, Sequence[tuple[str, bytes]]]]
"""By shard: (id, payload)."""
Wanted = Sequence[tuple[int, int, int]]
"""(shard, bytes of log, those of them that are bodies)"""


class Logs:
    """The hand of `Runners`, which lends who has a shard and which groups there are."""

    def __init__(
        self,
        of: Mapping[int, Group],
        groups: Sequence[Group],
        failed: Callable[[Group, BaseException], None],
        fenced: Callable[[Group, int], bool],
    ) -> None:
        self.sole: Group | None = None
        """The only one that there will ever be."""
        self._of = of
        self._groups = groups
        self.confirming = Confirming(of, failed, fenced)

    async def grant(self, wanted: Wanted) -> set[int]:
        """Ask the logs for room; for which shards there is none. Those that are not here need none."""
        if (sole := self.sole) is not None:
            size = sum([bytes for _, bytes, _ in wanted]) or 64
            if await sole.log.grant(size, sole.upkeep.reserve_bytes(), sum([bodies for _, _, bodies in wanted])):
                return set()
            sole.upkeep.want_room()
            return {shard for shard, _, _ in wanted} or {-1}
        refused: set[int] = set()
        by_group: dict[Group, list[tuple[int, int, int]]] = {}
        for each in wanted:
            if (group := self._of.get(each[0])) is not None:
                by_group.setdefault(group, []).append(each)
        for group, parts in by_group.items():
            size, bodies = sum(bytes for _, bytes, _ in parts), sum(bodies for _, _, bodies in parts)
            if not await group.log.grant(size, group.upkeep.reserve_bytes(), bodies):
                group.upkeep.want_room()
                refused.update(shard for shard, _, _ in parts)
        if refused:
            for group in by_group:  # what the others have granted comes back with their next append
                group.runner.ring()
        return refused

    def place(self, large: Bodies) -> tuple[list[list[BodyRef] | None], Callable[[], None]]:
        """Put payloads apart: their places, None for shards that are not here. Their segments stay until what is
        returned is called: the messages with these places are stepped."""
        found: list[list[BodyRef] | None] = []
        pinned: list[tuple[Upkeep, Counter[int]]] = []
        for shard, bodies in large:
            group = self._of.get(shard)
            if group is None:
                found.append(None)
                continue
            places = group.log.place_bodies(shard, bodies)
            segments = Counter(place.segment for place in places)
            group.upkeep.placed(segments, sum(len(payload) for _, payload in bodies))
            pinned.append((group.upkeep, segments))
            found.append(places)

        def release() -> None:
            for upkeep, segments in pinned:
                upkeep.placing.subtract(segments)

        return found, release

    def unconfirmed(self, shards: Iterable[int]) -> list[int]:
        """Which of these have to be confirmed before a delivery of their timers may begin."""
        if self.sole is not None:
            return [] if self.sole.log.is_confirmed() else list(shards)
        of = self._of
        return [shard for shard in shards if shard not in of or not of[shard].log.is_confirmed()]

    async def confirm(self, shards: Sequence[int]) -> set[int]:
        """Confirm these, all at once, for a delivery that is about to begin. Answer: which could not be, within a
        second in a cluster."""
        if self.sole is not None:
            return set() if await self.sole.log.confirm() else set(shards)
        of = self._of
        asked = {shard: (of[shard], self.confirming.ask(of[shard])) for shard in shards if shard in of}
        if asked:
            await asyncio.wait({told for _, told in asked.values()})
        sure = {shard for shard, (group, told) in asked.items() if told.result() and of.get(shard) is group}
        return {shard for shard in shards if shard not in sure}
