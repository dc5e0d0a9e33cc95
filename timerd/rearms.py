"""Re-arms: payloads that an answer brings for timers which are to fire again, put where they are to lie."""

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Final

import msgspec

from timerd.engine.answer import Accepted
from timerd.engine.batch import Batch
from timerd.engine.message import ItemResult
from timerd.engine.timer import INLINE_PAYLOAD_BYTES
from timerd.logs import Logs

SETTLE_BYTES: Final = 32  # what an ended timer takes in a frame beside a re-arm's payload


class Rearms:
    """Of one node. `shard_of` says where an id belongs."""

    def __init__(self, logs: Logs, shard_of: Callable[[str], int]) -> None:
        self._logs = logs
        self._shard_of = shard_of
        self._placed: dict[int, Callable[[], None]] = {}  # batch_no -> lets go of the bodies' segments

    def settled(self, batch_no: int, is_open: Callable[[int], bool]) -> None:
        """Something of a batch is durable: when all is, its bodies' segments need not be kept for it."""
        if batch_no in self._placed and not is_open(batch_no):
            self._placed.pop(batch_no)()

    def look(self, is_open: Callable[[int], bool]) -> None:
        """The same for all batches: some may have ended without a word."""
        for batch_no in list(self._placed):
            self.settled(batch_no, is_open)

    async def store(self, batch: Batch, outcome: Accepted) -> Accepted:
        """Put large payloads of re-arms apart; those that the disk has no room for are retries.

        A re-arm inherits its timer's room, so only what a payload has grown by asks for more (a large one is new, all
        of it).
        """
        given = [(id, r.payload) for id, r in outcome.results.items() if isinstance(r.payload, bytes)]
        if not given:
            return outcome
        inline = {t.id: len(t.payload) for t in batch.timers if isinstance(t.payload, bytes)}
        large = sorted([each for each in given if len(each[1]) > INLINE_PAYLOAD_BYTES], key=self._shard)
        grown = {id: len(payload) for id, payload in large}
        body_ids = set(grown)
        for id, payload in given:
            if inline.get(id, 0) < len(payload) <= INLINE_PAYLOAD_BYTES:
                grown[id] = len(payload) - inline.get(id, 0)
        results = dict(outcome.results)
        wanted = [(self._shard_of(id), size, size if id in body_ids else 0) for id, size in grown.items()]
        if refused := await self._logs.grant(wanted) if wanted else set():
            for id in grown:  # and no other: its neighbours have their room
                if self._shard_of(id) in refused:
                    results[id] = ItemResult("retry", error="re-arm: the disk has no room for its payload")
            large = [each for each in large if self._shard(each) not in refused]
        if large:
            by_shard = [(shard, list(bodies)) for shard, bodies in groupby(large, self._shard)]
            found, self._placed[batch.batch_no] = self._logs.place(by_shard)
            for (_, bodies), places in zip(by_shard, found, strict=True):
                for (id, _), place in zip(bodies, places or (), strict=places is not None):
                    results[id] = msgspec.structs.replace(results[id], payload=place)
        return Accepted(results, outcome.unnamed)

    def _shard(self, body: tuple[str, bytes]) -> int:
        return self._shard_of(body[0])


def settle_bytes(results: Mapping[str, ItemResult] | None) -> int:
    """About the bytes that a settlement takes in a frame."""
    if not results:
        return 64
    return SETTLE_BYTES * len(results) + sum(len(r.payload) for r in results.values() if isinstance(r.payload, bytes))
