"""Bodies kept small: those of segments that are mostly dead are copied forward, segments without a live one dropped.

Part of the upkeep of a log, which says when to look. What is live is asked of the shards by messages, and moved by
messages; a body that is copied stays where it was until its timer refers to the copy, by what is durable.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog

from timerd.engine.message import GONE, FindBodies, Relocate
from timerd.engine.ring import RingTable, slot_of
from timerd.engine.timer import BodyRef
from timerd.ports import BodySegment, Log
from timerd.runner import Runner

MOVED_BYTES: Final = 320  # what a moved body takes in a frame, its id among it
BODY_FACTOR: Final = 2.0  # body segments may take this much of the live bodies before live ones are copied forward

log = structlog.get_logger()


class Relocating:
    """One for each log. `reserve_bytes` says what must stay free beside a copy, `table` which shards may own an id;
    `copied` is told how many bytes were copied."""

    def __init__(
        self,
        runner: Runner,
        log: Log,
        reserve_bytes: Callable[[], int],
        table: Callable[[], RingTable],
        copied: Callable[[int], None],
    ) -> None:
        self.placing: Counter[int] = Counter()
        """Body segment -> bodies placed whose message is not stepped yet: it must not be dropped."""
        self._runner = runner
        self._log = log
        self._reserve_bytes = reserve_bytes
        self._table = table
        self._copied = copied
        self._unmovable: set[int] = set()  # body segments that hold a live body whose head is damaged

    def live_bytes(self, segment: int | None = None) -> int:
        """Of live bodies, in all or in a segment."""
        states = [shard.state for shard in self._runner.shards.values()]
        if segment is None:
            return sum(state.live_body_bytes for state in states)
        return sum(state.body_bytes.get(segment, 0) for state in states)

    def work(self, low: bool) -> Callable[[], Awaitable[bool | None]] | None:
        """What there is to do. It returns False if not everything could be copied, since the disk has no room.

        `low`: nothing is copied, since copies take room until what they are copies of is dropped.
        """
        sealed = [s for s in self._log.body_segments() if s.sealed and not self.placing[s.number]]
        if not sealed:
            return None
        live = {s.number: self.live_bytes(s.number) for s in sealed}
        if dead := [number for number, bytes in live.items() if not bytes]:
            return lambda: self._drop(dead)
        if low:
            return None
        largest = max(s.bytes for s in sealed)
        over = self._log.usage().body_bytes - BODY_FACTOR * self.live_bytes() - largest
        if over <= 0:
            return None
        chosen: list[BodySegment] = []
        copied = 0
        for segment in sorted(sealed, key=lambda s: live[s.number] / max(1, s.bytes)):
            if over <= 0 or copied >= largest:
                break
            if segment.number in self._unmovable:
                continue
            chosen.append(segment)
            copied += live[segment.number]
            over -= segment.bytes - live[segment.number]
        return (lambda: self._relocate(chosen)) if chosen else None

    async def _drop(self, segments: Sequence[int]) -> None:
        for segment in segments:
            await self._log.drop_bodies(segment)

    async def _relocate(self, segments: Sequence[BodySegment]) -> bool:
        """Copy live bodies forward; the segments are dropped by a later look, when nothing in them is live.

        All shards are asked at once: bodies arrive as fast as turns are made, and turns are what asking costs. False:
        not everything could be copied, since the disk has no room.
        """
        complete = all(await asyncio.gather(*(self._relocate_one(segment) for segment in segments)))
        if complete:
            self._unmovable.update(s.number for s in segments if self.live_bytes(s.number))
        numbers = [segment.number for segment in segments]
        log.info("bodies_relocated", segments=numbers, complete=complete)
        return complete

    async def _relocate_one(self, segment: BodySegment) -> bool:
        complete = True
        async for bodies in self._log.scan_bodies(segment.number):
            by_shard: dict[int, list[tuple[str, BodyRef]]] = {}
            data = {}
            for body in bodies:
                if body.data is not None:
                    data[body.place] = body.data
                    for shard in self._table().owners_of(slot_of(body.id)):
                        by_shard.setdefault(shard, []).append((body.id, body.place))
            moves = (self._move(shard, candidates, data) for shard, candidates in by_shard.items())
            complete = all(await asyncio.gather(*moves)) and complete
        return complete

    async def _move(self, shard: int, candidates: list[tuple[str, BodyRef]], data: Mapping[BodyRef, bytes]) -> bool:
        """Copy the live ones of a shard's candidates. False: the disk has no room for that."""
        if shard not in self._runner.shards:
            return True
        found = await self._ask(shard, partial(FindBodies, candidates))
        if found is GONE:
            return True
        live = [(candidates[index], generation) for index, _, generation in found]
        if not live:
            return True
        size = sum(place.length for (_, place), _ in live)
        if not await self._log.grant(size + MOVED_BYTES * len(live), self._reserve_bytes(), size):
            return False
        places = self._log.place_bodies(shard, [(id, data[place]) for (id, place), generation in live])
        moves = [(id, generation, old, new) for ((id, old), generation), new in zip(live, places, strict=True)]
        segments = Counter(place.segment for place in places)
        self.placing.update(segments)
        self._copied(size)
        try:
            await self._ask(shard, partial(Relocate, moves))
        finally:
            self.placing.subtract(segments)
        return True

    async def _ask(self, shard: int, message: Callable[[Any], Any]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._runner.send(shard, message(lambda value: None if future.done() else future.set_result(value)))
        return await future
