"""What a shard with slots on the move does with a caller's message: which part is whose.

An id's part is done here and now (the id is held here, or its slot is plainly this shard's), waits in a queue until the
old owner has been asked (`Moving`), or belongs to another shard by now, which the caller is told (`Bounced`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from timerd.engine import burial
from timerd.engine.message import (
    Arm,
    ArmDone,
    ArmResult,
    Bounced,
    Cancel,
    CancelResult,
    FireNow,
    Get,
    Message,
    Purge,
    Revive,
)
from timerd.engine.operation import ELSEWHERE, Answer, Operation, decided
from timerd.engine.ring import slot_of, slots_of
from timerd.engine.timer import Timer

if TYPE_CHECKING:
    from timerd.engine.moving import Moving

HERE, QUEUED, AWAY = range(3)


class _Gathered:
    """The answers to the parts of one message, until it can be answered as a whole."""

    def __init__(
        self, moving: "Moving", message: Any, ids: list[str], together: Callable[[list[tuple[list[int], Any]]], Any]
    ) -> None:
        """`together` makes one answer of those to the parts: (indexes, answer)."""
        self._moving = moving
        self._token = message.token
        self._ids = ids
        self._together = together
        self._parts: list[tuple[list[int], Any]] = []
        self._left = len(ids)
        self._away: list[int] = []

    def part(self, index: int) -> Answer:
        """Whom to tell what became of id number `index`."""
        return lambda value: self.give([index], value)

    def give(self, indexes: list[int], value: Any) -> None:
        """The answer to some."""
        if value is ELSEWHERE:
            self._away += indexes
        else:
            self._parts.append((indexes, value))
        self._left -= len(indexes)
        if self._left == 0:
            answer = self._together(self._parts)
            if self._away:
                self._away.sort()
                answer = Bounced(answer, [self._ids[index] for index in self._away], self._away)
            self._moving.draft.reply(self._token, answer)


def sort_out(moving: "Moving", message: Message) -> bool:
    """Do a caller's message part by part. False: all of it is for here and now, in the usual way."""
    match message:
        case Arm():
            return _arm(moving, message)
        case Cancel():
            if message.ids:
                _split(moving, message, message.ids, Cancel, _cancelled)
            return bool(message.ids)
        case FireNow() | Get():
            answer = _single(moving, message)
            place = moving.place(message.id, slot_of(message.id))
            if place == QUEUED:
                moving.queue(Operation(message.id, message, answer))
            elif place == AWAY:
                answer(ELSEWHERE)
            return place != HERE
        case Revive() | Purge():
            if message.ids is None:
                _of_type(moving, message)
            elif message.ids:
                _split(moving, message, list(dict.fromkeys(message.ids)), type(message), _summed)
            return message.ids != []
        case _:
            return False


def _single(moving: "Moving", message: FireNow | Get) -> Answer:
    def answered(value: Any) -> None:
        bounced = Bounced(None, [message.id], [0])
        moving.draft.reply(message.token, bounced if value is ELSEWHERE else value)

    return answered


def _arm(moving: "Moving", message: Arm) -> bool:
    timers = message.timers
    ids = [timer.id for timer in timers]
    slots = message.slots or slots_of(ids)
    if not moving.concerns(slots):
        return False
    gathered = _Gathered(moving, message, ids, lambda parts: _armed(parts, len(ids), message.want_results))
    here: list[int] = []
    conditions = message.conditions
    for index, (timer, slot) in enumerate(zip(timers, slots, strict=True)):
        place = moving.place(timer.id, slot)
        if place == HERE:
            here.append(index)
        elif place == AWAY:
            gathered.give([index], ELSEWHERE)
        else:
            chosen = [conditions[index]] if conditions is not None else None
            alone = Arm([timer], None, chosen, message.want_results)
            moving.queue(Operation(timer.id, alone, gathered.part(index)))
    if here:
        given: list[Timer] = [timers[index] for index in here]
        chosen = [conditions[index] for index in here] if conditions is not None else None
        own = Arm(given, None, chosen, message.want_results, [slots[index] for index in here])
        gathered.give(here, decided(moving.draft, own))
    return True


def _split(moving: "Moving", message: Any, ids: list[str], verb: Any, together: Callable[..., Any]) -> None:
    """`verb(ids, token)` or `verb(ids, None, token)`."""
    gathered = _Gathered(moving, message, ids, lambda parts: together(parts, len(ids)))

    def only(chosen: list[str]) -> Message:
        made: Message = Cancel(chosen, None) if verb is Cancel else verb(chosen, None, None)
        return made

    here: list[int] = []
    seen: set[str] = set()
    for index, (id, slot) in enumerate(zip(ids, slots_of(ids), strict=True)):
        place = moving.place(id, slot)
        if place == HERE and id not in seen:
            here.append(index)
            seen.add(id)
        elif place == AWAY:
            gathered.give([index], ELSEWHERE)
        elif place == HERE:  # a repeat: what comes later finds nothing
            gathered.give([index], [CancelResult(False)] if verb is Cancel else (0, False))
        else:
            moving.queue(Operation(id, only([id]), gathered.part(index)))
    if here:
        gathered.give(here, decided(moving.draft, only([ids[index] for index in here])))


def _of_type(moving: "Moving", message: Revive | Purge) -> None:
    """The dead letters of a type: those of ceded slots are to be asked for by their ids, where they belong."""
    ceded = moving.draft.state.moves.ceded
    lane = moving.draft.state.lanes.get(message.type or "")
    chosen = [id for id, _ in zip(lane.dead if lane else (), range(burial.AT_ONCE), strict=False)]
    away = [id for id, slot in zip(chosen, slots_of(chosen), strict=True) if slot in ceded]
    gone = set(away)
    more = bool(lane) and len(lane.dead) > burial.AT_ONCE  # type: ignore[union-attr]  # as just seen
    done, _ = decided(moving.draft, type(message)([id for id in chosen if id not in gone], None, None))
    answer: Any = (done, more)
    if away:
        answer = Bounced(answer, away, list(range(len(away))))
    moving.draft.reply(message.token, answer)


def _armed(parts: list[tuple[list[int], ArmDone]], count: int, want_results: bool) -> ArmDone:
    results: list[Any] = [None] * count
    for indexes, done in parts:
        for index, result in zip(indexes, done.results or (), strict=False):
            results[index] = result
    shown: list[ArmResult] | None = results if want_results else None
    return ArmDone(sum(done.armed for _, done in parts), sum(done.conflicts for _, done in parts), shown)


def _cancelled(parts: list[tuple[list[int], list[CancelResult]]], count: int) -> list[CancelResult]:
    results = [CancelResult(False)] * count
    for indexes, done in parts:
        for index, result in zip(indexes, done, strict=True):
            results[index] = result
    return results


def _summed(parts: list[tuple[list[int], tuple[int, bool]]], count: int) -> tuple[int, bool]:
    return sum(done for _, (done, _) in parts), False
