"""The dispatcher: one object a node that turns what shards have ready into batches, and outcomes into settlements.

It owns what belongs to a type and not to a shard (a `Flow` each) and the batches that are open. Pure, like a shard:
events come in as calls, what to do comes out of `commands`, and time is an argument. It never looks at a timer but to
hand it on; its work grows with batches, not with timers.

A batch's life: Take to each shard that gives a part -> Taken from each -> Post -> an outcome -> Settle to each ->
Settled from each. Its slot is taken from the first Take to the last Settled, so what is in flight is bounded and a
freed slot means a durable outcome. Every Take is followed by exactly one Settle, an empty part's too.

A callback type has a `Gate` in place of a flow, and its batches, which end one by one, are kept by `Callbacks`.

What may leave begins in turns between the types (`turns.py`), and what has been answered is settled in the same turns,
a bounded amount between two calls of `renew`, so that a storm of one type neither keeps the others waiting nor holds up
the loop (ADR 20).

Shards may be shut, given up on, or forgotten: absent.py.

A name has one flow or gate at a time. When its type changes kind, the old one stays until its open batches have ended:
so they hold their slots and are watched to their end, and what the shards have ready is asked for by one alone.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from timerd.engine.absent import Absent
from timerd.engine.answer import Accepted, Outcome
from timerd.engine.backoff import backoff_ms, draw_jitter
from timerd.engine.callbacks import Callbacks
from timerd.engine.catchup import MISSED
from timerd.engine.choice import Choice
from timerd.engine.command import Command, PauseType, Post, SendSettle, SendTake
from timerd.engine.condition import Condition, HostsCondition
from timerd.engine.effect import Ready, Settled, Taken
from timerd.engine.flow import Flow
from timerd.engine.gate import Gate
from timerd.engine.late import Late, untried
from timerd.engine.message import Settle, Take, WholeFailure
from timerd.engine.now import Now
from timerd.engine.open_batch import OpenBatch
from timerd.engine.timer import Timer, TimerType
from timerd.engine.turns import Turns

REQUEST_COST: Final = 40  # timers whose work is about that of one request more
LATELY_MS: Final = 1_000  # who had nothing to do for so long is kept waiting by nobody
OVERDUE_MS: Final = 1_000  # a take or a settlement is a turn of a shard: milliseconds, or the disk hangs


class FlowStats(NamedTuple):
    """What a type's flow has come to since the process began."""

    batches: int
    """POSTs."""
    batch_timers: int
    """Timers in them."""
    unnamed: int
    """Results for ids that were not in the batch."""
    coalesced: int
    """Turns that re-arms skipped."""
    open_batches: int


class _Counts:
    def __init__(self) -> None:
        self.batches = 0
        self.batch_timers = 0
        self.unnamed = 0
        self.coalesced = 0


class Dispatcher:
    """See the module. Call `commands` after events and at `wake_at`; it is the only place where batches begin."""

    def __init__(self, allowance: int | None = None) -> None:
        """`allowance`: about how many timers may begin to leave between two calls of `renew`, those that are settled
        counting half; None: whatever may."""
        self._allowance = self._left = allowance
        self._turns = Turns()
        self._answered: dict[
            str, deque[tuple[OpenBatch, Settle]]
        ] = {}  # by type: what is to be settled, and has its turn
        self._flows: dict[str, Flow | Gate] = {}
        self._counts: dict[str, _Counts] = {}
        self._open: dict[int, OpenBatch] = {}
        self._last_batch_no = 0
        self._out: list[Command] = []
        self._changed: dict[str, None] = {}  # flows to look at; a dict, so that their order is that of the events
        self._types: Mapping[str, TimerType] | None = None
        self._next: dict[str, TimerType] = {}  # of another kind than their flow, whose batches have still to end
        self._moved: set[str] = set()
        self._draining = False
        self._hurried = False
        self._late = Late()
        self._callbacks = Callbacks(self._out, self._late, self._count_requests, self._move)
        self.absent = Absent(
            self._flows, self._open, self._out, self._late, self._callbacks,
            self.ready, self._complete, self._close, self._move,
        )  # fmt: skip
        """Shards that can't be asked."""

    # ---- events

    def set_types(self, types: Mapping[str, TimerType]) -> None:
        """All types as they are now. A type that is missing or paused waits; its open batches end as usual."""
        self._types = dict(types)

    def ready(self, ready: Ready) -> None:
        """A shard has said what it has of a lane."""
        if self.absent and self.absent.keep(ready):
            return
        self._flow(ready.type).report(ready)

    def taken(self, taken: Taken) -> None:
        """A shard has handed out its part of a batch."""
        if self._late and (settle := self._late.taken(taken)) is not None:
            self._out.append(settle)
            return
        if taken.batch_no in self._callbacks:
            self._callbacks.taken(taken)
            return
        batch = self._open[taken.batch_no]
        batch.awaited.remove(taken.shard)
        batch.flow.receive(batch.limit, taken.shard, batch.asked[taken.shard], len(taken.timers))
        self._move(batch.flow)
        if taken.timers:
            batch.timers += taken.timers
            batch.parts[taken.shard] = taken.timers
            if taken.flagged:
                batch.flagged |= taken.flagged
            if taken.tried_at:
                batch.tried_at = min(batch.tried_at, taken.tried_at) if batch.tried_at else taken.tried_at
        if not batch.awaited:
            self._complete(taken.batch_no, batch)

    def leaves(self, batch_no: int) -> bool:
        """A posted batch is being sent now. Whether `commands` may have more for that."""
        flow = self._open[batch_no].flow
        if not flow.target.leave():
            return False
        self._changed[flow.name] = None
        return True

    def answered(self, now: Now, batch_no: int, outcome: Outcome, random: float) -> None:
        """The delivery of a batch has ended. `random`, of [0, 1), is what its gap is drawn with."""
        batch = self._open[batch_no]
        assert batch.posted, "an answer to a batch that was not posted"
        assert not batch.settling, "two answers to a batch"
        flow = batch.flow
        jitter = draw_jitter(flow.policy, random)
        if isinstance(outcome, Accepted):
            flow.target.accept(batch_no, now.boot_ms)
            self._counts[flow.name].unnamed += outcome.unnamed
            settle = Settle(batch_no, jitter, outcome.results)
        else:
            failure = flow.target.judge(now, batch.as_posted(batch_no), outcome, jitter)
            settle = Settle(batch_no, jitter, failure=failure)
            if outcome.gone and flow.target.gone and flow.type is not None:
                self._out.append(PauseType(flow.name, outcome.error))
        self._settle(batch, settle)

    def emptied(self, batch_no: int) -> None:
        """Nothing of a posted batch is left to deliver (its payloads are lost); it was not sent."""
        batch = self._open[batch_no]
        batch.flow.target.breaker.drop_probe(batch_no)
        self._settle(batch, Settle(batch_no))

    def sort(self, now: Now, batch_no: int, wants: Sequence[tuple[Timer, str | WholeFailure]]) -> list[Timer]:
        """The members of a batch of callbacks go to these hosts, or nowhere. Answer: those to be sent now, one by one;
        each is to be named in a call of `ended`."""
        return self._callbacks.sort(now, batch_no, wants, self._draining)

    def ended(self, now: Now, batch_no: int, outcomes: Sequence[tuple[str, Outcome]], random: float) -> None:
        """Requests of a batch of callbacks have ended: (id, outcome). `random`: as in `answered`."""
        self._callbacks.ended(now, batch_no, outcomes, random)

    def settled(self, settled: Settled) -> None:
        """A shard's part of a batch is settled and durable."""
        if self._late and self._late.settled(settled):
            return
        if settled.batch_no in self._callbacks:
            self._callbacks.settled(settled)
            return
        batch = self._open[settled.batch_no]
        assert batch.settling, "settled without a Settle"
        self._counts[batch.flow.name].coalesced += settled.coalesced
        batch.awaited.remove(settled.shard)
        if not batch.awaited:
            self._close(settled.batch_no, batch)
        self._move(batch.flow)

    # ---- on the way out

    def shards_of(self, batch_no: int) -> Iterable[int]:
        """Whose timers a batch has, which is to be sent."""
        return self._open[batch_no].asked

    def leave_out(self, batch_no: int, shards: Collection[int] = ()) -> list[Timer]:
        """A posted batch is about to be sent: put back what these shards have handed out. Answer: what has left it,
        for this or because its shard has gone; it was told to nobody before."""
        batch = self._open[batch_no]
        for shard in shards:
            if shard in batch.asked:
                timers = batch.drop_part(shard)
                batch.left += timers
                settle = Settle(batch_no, failure=untried(batch.whole) if timers else None)
                self._out.append(SendSettle(shard, settle))
                self._late.owes_settle(batch_no, shard)
        left, batch.left = batch.left, []
        if left:
            gone = {timer.id for timer in left}
            batch.timers = [timer for timer in batch.timers if timer.id not in gone]
            self._move(batch.flow)
        return left

    def shard_of(self, batch_no: int, id: str) -> int | None:
        """Who has handed out this callback, which is to be sent; None: a shard that is not here any more."""
        return self._callbacks.shard_of(batch_no, id)

    def withdraw(self, batch_no: int, id: str) -> None:
        """A callback that was to be sent is not sent after all: put it back."""
        self._callbacks.withdraw(batch_no, id)

    def hurry(self, hurried: bool) -> None:
        """Whether batches leave as they are, without waiting for more: for who will not let time pass."""
        if self._hurried != hurried:
            self._hurried = hurried
            self._changed.update(dict.fromkeys(self._flows))

    def drain(self) -> None:
        """Begin no more batches. Those that are open end as usual, and `idle` says when."""
        self._draining = True

    # ---- what follows

    def renew(self) -> None:
        """The allowance is whole again."""
        self._left = self._allowance

    @property
    def has_more(self) -> bool:
        """Whether something waits for `renew` and another call of `commands`, and for nothing else."""
        return bool(self._turns)

    def commands(self, now: Now) -> list[Command]:
        """Everything to do now, in order; each command is given once."""
        if self._types is not None:
            self._apply_types(now)
        due = [name for name, flow in self._flows.items() if name not in self._changed and _is_due(flow, now)]
        names, self._changed = [*self._changed, *due], {}
        for name in names:
            flow = self._flows[name]
            if not flow.open and (type := self._next.pop(name, None)) is not None:
                flow = self._succeed(flow, type, now)
            self._out += flow.turned
            flow.turned.clear()
            self._turns.join(name)
        self._begin(now)
        for name in self._moved & self._flows.keys():
            self._flows[name].moved_at = now.boot_ms
        self._moved.clear()
        out = list(self._out)
        self._out.clear()  # the list itself is shared
        return out

    def wake_at(self) -> tuple[int | None, int | None]:
        """(wall ms, boot ms) at the earlier of which to call `commands` though nothing happens. None: never.

        As of the last `commands`; while an event waits for one, (None, 0), which has passed.
        """
        if self._out or self._changed or self._turns or self._types is not None:
            return None, 0
        wakes = [(None, None) if self._draining else flow.wake for flow in self._flows.values()]
        walls = [wall for wall, _ in wakes if wall is not None]
        boots = [boot for _, boot in wakes if boot is not None]
        return min(walls, default=None), min(boots, default=None)

    def idle(self) -> bool:
        """Whether no batch is open and no command waits to be fetched."""
        return not (self._open or self._callbacks or self._out or self._late)

    def open_batches(self) -> int:
        """How many batches are under way."""
        return sum(len(flow.open) for flow in self._flows.values())

    def stats(self) -> dict[str, FlowStats]:
        """By type, for every type that is known or has had something ready."""
        found = {}
        for name, counts in self._counts.items():
            flow = self._flows.get(name)
            found[name] = FlowStats(
                counts.batches,
                counts.batch_timers,
                counts.unnamed,
                counts.coalesced,
                len(flow.open) if flow else 0,
            )
        return found

    def conditions(self, boot_ms: int) -> dict[str, Condition | HostsCondition]:
        """How targets are, by type."""
        return {name: flow.condition(boot_ms) for name, flow in self._flows.items() if flow.type is not None}

    def is_open(self, batch_no: int) -> bool:
        """Whether anything is to come of this batch."""
        return batch_no in self._open or (bool(self._late) and self._late.is_open(batch_no))

    def overdue(self, now: Now) -> str | None:
        """A type whose timers could be on their way and have not got on for `OVERDUE_MS`, by no fault of its target.

        That is a fault of ours: a batch that a shard does not hand out or settle, or one that is not begun.
        """
        if self._draining:
            return None
        for name, flow in self._flows.items():
            if now.boot_ms - flow.moved_at < OVERDUE_MS:
                continue
            posted = any(map(self._is_posted, flow.open))
            if not posted and (flow.open or flow.waits(now)):
                return name
        return None

    # ---- steps

    def _begin(self, now: Now) -> None:
        """Settle what is answered and let begin what may leave, in turns, as far as the allowance goes; the rest keeps
        its turn."""
        alone: bool | None = None
        while self._turns:
            if self._left is not None and self._left <= 0:
                if alone is None:
                    alone = self._is_alone(now)
                if not alone:
                    return
            flow = self._flows.get(name := self._turns.next())
            if flow is None:
                continue
            if answered := self._answered.get(name):
                batch, settle = answered.popleft()
                self._out += [SendSettle(shard, settle) for shard in batch.asked]
                batch.told = True
                for shard in self._late.given_up & batch.awaited:
                    self.absent.settle_without(settle.batch_no, batch, shard, gone=False)
                if not batch.asked:  # all have gone
                    self._close(settle.batch_no, batch)
                self._moved.add(name)
                cost = (len(batch.timers) + REQUEST_COST) // 2
            else:
                self._answered.pop(name, None)
                choice = None if self._draining else flow.choose(now, self._hurried)
                if choice is None:
                    if flow.idle:
                        del self._flows[name]
                    continue
                self._take(now, flow, choice)
                count = sum([count for _, count in choice.takes])
                cost = count * REQUEST_COST if choice.key else count + REQUEST_COST
            if self._left is not None:
                self._left -= cost
            self._turns.again(name, flow.weight, cost)

    def _is_alone(self, now: Now) -> bool:
        """Whether one type is all that has had something to do lately, so that nobody is kept waiting."""
        lately = now.boot_ms - LATELY_MS
        busy = {flow.name for flow in self._flows.values() if flow.moved_at > lately}
        return len(busy.union(self._moved, self._turns.names)) < 2

    def _is_posted(self, batch_no: int) -> bool:
        if batch_no in self._callbacks:
            return self._callbacks.is_posted(batch_no)
        batch = self._open[batch_no]
        return batch.posted and not batch.settling

    def _count_requests(self, type: str, requests: int) -> None:
        counts = self._counts[type]
        counts.batches += requests
        counts.batch_timers += requests

    def _move(self, flow: Flow | Gate) -> None:
        self._changed[flow.name] = None
        self._moved.add(flow.name)

    def _flow(self, name: str) -> Flow | Gate:
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = Flow(name)
            self._counts.setdefault(name, _Counts())
        self._changed[name] = None
        return flow

    def _apply_types(self, now: Now) -> None:
        types, self._types = self._types or {}, None
        for name in {**types, **self._flows}:
            flow, type = self._flow(name), types.get(name)
            self._next.pop(name, None)
            if type is not None and (type.kind == "callback") != isinstance(flow, Gate):
                # Of another kind than it was, or than was thought when a shard first mentioned it.
                if not flow.open:
                    self._succeed(flow, type, now)
                    continue
                self._next[name], type = type, None
            flow.set_type(type, now.boot_ms)

    def _succeed(self, old: Flow | Gate, type: TimerType, now: Now) -> Flow | Gate:
        """Replace what no batch is open of by what the type's kind wants."""
        assert not old.open, "batches have lost their flow"
        flow = Gate(old.name, old.lanes) if type.kind == "callback" else Flow(old.name, old.lanes)
        self._flows[old.name] = flow
        flow.set_type(type, now.boot_ms)
        return flow

    def _take(self, now: Now, flow: Flow | Gate, choice: Choice) -> None:
        self._last_batch_no += 1
        batch_no = self._last_batch_no
        self._moved.add(flow.name)
        if isinstance(flow, Gate):
            self._callbacks.take(flow, choice, batch_no)
            return
        flow.ask(choice)
        flow.open.add(batch_no)
        if choice.limit == MISSED:
            flow.catching_up.add(batch_no)
        if flow.target.breaker.open:
            flow.note_probe(choice, batch_no, now.boot_ms)
        self._open[batch_no] = OpenBatch(flow, choice)
        self._out += [SendTake(shard, Take(batch_no, flow.name, choice.limit, count)) for shard, count in choice.takes]

    def _complete(self, batch_no: int, batch: OpenBatch) -> None:
        """All parts have come."""
        if batch.timers and batch.flow.type is not None:
            batch.posted = True
            counts = self._counts[batch.flow.name]
            counts.batches += 1
            counts.batch_timers += len(batch.timers)
            self._out.append(Post(batch.as_posted(batch_no)))
            return
        # Nothing was there any more, or nowhere to send it to: the type went while the takes were under way.
        batch.flow.target.breaker.drop_probe(batch_no)
        failure = WholeFailure("the type was removed", backoff_ms(batch.flow.policy, 1), batch.whole)
        self._settle(batch, Settle(batch_no, failure=failure if batch.timers else None))

    def _close(self, batch_no: int, batch: OpenBatch) -> None:
        """Its slot is free."""
        del self._open[batch_no]
        batch.flow.open.remove(batch_no)

    def _settle(self, batch: OpenBatch, settle: Settle) -> None:
        batch.settling = True
        batch.awaited = set(batch.asked)
        self._answered.setdefault(batch.flow.name, deque()).append((batch, settle))
        self._move(batch.flow)


def _is_due(flow: Flow | Gate, now: Now) -> bool:
    wall, boot = flow.wake
    return (wall is not None and wall <= now.wall_ms) or (boot is not None and boot <= now.boot_ms)
