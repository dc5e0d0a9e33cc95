"""Decisions about arms, cancels and fire-nows: from a message and the state to records and an answer."""

from timerd.engine.draft import Draft
from timerd.engine.message import (
    TIMER_DEAD,
    Arm,
    ArmDone,
    ArmResult,
    Cancel,
    CancelResult,
    Condition,
    FireNow,
)
from timerd.engine.record import Armed, Cancelled
from timerd.engine.ring import slots_of
from timerd.engine.timer import DEAD, IN_FLIGHT, URGENT, BodyRef, Payload, Timer


def arm(draft: Draft, message: Arm) -> None:
    """Arm in order. An id that comes twice in one message ends the record, so that the second sees the first."""
    state = draft.state
    slots = state.slots
    conditions = message.conditions
    timers = message.timers
    ids = [timer.id for timer in timers]
    repeats = len(set(ids)) != len(ids)
    id_slots = message.slots or slots_of(ids)
    if conditions is None and not repeats:
        # Two steps, without the interpreter in the second, so that the misses of the cache overlap: a third less time.
        by_ids = [slots[slot] for slot in id_slots]
        olds = list(map(dict.get, by_ids, ids))  # type: ignore[arg-type]
        if olds.count(None) == len(olds):
            _create(draft, message, id_slots)
            return
    results: list[ArmResult] | None = [] if message.want_results else None
    armed: list[Timer] = []
    seen: set[str] = set()
    armed_count = conflicts = 0
    generation = draft.next_generation()
    for index, (timer, slot) in enumerate(zip(timers, id_slots, strict=True)):
        if repeats:
            if timer.id in seen:
                if armed:
                    draft.write(Armed(armed))
                armed = []
                seen.clear()
            seen.add(timer.id)
        old = slots[slot].get(timer.id)  # type: ignore[union-attr]
        if conditions is not None and (refused := refusal(conditions[index], old, timer)) is not None:
            if refused == "conflict":
                conflicts += 1
            if results is not None:
                results.append(ArmResult(refused, old.generation if old else 0, old.fire_at if old else 0))
            continue
        if old is None:
            status = "created"
        elif old.state == DEAD:
            status = "created"
            timer.created_at = old.created_at or old.armed_at
        elif is_unchanged(old, timer):
            if results is not None:
                results.append(ArmResult("unchanged", old.generation, old.fire_at))
            continue
        else:
            status = "moved"
            timer.created_at = old.created_at or old.armed_at
        timer.generation = generation
        generation += 1
        armed.append(timer)
        armed_count += 1
        if results is not None:
            moved_from = old.fire_at if old is not None and status == "moved" else None
            results.append(ArmResult(status, timer.generation, timer.fire_at, moved_from))
    if armed:
        draft.write(Armed(armed))
    draft.reply(message.token, ArmDone(armed_count, conflicts, results))


def _create(draft: Draft, message: Arm, id_slots: list[int]) -> None:
    """Arm timers of whose ids nothing is there: the plain way, without a decision for each."""
    timers = message.timers
    for generation, timer in enumerate(timers, draft.next_generation()):
        timer.generation = generation
    draft.write(Armed(timers), id_slots)
    results = [ArmResult("created", t.generation, t.fire_at) for t in timers] if message.want_results else None
    draft.reply(message.token, ArmDone(len(timers), 0, results))


def is_unchanged(old: Timer, new: Timer) -> bool:
    """Same type, time and payload, and the old one is waiting with no failed attempt."""
    return (
        old.fire_at == new.fire_at
        and old.type == new.type
        and old.failure is None
        and old.state != IN_FLIGHT
        and _same_payload(old.payload, new.payload)
    )


def _same_payload(old: Payload, new: Payload) -> bool:
    if isinstance(old, BodyRef) and isinstance(new, BodyRef):
        return old.digest == new.digest and old.length == new.length
    return old == new


def refusal(condition: Condition, old: Timer | None, new: Timer) -> str | None:
    """Why the item is not armed: conflict | kept; None if it is."""
    if condition.if_generation is not None and condition.if_generation != (old.generation if old else 0):
        return "conflict"
    if condition.mode == "replace" or old is None or old.state in (IN_FLIGHT, DEAD):
        return None
    if condition.mode == "keep":
        return "kept"
    if is_unchanged(old, new):
        return None
    kept = old.fire_at <= new.fire_at if condition.mode == "earliest" else old.fire_at >= new.fire_at
    return "kept" if kept else None


def cancel(draft: Draft, message: Cancel) -> None:
    """Cancel each id once; the answer to a repeat is `not found`, as if it had come later."""
    results: list[CancelResult] = []
    found: dict[str, None] = {}
    for id in message.ids:
        old = draft.state.find(id)
        if old is None or id in found:
            results.append(CancelResult(False))
        else:
            found[id] = None
            results.append(CancelResult(True, old.state == IN_FLIGHT, old.generation))
    if found:
        draft.write(Cancelled(list(found)))
    draft.reply(message.token, results)


def fire_now(draft: Draft, message: FireNow) -> None:
    """Re-arm to now, as a new generation that waits for no batch."""
    old = draft.state.find(message.id)
    if old is None:
        draft.reply(message.token, None)
    elif old.state == DEAD:
        draft.reply(message.token, TIMER_DEAD)
    elif old.state == IN_FLIGHT:
        draft.reply(message.token, ArmResult("unchanged", old.generation, old.fire_at))
    else:
        new = Timer(
            draft.state.now.wall_ms,
            draft.next_generation(),
            old.id,
            old.type,
            old.payload,
            old.created_at or old.armed_at,
            state=URGENT,
        )
        previous = old.fire_at
        draft.write(Armed([new]))
        draft.reply(message.token, ArmResult("moved", new.generation, new.fire_at, previous))
