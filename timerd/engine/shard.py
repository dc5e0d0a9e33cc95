"""The shard: one door in, one door out.

    step(now, message)   decide; what is decided is applied at once and becomes a record
    tick(now)            let time pass: what is due becomes ready, what is old goes
    take() -> Turn       what the turn came to: records for the log, and effects for when they are durable
    hand_out(now, take)  the same for a Take between two turns, which writes nothing
    wake_at()            when time alone will have something to do

A shard has no clock, no I/O and no randomness. Messages, in the order in which they came, and the moments at which
they were stepped, decide everything. Its state changes only in `State.apply`.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from timerd.engine import arming, burial, misfire, reading, settling
from timerd.engine.ceding import Ceding
from timerd.engine.draft import Draft
from timerd.engine.effect import Effect, Turn
from timerd.engine.message import (
    Arm,
    BodyLost,
    Cancel,
    Close,
    FindBodies,
    FireNow,
    Get,
    List,
    ListDead,
    Message,
    Next,
    Purge,
    Relocate,
    Revive,
    SetReserve,
    Settle,
    SettleSome,
    SetTypes,
    Slice,
    Take,
    Tally,
)
from timerd.engine.move_message import (
    Ask,
    Cede,
    MayCede,
    Move,
    MoveDone,
    OfMove,
    Pull,
    Pulled,
    SetPull,
    SetTable,
    Standing,
    Told,
)
from timerd.engine.moving import Moving
from timerd.engine.now import Now
from timerd.engine.record import Closed, Owned, Relocated
from timerd.engine.ring import RingTable
from timerd.engine.slicing import write_slice
from timerd.engine.sorting import sort_out
from timerd.engine.state import State

SLICE_TIMERS = 4_000  # timers in a slice: a few milliseconds of the loop, however large the shard

Decision = Callable[[Draft, Any], None]
DECISIONS: dict[type, Decision] = {
    Arm: arming.arm,
    Cancel: arming.cancel,
    FireNow: arming.fire_now,
    Take: settling.take,
    Settle: settling.settle,
    SettleSome: settling.settle_some,
    BodyLost: settling.body_lost,
    Get: reading.get,
    List: reading.list_timers,
    ListDead: reading.list_dead,
    Next: reading.next_due,
    Tally: reading.tally,
    FindBodies: reading.find_bodies,
    Revive: burial.revive,
    Purge: burial.purge,
}


class Shard:
    """The timers of some slots, under one log position."""

    def __init__(self, state: State, dead_letters_kept: int = burial.KEPT_A_TYPE) -> None:
        """Take up a recovered (or empty) state. `dead_letters_kept`: of each type, in this shard."""
        self.state = state
        self._draft = Draft(state)
        self._kept = dead_letters_kept
        self._expiry_pending = False
        self._ceding = Ceding(self._draft)
        self._moving = Moving(self._draft)
        self._table: RingTable | None = None  # one that has followed the first; None: nothing has ever moved
        self._closed = False
        self._of_move: dict[type, Decision] = {
            Ask: lambda _, message: self._ceding.ask(message),
            Pull: lambda _, message: self._ceding.pull(message),
            Move: lambda _, message: self._ceding.move(message),
            Standing: lambda _, message: self._ceding.standing(message),
            Cede: lambda _, message: self._moving.cede(message),
            Told: lambda _, message: self._moving.told(message),
            Pulled: lambda _, message: self._moving.pulled(message),
            MoveDone: lambda _, message: self._moving.move_done(message),
        }

    @property
    def id(self) -> int:
        return self.state.shard

    @property
    def waiting(self) -> int:
        """Operations that wait for another shard."""
        return self._moving.waiting

    def coming(self, type: str) -> int:
        """How many timers of a type are about to be armed, and wait for another shard."""
        return self._moving.coming(type)

    @property
    def to_cede(self) -> int:
        """How many slots it is to give up, and has not."""
        return self._ceding.to_cede

    @property
    def waits_to_cede(self) -> bool:
        """Whether it is to be told that it may (`MayCede`)."""
        return self._ceding.waits and self._ceding.to_cede > 0

    @property
    def table_version(self) -> int:
        """Of the table that it knows of; 0: of the first, which says nothing of moves."""
        return self._table.version if self._table is not None else 0

    def own(self, now: Now) -> None:
        """Begin: the first record of this process's time with the shard."""
        self.state.now = now
        clean = self.state.closed
        self._draft.write(Owned(self.state.epoch + 1, now.wall_ms, clean))

    def step(self, now: Now, message: Message) -> None:
        """Decide one message."""
        self.state.now = now
        decision = DECISIONS.get(type(message))
        if decision is not None:
            if self._table is None or not sort_out(self._moving, message):
                decision(self._draft, message)
            return
        match message:
            case OfMove():
                # One of another version is sent again, until both know of the same.
                if self._table is not None and message.version == self._table.version and not self._closed:
                    self._of_move[type(message)](self._draft, message)
            case SetTable():
                self._set_table(message)
                self._kept = message.dead_letters_kept or self._kept
            case MayCede():
                if not self._closed:
                    self._ceding.cede()
            case SetPull():
                self._moving.per_second = message.per_second
            case SetTypes():
                self._draft.types = message.types
                for name, lane in self.state.lanes.items():
                    lane.set_type(message.types.get(name))
            case SetReserve():
                self._draft.low = message.low
            case Slice():
                self._draft.slices_wanted += 1
                if message.token is not None:
                    self._draft.reply(message.token, None)
            case Relocate():
                self._relocate(message)
            case Close():
                self._close(message)
            case _:
                raise AssertionError(f"no such message: {message!r}")

    def tick(self, now: Now) -> None:
        """Let what is due by now become ready."""
        state = self.state
        state.now = now
        drops_left = misfire.AT_ONCE
        for lane in state.lanes.values():
            if lane.changed or lane.is_due(now):
                if not lane.batch_size:
                    lane.set_type(self._draft.types.get(lane.name))
                lane.refresh(now, state.held, state.blocked)
                drops_left -= misfire.drop(self._draft, lane, drops_left)
                self._draft.effects += lane.report(state.shard)
                lane.settle_wake()
        self._expiry_pending = burial.expire(self._draft, self._kept)
        if self._table is not None and not self._closed:
            self._ceding.tick(now)
            self._moving.tick(now)

    @property
    def clean(self) -> bool:
        """Whether nothing has been decided that is in no turn yet."""
        return not self._draft.records

    def hand_out(self, now: Now, message: Take) -> list[Effect]:
        """Hand out what is ready between two turns, and say what is left.

        Nothing is written, so what this says may be known at once if everything decided before is durable. A tick has
        to follow, and only there more becomes ready: so what begins at a time is bounded.
        """
        assert self.clean, "what is handed out rests on what is durable"
        self.step(now, message)
        if (lane := self.state.lanes.get(message.type)) is not None:
            self._draft.effects += lane.report(self.state.shard)
        return self.take().effects

    def take(self) -> Turn:
        """End the turn. The records must be encoded before anything else is stepped: they share live timers."""
        draft = self._draft
        for _ in range(draft.slices_wanted):
            self._write_slice()
        draft.slices_wanted = 0
        state = self.state
        if draft.records:
            state.lsn += 1
        turn = Turn(state.shard, state.lsn, draft.records, draft.effects)
        draft.records, draft.effects = [], []
        return turn

    def wake_at(self) -> tuple[int | None, int | None]:
        """(wall ms, boot ms): the earliest moments at which a tick has something to do; 0 = at once."""
        if self._expiry_pending:
            return 0, None
        wall = burial.next_expiry_at(self._draft)
        boot: int | None = None
        for lane in self.state.lanes.values():
            lane_wall, lane_boot = lane.wakes
            if lane_wall is not None and (wall is None or lane_wall < wall):
                wall = lane_wall
            if lane_boot is not None and (boot is None or lane_boot < boot):
                boot = lane_boot
        if self._table is not None and not self._closed:
            for at in (self._ceding.wake_at(), self._moving.wake_at()):
                if at is not None and (boot is None or at < boot):
                    boot = at
        return wall, boot

    def needed_lsn(self) -> int:
        """Every frame before this one is dead: each slot has a slice at or behind it."""
        covered = next(iter(self.state.covered.values()), self.state.sliced)
        return max(covered, 1)

    def pinned(self, last_lsn: int) -> int:
        """How many slots have no slice after `last_lsn` (inclusive). A shard of no slots has its own state to keep."""
        if not self.state.covered:
            return int(self.state.sliced <= last_lsn)
        return bisect_right(list(self.state.covered.values()), last_lsn)  # they ascend

    def _write_slice(self) -> None:
        state = self.state
        slots: dict[int, None] = {}
        timers = 0
        for slot in state.covered:
            if slot in slots:
                continue
            run = state.run_of[slot]
            more = len(run.by_id) + (state.moves.weight(run.slots) if state.moves else 0)
            if slots and timers + more > SLICE_TIMERS:
                break
            slots.update(dict.fromkeys(run.slots))
            timers += more
        write_slice(self._draft, slots)

    def _set_table(self, message: SetTable) -> None:
        """Know of a table; one that has followed the first may take slots away."""
        table = message.table
        if table.version > 1 and (self._table is None or self._table.version < table.version):
            self._table = self._moving.table = table
            self._ceding.know(table, message.waits)

    def _close(self, message: Close) -> None:
        """Lay the shard down. With an outcome outstanding or unwritten it is no clean end, and must not read as one."""
        self._closed = True
        if not self._draft.flights and not self._draft.forgets:
            self._draft.write(Closed(self.state.now.wall_ms))
        self._draft.reply(message.token, None)

    def _relocate(self, message: Relocate) -> None:
        moved = []
        for id, generation, old_place, new_place in message.bodies:
            timer = self.state.bearer(id)
            if timer is not None and timer.generation == generation and timer.payload == old_place:
                moved.append((id, generation, new_place))
        if moved:
            self._draft.write(Relocated(moved))
        self._draft.reply(message.token, None)
