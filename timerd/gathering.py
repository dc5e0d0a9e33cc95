"""One request's way through several shards: split by slot, asked together, answers put together again."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from timerd.engine.message import Arm, ArmDone, ArmResult, Condition
from timerd.engine.ring import RingTable, slots_of
from timerd.engine.timer import INLINE_PAYLOAD_BYTES, Timer


class Gathering:
    """A future for the answers to a number of questions, in the order in which they were asked."""

    def __init__(self, count: int, then: Callable[[], None] | None = None) -> None:
        """`then` is called when all have been answered, also when nobody waits for that any more."""
        self._then = then
        self.values: list[Any] = [None] * count
        self._left = count
        self.future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        if not count:  # nothing was asked, so nobody answers
            self._end()

    def token(self, index: int) -> Callable[[Any], None]:
        """The token of question `index`."""

        def answered(value: Any) -> None:
            self.values[index] = value
            self._left -= 1
            if not self._left:
                self._end()

        return answered

    def _end(self) -> None:
        if self._then is not None:
            self._then()
        if not self.future.done():
            self.future.set_result(self.values)


class ArmPart:
    """What one shard gets of an arm."""

    __slots__ = ("bytes", "conditions", "indexes", "shard", "slots", "timers")

    def __init__(self, shard: int, indexes: list[int], timers: Sequence[Timer], slots: Sequence[int]) -> None:
        """`indexes`: which of the request's timers, and of their slots, are this shard's."""
        self.shard = shard
        self.indexes = indexes
        self.timers = [timers[index] for index in indexes]
        self.slots = [slots[index] for index in indexes]
        self.conditions: list[Condition] | None = None
        names = [timer.id for timer in self.timers] + [timer.type for timer in self.timers]
        payloads = [p for timer in self.timers if (p := timer.payload).__class__ is bytes]
        self.bytes = (
            ARM_BYTES * len(indexes) + len("".join(names).encode()) + sum([len(payload) for payload in payloads])
        )

    def message(self, token: Any, want_results: bool) -> Arm:
        return Arm(self.timers, token, self.conditions, want_results, self.slots)


ARM_BYTES = 48  # what a timer takes in a frame beside its id, type and payload


def split_arm(
    table: RingTable,
    timers: Sequence[Timer],
    conditions: Sequence[Condition] | None,
    slots: Sequence[int] | None = None,
) -> list[ArmPart]:
    """The parts of an arm, by shard. `slots`: of the timers' ids, if they are known already."""
    owners = table.shards
    if slots is None:
        slots = slots_of([timer.id for timer in timers])
    by_shard: dict[int, list[int]] = {}
    for index, slot in enumerate(slots):
        indexes = by_shard.get(owners[slot])
        if indexes is not None:
            indexes.append(index)
        else:
            by_shard[owners[slot]] = [index]
    parts = [ArmPart(shard, indexes, timers, slots) for shard, indexes in by_shard.items()]
    if conditions is not None:
        for part in parts:
            part.conditions = [conditions[index] for index in part.indexes]
    return parts


def large_payloads(parts: Sequence[ArmPart]) -> list[tuple[int, list[tuple[Timer, bytes]]]]:
    """The payloads that will lie apart, with their timers, by shard."""
    found = []
    for part in parts:
        payloads = [(timer, timer.payload) for timer in part.timers]
        large = [(t, p) for t, p in payloads if isinstance(p, bytes) and len(p) > INLINE_PAYLOAD_BYTES]
        if large:
            found.append((part.shard, large))
    return found


def merge_arm(parts: Sequence[ArmPart], answers: Sequence[ArmDone], count: int) -> ArmDone:
    """The shards' answers as one, results in the order of the request."""
    if len(answers) == 1:
        return answers[0]  # its indexes are the request's
    if not answers:
        return ArmDone(0, 0, [])
    armed = sum(answer.armed for answer in answers)
    conflicts = sum(answer.conflicts for answer in answers)
    gone = [part.indexes[i] for part, answer in zip(parts, answers, strict=True) for i in answer.unavailable]
    if answers[0].results is None:
        return ArmDone(armed, conflicts, None, gone)
    results: list[Any] = [None] * count
    for part, answer in zip(parts, answers, strict=True):
        for index, result in zip(part.indexes, answer.results or (), strict=True):
            results[index] = result
    merged: list[ArmResult] = results
    return ArmDone(armed, conflicts, merged, gone)
