"""The new owner of slots on the move: adopts them, serves their ids, pulls what is left, drains (PROTOCOL.md, N).

For an id that is not held here the old owner is asked first, whatever the operation; what changes something that is
held there is pending here until the old owner has let go. One operation on an id at a time.

Queues, questions and the pull are kept beside the state: they are lost with the process, and so are the callers.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from timerd.engine.draft import Draft
from timerd.engine.effect import Send
from timerd.engine.message import Arm
from timerd.engine.move_message import (
    BUSY,
    CHANGED,
    MOVED,
    Ask,
    Cede,
    Move,
    MoveDone,
    Pull,
    Pulled,
    Standing,
    Told,
)
from timerd.engine.move_record import ARM, PULL, Adopted, Drained, Entry, Pended, Pending, Resolved, seen_of
from timerd.engine.moves import as_pulled
from timerd.engine.now import Now
from timerd.engine.operation import ELSEWHERE, Operation
from timerd.engine.ring import RingTable, slot_of
from timerd.engine.slicing import write_slice
from timerd.engine.sorting import AWAY, HERE, QUEUED
from timerd.engine.timer import Timer

RESEND_MS: Final = 1_000  # what is not answered by then is asked again
BUSY_MS: Final = 200  # until the old owner is asked again for a timer that is being delivered
PULL_TIMERS: Final = 500  # of one `Pull`
PULL_SLOTS: Final = 256
PULL_PER_SECOND: Final = 2_000  # unless the node says otherwise
IDLE_MS: Final = 500  # between two looks at slots of which only timers in flight are left


class _Queue:
    """The operations on one id, in order. The first has asked, or is pending, or is about to."""

    __slots__ = ("asked", "operations", "sent_at")

    def __init__(self) -> None:
        self.operations: deque[Operation] = deque()
        self.asked: int | None = None
        """The number of the question that it waits for."""
        self.sent_at = 0


class _Question:
    """A `Pull` under way."""

    def __init__(self, number: int, source: int, slots: list[int], sent_at: int) -> None:
        self.number = number
        self.source = source
        self.slots = slots
        self.sent_at = sent_at
        self.touched: set[str] = set()
        """Ids of which something has become known, or may have, since."""


class Moving:
    """One for each shard."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.per_second = PULL_PER_SECOND
        self.table: RingTable | None = None
        self._state = draft.state
        self._queues: dict[str, _Queue] = {}
        self._waiting = 0
        self._numbers = 0
        self._asks: dict[tuple[int, int], list[tuple[int, str]]] = {}  # (version, source) -> to be sent
        self._moves: dict[tuple[int, int], list[Entry]] = {}
        self._moved_at: dict[str, int] = {}  # id -> boot ms at which its `Move` is sent again
        self._todo: deque[int] = deque(self._state.moves.adopted)
        self._question: _Question | None = None
        self._pull_at = 0
        self._began = False
        self._intended: dict[str, Operation] = {}  # id -> whose doing the pending entry is

    @property
    def waiting(self) -> int:
        """Operations that have not been answered."""
        return self._waiting

    def coming(self, type: str) -> int:
        """How many arms of a type wait here, or are pending."""
        waiting = [one.message for queue in self._queues.values() for one in queue.operations]
        arms = sum(isinstance(message, Arm) and message.timers[0].type == type for message in waiting)
        pending = self._state.moves.all_pending()
        return arms + sum(one.kind == ARM and one.timer is not None and one.timer.type == type for one in pending)

    # ---- whose is an id?

    def concerns(self, slots: Iterable[int]) -> bool:
        """Whether some of these slots are not plainly this shard's."""
        of, moves = self._state.slots, self._state.moves
        if None in [of[slot] for slot in slots]:
            return True
        return bool(moves) and any(slot in moves.adopted or slot in moves.ceded for slot in slots)

    def place(self, id: str, slot: int) -> int:
        """HERE | QUEUED | AWAY"""
        by_id = self._state.slots[slot]
        moves = self._state.moves
        if by_id is None:
            assert self.table is not None
            return QUEUED if self.table.shards[slot] == self._state.shard else AWAY
        if slot in moves.ceded:
            return AWAY
        if slot not in moves.adopted or (id in by_id and id not in self._queues):
            return HERE
        return QUEUED

    # ---- operations

    def queue(self, operation: Operation) -> None:
        """Let an operation on an id wait for its turn, and for the old owner."""
        queue = self._queues.get(operation.id)
        if queue is None:
            queue = self._queues[operation.id] = _Queue()
        queue.operations.append(operation)
        self._waiting += 1
        self._serve(operation.id, queue)

    def _serve(self, id: str, queue: _Queue) -> None:
        state, moves = self._state, self._state.moves
        slot = slot_of(id)
        while queue.operations and queue.asked is None and moves.pending(id) is None:
            by_id = state.slots[slot]
            if by_id is None and self.table is not None and self.table.shards[slot] == state.shard:
                return  # not adopted yet
            if by_id is None or slot in moves.ceded:
                self._pop(queue).answer(ELSEWHERE)
            elif slot not in moves.adopted or id in by_id:
                self._pop(queue).decide_alone(self.draft)
            else:
                self._ask(id, slot, queue)
        if not queue.operations and queue.asked is None:
            self._queues.pop(id, None)

    def _pop(self, queue: _Queue) -> Operation:
        self._waiting -= 1
        return queue.operations.popleft()

    def _ask(self, id: str, slot: int, queue: _Queue) -> None:
        adopted = self._state.moves.adopted[slot]
        self._touch(id)
        queue.asked = self._number()
        queue.sent_at = self._state.now.boot_ms
        self._asks.setdefault((adopted.version, adopted.source), []).append((queue.asked, id))

    def _number(self) -> int:
        """Of a question; never given twice, by this life of the shard or another."""
        self._numbers += 1
        return self._state.epoch << 32 | self._numbers

    def _touch(self, id: str) -> None:
        if self._question is not None:
            self._question.touched.add(id)

    def _serve_again(self, ids: Iterable[str]) -> None:
        for id in ids:
            if (queue := self._queues.get(id)) is not None:
                self._serve(id, queue)

    # ---- what the old owner says

    def cede(self, message: Cede) -> None:
        """It has ceded slots: adopt them, if the table says so; and say where this shard is with them."""
        state, table = self._state, self.table
        if table is None:
            return
        mine = [slot for slot in message.slots if table.shards[slot] == state.shard]
        new = [slot for slot in mine if state.slots[slot] is None and table.source_of(slot) == message.sender]
        if new:
            marks = (message.unclean_at, message.unclean_generation)
            self.draft.write(Adopted(message.version, message.sender, new, message.last, *marks))
            write_slice(self.draft, new)
            self._todo += new
            came = set(new)
            self._serve_again([id for id in self._queues if slot_of(id) in came])
        had = [slot for slot in mine if state.slots[slot] is not None]
        drained = [slot for slot in had if slot not in state.moves.adopted]
        self._send(message.sender, Standing(message.version, state.shard, had, drained))

    def told(self, message: Told) -> None:
        """What the old owner holds of ids that it was asked about."""
        self.draft.floor = max(self.draft.floor, message.last)
        marks = (message.unclean_at, message.unclean_generation)
        for number, id, held in message.answers:
            queue = self._queues.get(id)
            if queue is None or queue.asked != number:
                continue  # an answer to another question
            queue.asked = None
            self._touch(id)
            operation = queue.operations[0]
            if held is None:
                self._pop(queue).decide_alone(self.draft)
            elif (pending := operation.decide_on(self.draft, held)) is None:
                self._pop(queue)
            else:
                self._intended[id] = operation
                self._pend(message.version, message.sender, [pending], marks)
            self._serve(id, queue)

    def pulled(self, message: Pulled) -> None:
        """Some of what is left, and what is not."""
        question, state = self._question, self._state
        if question is None or question.number != message.number or question.source != message.sender:
            return
        self._question = None
        self.draft.floor = max(self.draft.floor, message.last)
        now = state.now.boot_ms
        if self.draft.low:
            self._todo += question.slots
            return  # the log lives on its reserve, which is for other things
        chosen: list[Pending] = []
        if self.per_second:
            chosen = [
                Pending(timer.id, PULL, seen_of(timer), timer.type, as_pulled(timer))
                for timer in message.timers
                if self._may_pull(timer, question)
            ]
        if chosen:
            self._pend(message.version, message.sender, chosen, (message.unclean_at, message.unclean_generation))
        adopted = state.moves.adopted
        drained = [slot for slot in message.empty if slot in adopted and not adopted[slot].pending]
        if drained:
            self._drain(message, drained)
        gone = set(drained)
        left = [slot for slot in question.slots if slot not in gone and slot in adopted]
        if chosen:
            self._todo.extendleft(reversed(left))  # so that one slot after another is drained, and not all at the end
            self._pull_at = now + max(1, 1_000 * len(chosen) // max(1, self.per_second))
        else:
            self._todo += left
            self._pull_at = now if drained else now + IDLE_MS

    def move_done(self, message: MoveDone) -> None:
        """What the old owner has let go, and what it has not."""
        self.draft.floor = max(self.draft.floor, message.last)
        moved: list[str] = []
        changed: list[str] = []
        flags: dict[str, bool] = {}
        for entry, result, in_flight in message.results:
            pending = self._state.moves.pending(entry.id)
            if pending is None or pending.entry != entry or entry.id in flags:
                continue
            if result == BUSY:
                self._moved_at[entry.id] = self._state.now.boot_ms + BUSY_MS
                continue
            assert result in (MOVED, CHANGED)
            (moved if result == MOVED else changed).append(entry.id)
            flags[entry.id] = in_flight
        if not flags:
            return
        self.draft.write(Resolved(moved, changed))
        for id in flags:
            self._touch(id)
            self._moved_at.pop(id, None)
        for id in moved:
            if (operation := self._intended.pop(id, None)) is not None:
                self._pop(self._queues[id])
                operation.moved(flags[id])
        for id in changed:
            self._intended.pop(id, None)  # it is still the first of its queue, and asks again
        self._serve_again(flags)

    def _may_pull(self, timer: Timer, question: _Question) -> bool:
        id = timer.id
        adopted = self._state.moves.adopted.get(slot_of(id))
        return (
            adopted is not None
            and adopted.source == question.source
            and id not in adopted.pending
            and id not in self._queues
            and id not in question.touched
            and self._state.find(id) is None
        )

    def _pend(self, version: int, source: int, entries: list[Pending], marks: tuple[int, int]) -> None:
        self.draft.write(Pended(version, entries, *marks))
        self._send_moves((version, source), entries)

    def _send_moves(self, to: tuple[int, int], entries: list[Pending]) -> None:
        again_at = self._state.now.boot_ms + RESEND_MS
        self._moves.setdefault(to, []).extend([pending.entry for pending in entries])
        self._moved_at.update(dict.fromkeys([pending.id for pending in entries], again_at))

    def _drain(self, message: Pulled, slots: list[int]) -> None:
        state = self._state
        self.draft.write(Drained(message.version, slots, message.last))
        self._send(message.sender, Standing(message.version, state.shard, slots, slots))
        gone = set(slots)
        for id, queue in list(self._queues.items()):
            if slot_of(id) in gone:
                queue.asked = None  # whatever is answered was asked before
                self._serve(id, queue)

    # ---- time

    def tick(self, now: Now) -> None:
        """Ask again what was not answered, and pull."""
        moves = self._state.moves
        if moves.adopted:
            if not self._began:
                self._began = True  # what is pending in the log is sent at once
                self._moved_at = {pending.id: 0 for pending in moves.all_pending()} | self._moved_at
            self._resend(now)
            self._pull(now)
        self._flush()

    def wake_at(self) -> int | None:
        """Boot ms."""
        if not self._state.moves.adopted:
            return None
        ats = list(self._moved_at.values())
        ats += [queue.sent_at + RESEND_MS for queue in self._queues.values() if queue.asked is not None]
        if self._question is not None:
            ats.append(self._question.sent_at + RESEND_MS)
        elif self._todo and self.per_second and not self.draft.low and len(self._moved_at) <= PULL_TIMERS:
            ats.append(self._pull_at)
        return min(ats, default=None)

    def _resend(self, now: Now) -> None:
        moves = self._state.moves
        for id, at in list(self._moved_at.items()):
            if at <= now.boot_ms:
                slot = moves.adopted[slot_of(id)]
                self._send_moves((slot.version, slot.source), [slot.pending[id]])
        for id, queue in list(self._queues.items()):
            if queue.asked is not None and queue.sent_at + RESEND_MS <= now.boot_ms:
                self._ask(id, slot_of(id), queue)
        if self._question is not None and self._question.sent_at + RESEND_MS <= now.boot_ms:
            self._todo.extendleft(reversed(self._question.slots))
            self._question = None

    def _pull(self, now: Now) -> None:
        moves = self._state.moves
        if self._question is not None or not self.per_second or self.draft.low or self._pull_at > now.boot_ms:
            return
        if len(self._moved_at) > PULL_TIMERS:
            return  # the old owner has enough to answer
        slots: list[int] = []
        source: tuple[int, int] | None = None
        while self._todo and len(slots) < PULL_SLOTS:
            slot = self._todo[0]
            adopted = moves.adopted.get(slot)
            if adopted is not None:
                if source not in (None, (adopted.version, adopted.source)):
                    break
                source = (adopted.version, adopted.source)
                slots.append(slot)
            self._todo.popleft()
        if source is not None:
            count = max(1, min(PULL_TIMERS, self.per_second // 4))
            self._question = _Question(self._number(), source[1], slots, now.boot_ms)
            self._send(source[1], Pull(source[0], self._state.shard, self._question.number, slots, count))

    def _flush(self) -> None:
        shard = self._state.shard
        for (version, source), questions in self._asks.items():
            self._send(source, Ask(version, shard, questions))
        for (version, source), entries in self._moves.items():
            self._send(source, Move(version, shard, entries))
        self._asks, self._moves = {}, {}

    def _send(self, to: int, message: Standing | Ask | Pull | Move) -> None:
        self.draft.effects.append(Send(to, message))
