"""One operation on one id of a slot on the move: decided by the new owner alone, or on what the old owner holds.

What nothing is held of elsewhere is decided as always, by the same decisions. On what is held elsewhere, an operation
either changes nothing and is answered at once, or says what is to become of it (`Pending`).
"""

from collections.abc import Callable
from typing import Any, Final

from timerd.engine import arming, burial, reading
from timerd.engine.draft import Draft
from timerd.engine.effect import Reply
from timerd.engine.message import (
    TIMER_DEAD,
    Arm,
    ArmDone,
    ArmResult,
    Cancel,
    CancelResult,
    Condition,
    FireNow,
    Get,
    Message,
    Purge,
    Revive,
)
from timerd.engine.move_record import ARM, CANCEL, REVIVE, Pending, seen_of
from timerd.engine.timer import DEAD, IN_FLIGHT, URGENT, Timer

Answer = Callable[[Any], None]

_DECISIONS: Final[dict[type, Callable[[Draft, Any], None]]] = {
    Arm: arming.arm,
    Cancel: arming.cancel,
    FireNow: arming.fire_now,
    Get: reading.get,
    Revive: burial.revive,
    Purge: burial.purge,
}


ELSEWHERE: Final = object()
"""What an operation comes to where its id belongs to another shard by now."""


class Operation:
    """A message about one id alone, and whom to tell what it came to."""

    __slots__ = ("_result", "answer", "id", "message")

    def __init__(self, id: str, message: Message, answer: Answer) -> None:
        self.id = id
        self.message = message
        self.answer = answer
        self._result: Callable[[bool], Any] = lambda in_flight: None

    def decide_alone(self, draft: Draft) -> None:
        """Nothing is held elsewhere."""
        self.answer(decided(draft, self.message))

    def decide_on(self, draft: Draft, held: Timer) -> Pending | None:
        """The old owner holds this. None: it stays, and the operation has been answered."""
        match self.message:
            case Arm(timers, _, conditions, want_results):
                return self._arm(draft, held, timers[0], conditions[0] if conditions else None, want_results)
            case Cancel():
                self._result = lambda in_flight: [CancelResult(True, in_flight, held.generation)]
                return self._pending(CANCEL, held, None)
            case FireNow():
                return self._fire(draft, held)
            case Revive():
                if held.state != DEAD:
                    return self._done((0, False))
                self._result = lambda in_flight: (1, False)
                born_at = held.created_at or held.armed_at
                new = Timer(held.fire_at, draft.next_generation(), held.id, held.type, held.payload, born_at)
                return self._pending(REVIVE, held, new)
            case Purge():
                if held.state != DEAD:
                    return self._done((0, False))
                self._result = lambda in_flight: (1, False)
                return self._pending(CANCEL, held, None)
            case _:
                return self._done(reading.view(draft, held))

    def moved(self, in_flight: bool) -> None:
        """What was intended has become so. `in_flight`: what was held was, then."""
        self.answer(self._result(in_flight))

    def _arm(
        self, draft: Draft, held: Timer, timer: Timer, condition: Condition | None, want_results: bool
    ) -> Pending | None:
        status = arming.refusal(condition, held, timer) if condition else None
        if status is None and held.state != DEAD and arming.is_unchanged(held, timer):
            status = "unchanged"
        if status is not None:
            result = [ArmResult(status, held.generation, held.fire_at)]
            return self._done(ArmDone(0, int(status == "conflict"), result if want_results else None))
        timer.created_at = held.created_at or held.armed_at
        timer.generation = draft.next_generation()
        status, previous = ("created", None) if held.state == DEAD else ("moved", held.fire_at)
        results = [ArmResult(status, timer.generation, timer.fire_at, previous)] if want_results else None
        self._result = lambda in_flight: ArmDone(1, 0, results)
        return self._pending(ARM, held, timer)

    def _fire(self, draft: Draft, held: Timer) -> Pending | None:
        if held.state == DEAD:
            return self._done(TIMER_DEAD)
        if held.state == IN_FLIGHT:
            return self._done(ArmResult("unchanged", held.generation, held.fire_at))
        wall_ms = draft.state.now.wall_ms
        born_at = held.created_at or held.armed_at
        new = Timer(wall_ms, draft.next_generation(), held.id, held.type, held.payload, born_at, state=URGENT)
        self._result = lambda in_flight: ArmResult("moved", new.generation, new.fire_at, held.fire_at)
        return self._pending(ARM, held, new)

    def _pending(self, kind: int, held: Timer, timer: Timer | None) -> Pending:
        return Pending(self.id, kind, seen_of(held), held.type, timer)

    def _done(self, value: Any) -> Pending | None:
        self.answer(value)
        return None


def decided(draft: Draft, message: Message) -> Any:
    """Decide a message here and now; what it would have been answered."""
    _DECISIONS[type(message)](draft, message)
    reply = draft.effects.pop()
    assert isinstance(reply, Reply)
    return reply.value
