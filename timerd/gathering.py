"""One request's way through several shards: split by slot, asked together, answers put together again."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from timerd.engine.message import Arm, ArmDone, ArmResult, Condition
from timerd.engine.ring import RingTable, slot_of
from timerd.engine.timer import Timer


class Gathering:
    """A future for the answers to a number of questions, in the order in which they were asked."""

    def __init__(self, count: int) -> None:
        self._values: list[Any] = [None] * count
        self._left = count
        self.future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def token(self, index: int) -> Callable[[Any], None]:
        """The token of question `index`."""

        def answered(value: Any) -> None:
            self._values[index] = value
            self._left -= 1
            if not self._left and not self.future.done():
                self.future.set_result(self._values)

        return answered


class ArmPart:
    """What one shard gets of an arm."""

    __slots__ = ("bytes", "conditions", "indexes", "shard", "timers")

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.timers: list[Timer] = []
        self.conditions: list[Condition] = []
        self.indexes: list[int] = []
        self.bytes = 0

    def message(self, token: Any, conditional: bool, want_results: bool) -> Arm:
        return Arm(self.timers, token, self.conditions if conditional else None, want_results)


ARM_BYTES = 48  # what a timer takes in a frame beside its id, type and payload


def split_arm(table: RingTable, timers: Sequence[Timer], conditions: Sequence[Condition] | None) -> list[ArmPart]:
    """The parts of an arm, by shard."""
    owners = table.shards
    parts: dict[int, ArmPart] = {}
    for index, timer in enumerate(timers):
        shard = owners[slot_of(timer.id)]
        part = parts.get(shard)
        if part is None:
            part = parts[shard] = ArmPart(shard)
        part.timers.append(timer)
        part.indexes.append(index)
        payload = timer.payload
        part.bytes += ARM_BYTES + len(timer.id)
        if payload.__class__ is bytes:
            part.bytes += len(payload)
        if conditions is not None:
            part.conditions.append(conditions[index])
    return list(parts.values())


def merge_arm(parts: Sequence[ArmPart], answers: Sequence[ArmDone], count: int) -> ArmDone:
    """The shards' answers as one, results in the order of the request."""
    if len(answers) == 1:
        return answers[0]
    armed = sum(answer.armed for answer in answers)
    conflicts = sum(answer.conflicts for answer in answers)
    if answers[0].results is None:
        return ArmDone(armed, conflicts, None)
    results: list[Any] = [None] * count
    for part, answer in zip(parts, answers, strict=True):
        for index, result in zip(part.indexes, answer.results or (), strict=True):
            results[index] = result
    merged: list[ArmResult] = results
    return ArmDone(armed, conflicts, merged)
