"""How one request's worth of jobs is carried out: the conversation of a turn, and one outcome for each of its jobs.

Arms that were called one by one share a request without knowing of each other, so one that is refused must not cost
the others: the server says which items are wrong, those get their errors, and the rest is sent again. Arms that were
given together stay together: what is wrong with one is the caller's to hear about, for the request as a whole.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import structs

from timerd_client._coalesce import Chunk, Turn
from timerd_client._errors import (
    ItemError,
    OutcomeUnknown,
    ProblemError,
    ShardUnavailable,
    TimerdError,
    ValidationFailed,
    problem,
)
from timerd_client._exchange import Conversation, Exchange
from timerd_client._protocol import (
    BODY_BYTES_MAX,
    ITEMS_MAX,
    Call,
    EncodedArm,
    arm_request,
    encode_arm,
    is_partial,
    problem_of,
    read_armed,
)
from timerd_client._routing import Routing
from timerd_client._values import Arm

# With several bad items the problem as a whole is `validation`. An item was checked for form before it was sent, so
# the field that the server refuses tells the problem it would have had alone.
FIELD_PROBLEMS: Final = {
    "type": "unknown-type",
    "fire_at": "horizon-exceeded",
    "delay": "horizon-exceeded",
}


def chunks(arms: Iterable[Arm]) -> Iterator[Chunk]:
    """Cut arms into requests. All are checked before the first part is given out."""
    items = [encode_arm(arm) for arm in arms]
    start = size = 0
    for at, item in enumerate(items):
        size += len(item.data) + 1
        if at > start and (at - start == ITEMS_MAX or size > BODY_BYTES_MAX):
            yield Chunk(items[start:at], start)
            start, size = at, len(item.data) + 1
    if start < len(items):
        yield Chunk(items[start:], start)


def perform(turn: Turn, exchange: Exchange, routing: Routing | None = None) -> Conversation[list[Any]]:
    """Carry out a turn. Returns a result or an error for each job; raises nothing of the contract's."""
    exchange.lost = any(job.unsure for job in turn.jobs)
    exchange.routing = routing
    work = turn.jobs[0].work
    if isinstance(work, EncodedArm):
        items = [job.work for job in turn.jobs if isinstance(job.work, EncodedArm)]
        return (yield from _arm(items, exchange))
    try:
        if isinstance(work, Call):
            if routing is not None and len(work.keys) == 1 and isinstance(work.keys[0], str):
                yield from exchange.learn()
                base = routing.address_of(work.keys[0])
                work = structs.replace(work, request=structs.replace(work.request, base=base))
            return [(yield from exchange.call(work) if work.some is None else _in_parts(work, work.some, exchange))]
        return [(yield from _arm_together(work, exchange))]
    except TimerdError as error:
        return [error]


def _arm_together(chunk: Chunk, exchange: Exchange) -> Conversation[list[Any]]:
    outcomes = yield from _arm(chunk.items, exchange, chunk.offset)
    for outcome in outcomes:
        if isinstance(outcome, TimerdError):
            raise outcome
    return outcomes


def _arm(items: Sequence[EncodedArm], exchange: Exchange, offset: int | None = None) -> Conversation[list[Any]]:
    """An ArmResult or an error for each item. With an `offset` the items stand or fall together."""
    outcomes: list[Any] = [None] * len(items)
    parts: deque[Sequence[int]] = deque([range(len(items))])  # indexes, in the order in which they must be sent
    try:
        if (routing := (yield from exchange.learn())) is not None:
            parts = deque(routing.by_owner([item.id for item in items]).values())
        while parts:
            part = parts.popleft()
            request = arm_request([items[index] for index in part])
            if routing is not None:
                request = structs.replace(request, base=routing.address_of(items[part[0]].id))
            reply = yield from exchange.ask(request, partial=True)
            if 200 <= reply.status < 300:
                for index, result in zip(part, read_armed(reply, len(part)), strict=True):
                    outcomes[index] = result
                continue
            error = problem_of(reply)
            if isinstance(error, ShardUnavailable):
                if not is_partial(reply):
                    yield from exchange.pause(error, error.retry_after)
                    parts.appendleft(part)
                    continue
                away = []
                for index, result in zip(part, read_armed(reply, len(part)), strict=True):
                    if result.status == "unavailable":
                        away.append(index)
                    else:
                        outcomes[index] = result
                if away:
                    yield from exchange.pause(error, error.retry_after)
                    parts.appendleft(away)
                continue
            if not isinstance(error, ProblemError) or error.status not in (413, 422):
                raise error
            bad = _bad_items(error, len(part)) if error.status == 422 else {}
            if offset is not None and error.status == 422:
                raise _rebased(error, part, offset)
            if bad:
                good = []
                for at, index in enumerate(part):
                    if at in bad:
                        outcomes[index] = bad[at]
                    else:
                        good.append(index)
                if good:
                    parts.appendleft(good)
            elif len(part) > 1:  # too large together, or no word on which item it is: halves find it
                parts.appendleft(part[len(part) // 2 :])
                parts.appendleft(part[: len(part) // 2])
            elif offset is not None:
                raise error
            else:
                outcomes[part[0]] = error
    except TimerdError as error:
        failed = exchange.explain(error)
        outcomes = [failed.twin() if outcome is None else outcome for outcome in outcomes]
    if exchange.lost:
        outcomes = [_doubt(item, outcome) for item, outcome in zip(items, outcomes, strict=True)]
    return outcomes


def _in_parts(call: Call[Any], some: Callable[[Sequence[int]], Call[Any]], exchange: Exchange) -> Conversation[Any]:
    """The results of a call about many; what an owner that is away has not done is asked for again, by itself."""
    results: list[Any] = []
    todo: Sequence[int] = ()
    while True:
        reply = yield from exchange.ask(call.request, partial=True)
        error = None if 200 <= reply.status < 300 else problem_of(reply)
        if error is not None and not (isinstance(error, ShardUnavailable) and is_partial(reply)):
            if not isinstance(error, ShardUnavailable):
                raise exchange.explain(error) from error.__cause__
            yield from exchange.pause(error, error.retry_after)
            continue
        found = call.read(reply)
        if not results:
            results, todo = list(found), range(len(found))
        for number, result in zip(todo, found, strict=True):
            results[number] = result
        todo = [number for number in todo if results[number].status == "unavailable"]
        if not isinstance(error, ShardUnavailable) or not todo:
            return results
        yield from exchange.pause(error, error.retry_after)
        call = some(todo)


def _bad_items(error: ProblemError, count: int) -> dict[int, ProblemError]:
    """Each bad item's own error, with pointers as if it had been sent alone."""
    found: dict[int, list[ItemError]] = {}
    for entry in error.errors:
        root, _, rest = entry.pointer.removeprefix("/").partition("/")
        number, slash, field = rest.partition("/")
        if root == "timers" and number.isdigit() and int(number) < count:
            found.setdefault(int(number), []).append(ItemError(f"/timers/0{slash}{field}", entry.detail, entry.type))
    return {at: _alone(error, entries) for at, entries in found.items()}


def _alone(error: ProblemError, entries: list[ItemError]) -> ProblemError:
    name = error.name
    if name == "validation":
        names = {
            entry.type.rpartition("/")[2] or FIELD_PROBLEMS.get(entry.pointer.split("/")[3:4][0], "validation")
            if entry.pointer.count("/") > 2
            else "validation"
            for entry in entries
        }
        if len(names) == 1:
            name = names.pop()
    detail = "; ".join(entry.detail for entry in entries)
    return problem(name, error.status, detail or error.detail, entries)


def _rebased(error: ProblemError, part: Sequence[int], offset: int) -> ProblemError:
    """The error with pointers that count as the caller does."""
    entries = []
    for entry in error.errors:
        steps = entry.pointer.split("/")
        if steps[:2] == ["", "timers"] and len(steps) > 2 and steps[2].isdigit() and int(steps[2]) < len(part):
            steps[2] = str(part[int(steps[2])] + offset)
        entries.append(ItemError("/".join(steps), entry.detail, entry.type))
    return problem(error.name, error.status, error.detail, entries)


def _doubt(item: EncodedArm, outcome: Any) -> Any:
    """After a lost answer a conflict may be with the very arm that asks: its first attempt moved the generation."""
    if item.conditional and not isinstance(outcome, (TimerdError, ValidationFailed)) and outcome.status == "conflict":
        return OutcomeUnknown(f"an answer was lost, and the repeat finds generation {outcome.generation}")
    return outcome
