"""A shard on a bench: a clock to turn, a log to crash with, and verbs, so that a test reads as what happens.

Every turn ends in `check`, which holds the shard's caches against its timers. Frames are kept encoded, since that is
when they are encoded: what a later step does to a live timer must not reach back into the log.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from timerd.engine.catchup import MISSED
from timerd.engine.effect import Effect, Ready, Reply, Settled, Taken
from timerd.engine.message import (
    Arm,
    ArmResult,
    Cancel,
    Close,
    Condition,
    FireNow,
    Get,
    ItemResult,
    List,
    ListDead,
    Message,
    Next,
    Settle,
    SetTypes,
    ShardTally,
    Take,
    Tally,
    TimerView,
    WholeFailure,
)
from timerd.engine.now import Now
from timerd.engine.record import Record
from timerd.engine.replay import Replay
from timerd.engine.ring import SLOTS, slot_of
from timerd.engine.shard import Shard
from timerd.engine.state import BODY_REF_BYTES, State
from timerd.engine.timer import (
    DEAD,
    GONE,
    HELD,
    IN_FLIGHT,
    PARKED,
    READY,
    RETRYING,
    URGENT,
    BodyRef,
    Payload,
    Timer,
    TimerType,
)

T0 = 1_796_025_600_000  # 2026-11-30T08:00:00Z
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
ALL_SLOTS = list(range(SLOTS))
NO_LANE = -2  # what is parked under a key
PLAIN = TimerType("t", batch_size=100, max_lag_ms=0)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Record]).decode


class Bench:
    """One shard, its clock and its log."""

    def __init__(self, *types: TimerType, slots: list[int] = ALL_SLOTS, kept: int = 1_000) -> None:
        self.types = {type.name: type for type in types or (PLAIN,)}
        self.slots = slots
        self.kept = kept
        self.wall_us = T0 * 1000
        self.boot_ms = 5_000
        self.frames: list[tuple[int, bytes]] = []
        self.told: dict[tuple[str, int], Ready] = {}
        self.parked: dict[tuple[str, str], int] = {}
        """(type, key) -> how many the shard says are parked there."""
        self.effects: list[Effect] = []
        self.records: list[Record] = []
        self._lanes: dict[int, tuple[str, int]] = {}  # batch_no -> what it was taken from
        self.begin(Shard(State(0, slots, self.now), kept))

    @property
    def now(self) -> Now:
        return Now(self.wall_us, self.boot_ms)

    @property
    def wall_ms(self) -> int:
        return self.wall_us // 1000

    @property
    def state(self) -> State:
        return self.shard.state

    # ---- the process

    def begin(self, shard: Shard) -> None:
        self.shard = shard
        self.told, self.parked = {}, {}
        shard.own(self.now)
        self.turn(SetTypes(self.types))

    def crash(self, from_lsn: int = 1) -> None:
        """Lose everything but the log from a frame on, and start again."""
        self.begin(Shard(self.recovered(from_lsn), self.kept))

    def recovered(self, from_lsn: int = 1) -> State:
        replay = Replay(0, self.slots, self.now)
        for lsn, frame in self.frames:
            if lsn >= from_lsn:
                replay.feed(lsn, _decode(frame))
        state = replay.finish()
        assert isinstance(state, State), state
        return state

    def pass_ms(self, ms: int, boot_ms: int | None = None) -> None:
        """Let time go by, backwards too on the wall, and take a turn."""
        self.wall_us += ms * 1000
        self.boot_ms += max(0, ms) if boot_ms is None else boot_ms
        self.turn()

    # ---- turns

    def step(self, message: Message) -> None:
        self.shard.step(self.now, message)

    def turn(self, *messages: Message) -> list[Effect]:
        """Step these and end the turn."""
        for message in messages:
            self.step(message)
        self.shard.tick(self.now)
        turn = self.shard.take()
        if turn.records:
            assert turn.lsn == (self.frames[-1][0] + 1 if self.frames else 1)
            self.frames.append((turn.lsn, _encode(turn.records)))
        for effect in turn.effects:
            if isinstance(effect, Taken):
                self.told.pop(self._lanes[effect.batch_no], None)
            elif isinstance(effect, Ready) and effect.key:
                self.parked[effect.type, effect.key] = effect.count
            elif isinstance(effect, Ready):
                assert effect.count >= 0
                self.told[effect.type, effect.limit] = effect
        self.records, self.effects = turn.records, turn.effects
        check(self.shard)
        check_told(self.shard, self.told, self.parked)
        return turn.effects

    def ask(self, message: Message) -> Any:
        """The one reply of a turn with this message alone."""
        (value,) = [effect.value for effect in self.turn(message) if isinstance(effect, Reply)]
        return value

    # ---- verbs

    def arm(
        self,
        id: str,
        at: int,
        type: str = "t",
        payload: Payload = None,
        mode: str = "replace",
        if_generation: int | None = None,
    ) -> ArmResult:
        condition = [Condition(mode, if_generation)] if mode != "replace" or if_generation is not None else None
        result: ArmResult = self.ask(Arm([Timer(at, 0, id, type, payload)], None, condition)).results[0]
        return result

    def arm_all(self, ids: Iterable[str], at: int, type: str = "t") -> None:
        self.ask(Arm([Timer(at, 0, id, type) for id in ids], None, want_results=False))

    def cancel(self, *ids: str) -> Any:
        return self.ask(Cancel(list(ids), None))

    def fire_now(self, id: str) -> Any:
        return self.ask(FireNow(id, None))

    def take_message(self, count: int = 1_000, type: str = "t", limit: int = 0, key: str = "") -> Take:
        batch_no = len(self._lanes) + 1
        self._lanes[batch_no] = (type, NO_LANE if key else limit)
        return Take(batch_no, type, limit, count, key)

    def take(self, count: int = 1_000, type: str = "t", limit: int = 0, key: str = "") -> Taken:
        message = self.take_message(count, type, limit, key)
        (taken,) = [effect for effect in self.turn(message) if isinstance(effect, Taken)]
        return taken

    def settle(self, taken: Taken, failure: WholeFailure | None = None, **results: ItemResult) -> None:
        effects = self.turn(Settle(taken.batch_no, 1.0, results or None, failure))
        assert [e.batch_no for e in effects if isinstance(e, Settled)] == [taken.batch_no]

    def peek(self, message: Message) -> Any:
        """What a read would be answered in this turn, without ending it."""
        self.step(message)
        reply = self.shard._draft.effects.pop()
        assert isinstance(reply, Reply)
        return reply.value

    def close(self) -> None:
        """The end of a clean stop."""
        self.ask(Close(None))

    def get(self, id: str) -> TimerView | None:
        view: TimerView | None = self.peek(Get(id, None))
        return view

    def tally(self) -> ShardTally:
        tally: ShardTally = self.peek(Tally(None))
        return tally

    def totals(self, type: str = "t") -> dict[str, Any]:
        """What is not 0."""
        return {name: n for name, n in msgspec.structs.asdict(self.state.lane(type).totals).items() if n}

    def ids(self, type: str | None = None, count: int = 1_000) -> list[str]:
        """By due time."""
        return [view.id for view in self.peek(Next(type, count, None))]

    def listed(self, message: List | ListDead) -> list[TimerView]:
        views = []
        after: tuple[int, str] | None = message.after
        while after is not None:
            page = self.peek(msgspec.structs.replace(message, after=after))
            views += [view for _, view in page.views]
            after = page.upto
        return views


def ids_of(taken: Taken) -> list[str]:
    return [timer.id for timer in taken.timers]


def failed(error: str = "HTTP 500", gap_ms: int = SECOND, limit: int = 100, **more: bool) -> WholeFailure:
    return WholeFailure(error, gap_ms, limit, **more)


# ---- what must hold after any step


def check(shard: Shard) -> None:
    """The invariants of state.py, and that each cache says what the timers say."""
    state = shard.state
    assert sorted(slot for run in state.runs for slot in run.slots) == sorted(state.covered)
    timers = [timer for run in state.runs for timer in run.by_id.values()]
    flights = [timer for flight in shard._draft.flights.values() for timer in flight]
    for run in state.runs:
        assert all(id == timer.id and timer.state != GONE for id, timer in run.by_id.items())
        assert {slot_of(id) for id in run.by_id} <= set(run.slots)
    assert state.timers == len(timers)
    assert state.id_bytes == sum(len(timer.id.encode()) for timer in timers)
    pending = [p.timer for p in state.moves.all_pending() if p.timer is not None]
    payloads = [timer.payload for timer in (*timers, *pending)]
    bodies: Counter[int] = Counter()
    for payload in payloads:
        if isinstance(payload, BodyRef):
            bodies[payload.segment] += payload.length
    assert state.body_bytes == dict(bodies)
    assert state.live_body_bytes == bodies.total()
    assert state.payload_bytes == sum(
        BODY_REF_BYTES if isinstance(p, BodyRef) else len(p) for p in payloads if p is not None
    )
    assert all(timer.generation <= state.last for timer in timers)
    assert state.held == {t.id: t for t in timers if t.state == HELD}
    assert state.blocked == {timer.id for timer in flights if timer.state != IN_FLIGHT}
    assert len(flights) == len({timer.id for timer in flights}), "an id in two open deliveries"
    queued: Counter[int] = Counter(id(timer) for timer in (*state.held.values(), *flights) if timer.state != GONE)
    for name, lane in state.lanes.items():
        mine = [timer for timer in timers if timer.type == name]
        live = [timer for timer in mine if timer.state != DEAD]
        assert lane.live == len(live) == lane.totals.live, name
        assert lane.in_flight == sum(timer.state == IN_FLIGHT for timer in live)
        assert list(lane.dead) == [timer.id for timer in lane.dead.values()]
        assert {id(timer) for timer in lane.dead.values()} == {id(timer) for timer in mine if timer.state == DEAD}
        assert lane.retrying == sum(
            timer.state == RETRYING or (timer.state in (READY, PARKED) and timer.failure is not None) for timer in live
        )
        due = lane._due
        entries = [*due._overdue, *due._missed, *(timer for queue in due._unsorted for timer in queue)]
        entries += (timer for bins in due._bins for bin in bins.values() for timer in bin)
        waiting = [timer for timer in entries if timer.state <= URGENT]
        assert due._entries == len(entries)
        assert due._stale == len(entries) - len(waiting)
        assert len(due) == len(waiting)
        ready = [timer for timer in lane._ready if timer.state == READY]
        assert lane._ready_count == len(ready)
        parking = lane._parking
        parked = [timer for queue in parking._queues.values() for timer in queue]
        assert parking._entries == len(parked)
        assert parking._stale == sum(timer.state != PARKED for timer in parked)
        assert all(parking._queues.values()), "a queue that is kept for nothing"
        missed = lane._missed.values()
        assert all(timer.state == READY and timer.failure is None for timer in missed)
        queued.update(id(timer) for timer in (*waiting, *ready, *lane._urgent.values(), *missed, *parking))
        for queue in lane._retries.values():
            again = [e[3] for e in queue.ready if e[3].state == READY and e[3].failure is e[4]]
            assert queue.ready_count == len(again)
            gapped = [e[3] for e in queue.entries() if e[3].state == RETRYING and e[3].failure is e[4]]
            assert queue.stale == sum(1 for _ in queue.entries()) - len(gapped)
            queued.update(id(timer) for timer in (*again, *gapped))
    assert queued == Counter(id(timer) for timer in timers if timer.state != DEAD), "in one queue each"


def check_told(shard: Shard, told: dict[tuple[str, int], Ready], parked: dict[tuple[str, str], int]) -> None:
    """What the dispatcher was told is what a Take would get; of what is parked, at most."""
    waiting = {
        (name, key): len(queue)
        for name, lane in shard.state.lanes.items()
        for key, queue in lane._parking._queues.items()
    }
    assert {where: count for where, count in parked.items() if count} == waiting
    ready: Counter[tuple[str, int]] = Counter()
    for run in shard.state.runs:
        for timer in run.by_id.values():
            if timer.state == READY:
                first = MISSED if timer.id in shard.state.lanes[timer.type]._missed else 0
                ready[timer.type, timer.failure.limit if timer.failure else first] += 1
    assert {key: said.count for key, said in told.items() if said.count} == dict(ready)
    for (type, limit), said in told.items():
        if limit == 0:
            assert said.urgent == bool(shard.state.lanes[type]._urgent)
