"""Decisions about deliveries: what is handed out, and what an outcome makes of it.

An outcome acts on a timer only while the generation that was handed out is still current (its state is IN_FLIGHT);
otherwise it is counted as superseded and changes nothing. Whatever can't be kept by a full disk stays in memory.
"""

from collections.abc import Iterable, Mapping

from timerd.engine.backoff import backoff_ms
from timerd.engine.draft import Draft
from timerd.engine.effect import Settled, Taken
from timerd.engine.message import BodyLost, ItemResult, Settle, SettleSome, Take, WholeFailure
from timerd.engine.misfire import coalesce, place
from timerd.engine.record import Buried, Fired, Retried
from timerd.engine.state import NO_FAILURE
from timerd.engine.timer import IN_FLIGHT, RetryPolicy, Timer


def take(draft: Draft, message: Take) -> None:
    """Hand out ready timers; nothing is logged: a timer in flight at a crash is due again afterwards."""
    state = draft.state
    assert message.batch_no not in draft.flights, "a batch takes from a shard once"
    lane = state.lanes.get(message.type)
    timers: list[Timer] = []
    tried_at = 0
    if lane is not None:
        lane.step_back(state.now)
        if message.key:
            timers = lane.take_parked(message.key, message.count, state.now.wall_ms)
        else:
            timers, tried_at = lane.take(message.limit, message.count, state.now.wall_ms)
    draft.flights[message.batch_no] = timers
    flagged: frozenset[str] = frozenset()
    if message.limit or message.key or state.unclean_generation:  # else nothing can have been delivered before
        flagged = frozenset(
            timer.id
            for timer in timers
            if (timer.failure is not None and timer.failure.unknown)
            or (timer.generation <= state.unclean_generation and timer.fire_at <= state.unclean_at)
        )
    draft.effects.append(Taken(message.batch_no, state.shard, timers, tried_at, flagged))


def body_lost(draft: Draft, message: BodyLost) -> None:
    """Bury timers of a batch that has not left, since what they should carry is lost."""
    lost = dict(message.timers)
    flight = draft.flights.get(message.batch_no, [])
    ids = [t.id for t in flight if t.state == IN_FLIGHT and lost.get(t.id) == t.generation]
    if ids:
        draft.write(Buried(ids, draft.state.now.wall_ms, False, False, message.error))
        gone = set(ids)
        draft.flights[message.batch_no] = [t for t in flight if t.id not in gone]
    draft.reply(message.token, None)


def settle(draft: Draft, message: Settle) -> None:
    """Apply the outcome of a batch to this shard's part of it."""
    flight = draft.flights.pop(message.batch_no, [])
    current = [timer for timer in flight if timer.state == IN_FLIGHT]
    superseded = len(flight) - len(current)
    type = flight[0].type if flight else ""
    dead_before = draft.state.lane(type).totals.dead if flight else 0
    coalesced = 0
    if message.failure is not None:
        if current:
            _fail(draft, type, current, message.failure, message.jitter)
        if superseded:
            draft.write(Fired(type, [], superseded=superseded))
    elif flight:
        coalesced = _answer(draft, type, current, message.results or {}, message.jitter, superseded)
    if superseded:
        _unblock(draft, flight)
    buried = draft.state.lane(type).totals.dead - dead_before if flight else 0
    draft.effects.append(Settled(message.batch_no, draft.state.shard, type, buried, coalesced=coalesced))


def settle_some(draft: Draft, message: SettleSome) -> None:
    """Apply what became of some of a batch; what is parked was not tried, and an outcome of it is nobody's."""
    flight = draft.flights.get(message.batch_no, [])
    left = {timer.id: timer for timer in flight}
    type = flight[0].type if flight else ""
    dead_before = draft.state.lane(type).totals.dead if flight else 0
    gone: list[Timer] = []

    def current(ids: Iterable[str]) -> list[Timer]:
        timers = [left.pop(id) for id in ids]
        gone.extend([timer for timer in timers if timer.state != IN_FLIGHT])
        return [timer for timer in timers if timer.state == IN_FLIGHT]

    fired = [timer.id for timer in current(message.fired)]
    by_failure: dict[WholeFailure, list[str]] = {}
    for id, failure in message.failed:
        by_failure.setdefault(failure, []).append(id)
    failed = [(failure, current(ids)) for failure, ids in by_failure.items()]
    if fired or gone:
        draft.write(Fired(type, fired, superseded=len(gone)))
    for failure, timers in failed:
        if timers:
            _fail(draft, type, timers, failure, message.jitter)
    for key, ids in message.parked.items():
        if timers := current(ids):
            draft.state.lane(type).park(key, timers, draft.state.now.wall_ms)
    if left:
        draft.flights[message.batch_no] = list(left.values())
    else:
        draft.flights.pop(message.batch_no, None)
    if gone:
        _unblock(draft, gone)
    buried = draft.state.lane(type).totals.dead - dead_before if flight else 0
    draft.effects.append(Settled(message.batch_no, draft.state.shard, type, buried, message.part))


def _policy(draft: Draft, type: str) -> RetryPolicy:
    known = draft.types.get(type)
    return known.retry if known else RetryPolicy()


def _unblock(draft: Draft, flight: Iterable[Timer]) -> None:
    """The open delivery of these ids has ended: newer generations that came due meanwhile may go."""
    state = draft.state
    for timer in flight:
        if timer.id in state.blocked:
            state.blocked.discard(timer.id)
            if (held := state.held.pop(timer.id, None)) is not None:
                state.lane(held.type).release(held, state.now.wall_ms)


def _fail(draft: Draft, type: str, timers: list[Timer], failure: WholeFailure, jitter: float) -> None:
    """The whole batch failed."""
    at = draft.state.now.wall_ms
    if failure.bury:
        draft.write(Buried([t.id for t in timers], at, failure.attempted, failure.unknown, failure.error))
    elif failure.counted:
        failed = [(t, failure.error) for t in timers]
        _count_failures(draft, type, failed, failure.limit, jitter, failure.unknown, failure.gap_ms)
    else:
        _retry(draft, [t.id for t in timers], failure.gap_ms, failure.limit, False, failure.unknown, failure.error)


def _answer(
    draft: Draft,
    type: str,
    timers: list[Timer],
    results: Mapping[str, ItemResult],
    jitter: float,
    superseded: int,
) -> int:
    """The processor answered; what it does not name is ok. Says how many turns were coalesced."""
    fired: list[str] = []
    rearmed: list[Timer] = []
    dropped: list[str] = []
    retried: list[tuple[Timer, str]] = []
    dead: dict[str, list[str]] = {}
    known = draft.types.get(type)
    coalesces = known is not None and known.misfire.policy == "coalesce"
    coalesced = 0
    generation = draft.next_generation()
    if not results:
        fired = [timer.id for timer in timers]
        timers = []
    for timer in timers:
        result = results.get(timer.id)
        if result is None:
            fired.append(timer.id)
        elif result.status == "rearm":
            payload = timer.payload if result.payload is None else result.payload
            created_at = timer.created_at or timer.armed_at
            fire_at = result.fire_at
            if coalesces:
                fire_at, skipped = coalesce(known, timer.fire_at, fire_at, draft.state.now.wall_ms)
                coalesced += skipped
            state = place(known, fire_at, draft.state.now.wall_ms)
            rearmed.append(Timer(fire_at, generation, timer.id, type, payload, created_at, state=state))
            generation += 1
        elif result.status == "retry":
            retried.append((timer, result.error))
        elif result.status == "drop":
            dropped.append(timer.id)
        else:
            dead.setdefault(result.error, []).append(timer.id)
    if fired or rearmed or dropped or superseded:
        draft.write(Fired(type, fired, rearmed, [("processor", dropped)] if dropped else [], superseded))
    if retried:
        _count_failures(draft, type, retried, known.batch_size if known else 1, jitter, False)
    for error, ids in dead.items():
        draft.write(Buried(ids, draft.state.now.wall_ms, True, False, error))
    return coalesced


def _count_failures(
    draft: Draft,
    type: str,
    failed: list[tuple[Timer, str]],
    limit: int,
    jitter: float,
    unknown: bool,
    least_gap_ms: int = 1,
) -> None:
    """Failures of the timers' own: each counts, and waits by how many it had. One record for all that are alike."""
    policy = _policy(draft, type)
    buried: dict[str, list[str]] = {}
    again: dict[tuple[int, int, str], list[str]] = {}
    for timer, error in failed:
        before = timer.failure or NO_FAILURE
        counted = before.counted + 1
        if policy.max_attempts and counted >= policy.max_attempts:
            buried.setdefault(error, []).append(timer.id)
        else:
            gap_ms = max(least_gap_ms, round(backoff_ms(policy, counted) * jitter))
            travel = min(limit, before.limit) if before.limit else limit
            again.setdefault((gap_ms, travel, error), []).append(timer.id)
    for error, ids in buried.items():
        draft.write(Buried(ids, draft.state.now.wall_ms, True, unknown, error))
    for (gap_ms, travel, error), ids in again.items():
        _retry(draft, ids, gap_ms, travel, True, unknown, error)


def _retry(draft: Draft, ids: list[str], gap_ms: int, limit: int, counted: bool, unknown: bool, error: str) -> None:
    record = Retried(ids, gap_ms, max(1, limit), counted, unknown, error)
    if draft.low:
        draft.apply_unwritten(record)
    else:
        draft.write(record)
