"""What bounces off a shard is asked for again where it belongs by now (`Bounced`), and the answers are put together.

A request is split by the ring table of its moment. Until its parts are stepped another table may have been published,
and a shard answers only for what is its own. The node's table is never older than a shard's, so what has bounced finds
its owner. It all happens in tokens, whether or not anybody waits for the answer any more.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from timerd.engine.message import ArmDone, ArmResult, Bounced, Cancel, CancelResult, Gone, Message, Token
from timerd.engine.ring import RingTable, slot_of
from timerd.gathering import ArmPart, Gathering, merge_arm, split_arm

Tell = Callable[[Any], None]


class Sender(Protocol):
    """What the runner is to this."""

    def send(self, shard: int, message: Message, size: int = 64, timers: int = 1) -> None: ...


class Rerouting:
    """For one node. `table` gives the ring table of the moment."""

    def __init__(self, sender: Sender, table: Callable[[], RingTable]) -> None:
        self._sender = sender
        self._table = table

    def arm(self, part: ArmPart, tell: Tell, want_results: bool) -> None:
        """Ask a shard for its part of an arm."""

        def answered(value: Any) -> None:
            if isinstance(value, Gone):
                count = len(part.timers)
                results = [ArmResult("unavailable", 0, 0) for _ in part.timers] if want_results else None
                tell(ArmDone(0, 0, results, range(count)))
                return
            if not isinstance(value, Bounced):
                tell(value)
                return
            left = value.indexes
            conditions = None if part.conditions is None else [part.conditions[index] for index in left]
            parts = split_arm(self._table(), [part.timers[index] for index in left], conditions)
            gathering = Gathering(len(parts), lambda: tell(merge(gathering.values)))

            def merge(answers: Sequence[ArmDone]) -> ArmDone:
                rest = merge_arm(parts, answers, len(left))
                done: ArmDone = value.answer
                results = done.results
                if results is not None:
                    for index, result in zip(left, rest.results or (), strict=True):
                        results[index] = result
                gone = [left[index] for index in rest.unavailable]
                return ArmDone(done.armed + rest.armed, done.conflicts + rest.conflicts, results, gone)

            for number, one in enumerate(parts):
                self.arm(one, gathering.token(number), want_results)

        self._sender.send(part.shard, part.message(answered, want_results), part.bytes, len(part.timers))

    def cancel(self, shard: int, ids: list[str], tell: Tell) -> None:
        """Ask a shard for its part of a cancel."""

        def answered(value: Any) -> None:
            if isinstance(value, Gone):
                tell([CancelResult(False, unavailable=True) for _ in ids])
                return
            if not isinstance(value, Bounced):
                tell(value)
                return
            owners = self._owners(value.ids)
            gathering = Gathering(len(owners), lambda: tell(merge(gathering.values)))

            def merge(answers: Sequence[Any]) -> list[Any]:
                results = list(value.answer)
                for numbers, of in zip(owners.values(), answers, strict=True):
                    for number, result in zip(numbers, of, strict=True):
                        results[value.indexes[number]] = result
                return results

            for index, (owner, numbers) in enumerate(owners.items()):
                self.cancel(owner, [value.ids[number] for number in numbers], gathering.token(index))

        size = sum(len(id) + 8 for id in ids)
        self._sender.send(shard, Cancel(ids, answered), size, len(ids))

    def about(self, id: str, message: Callable[[Token], Message], tell: Tell) -> None:
        """Ask the owner of an id."""

        def answered(value: Any) -> None:
            if isinstance(value, Bounced):
                self.about(id, message, tell)
            else:
                tell(value)

        self._sender.send(self._table().shards[slot_of(id)], message(answered))

    def _owners(self, ids: Sequence[str]) -> dict[int, list[int]]:
        owners: dict[int, list[int]] = {}
        shards = self._table().shards
        for number, id in enumerate(ids):
            owners.setdefault(shards[slot_of(id)], []).append(number)
        return owners
