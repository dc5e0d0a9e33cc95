"""Dead letters: one verb over many of them, shard by shard and some at a time, until none is left."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from timerd.engine.message import Bounced, Gone, Message

Parts = Mapping[int, Sequence[tuple[str, int]]]


class Shards(Protocol):
    """What the runners are to this."""

    @property
    def shards(self) -> Mapping[int, Any]: ...


class DeadLetters:
    """Of one node, which lends how it asks a shard and how it splits ids."""

    def __init__(
        self,
        runners: Shards,
        ask: Callable[[int, Callable[[Any], Message]], Awaitable[Any]],
        split: Callable[[Sequence[str]], Parts],
        at_rest: Callable[[], Awaitable[bool]],
    ) -> None:
        self._runners = runners
        self._ask = ask
        self._split = split
        self._at_rest = at_rest

    async def each(self, ids: list[str] | None, type: str | None, verb: Callable[..., Message]) -> int | Gone:
        """Do it to these, or to all of a type; to how many it was done."""
        parts: dict[int, list[str] | None]
        if ids is None:
            parts = dict.fromkeys(self._runners.shards)
        else:
            parts = {shard: [id for id, _ in part] for shard, part in self._split(ids).items()}
        total = 0
        for shard, part in parts.items():
            more = True
            while more:
                answer = await self._ask(shard, partial(verb, part, type))
                if isinstance(answer, Gone):
                    return answer
                left = answer.ids if isinstance(answer, Bounced) else []
                count, more = answer.answer if isinstance(answer, Bounced) else answer
                total += count
                if left:
                    again = await self.each(left, None, verb)
                    if isinstance(again, Gone):
                        return again
                    total += again
        if ids is None and total and not await self._at_rest():
            # Some may have passed from a shard not asked to one that was.
            again = await self.each(None, type, verb)
            return again if isinstance(again, Gone) else total + again
        return total
