"""What one shard holds of one type: its waiting timers in due order, what is ready to be taken, its retries.

First attempts that have been due for longer than the type's grace are *missed*. They are a lane of their own
(`MISSED`), with a ready list of its own; where the type drops them they are never reported, and `pop_dropped` takes
them out. One is missed when it would be handed out: what ages on the ready list goes back into the due order, to the
missed there.

A shard pops at most `batch_size` timers of a kind into a ready list and tells the dispatcher the count; the rest stays
where it is, so that a million timers due at once cost nothing. First attempts and retries never mix: retries are kept
by the largest batch they may travel in.

Everything here is a cache of the timers' own fields: recovery fills it through the same calls. A timer that leaves is
only counted out (`leave`); the queues drop it when they meet it.
"""

from collections import deque
from collections.abc import Iterator
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import Final

from timerd.engine.catchup import MISSED, is_missed
from timerd.engine.due import LOOK, SLICE, DueQueue
from timerd.engine.effect import Ready
from timerd.engine.now import Now
from timerd.engine.parking import Parking
from timerd.engine.record import Totals
from timerd.engine.retries import RetryQueue, is_ready
from timerd.engine.timer import (
    BEHIND,
    HELD,
    IN_FLIGHT,
    PARKED,
    READY,
    RETRYING,
    URGENT,
    WAITING,
    Failure,
    Timer,
    TimerType,
)

AGING_MS: Final = 1_000  # how exactly time alone lets what is ready be missed; whoever takes looks for itself
SLACK_MS_MAX: Final = 50  # looking this much later for due timers saves most wake-ups, and max_lag has room for it


class Lane:
    """One type in one shard. The counts `live`, `in_flight` and `retrying` are exact at all times."""

    def __init__(self, name: str, now: Now, filled: bool = True) -> None:
        """`filled`: False while a log is replayed. Timers are then only counted, and `fill` queues what is left."""
        self.name = name
        self.totals = Totals()
        self.live = 0
        self.in_flight = 0
        self.retrying = 0
        self.dead: dict[str, Timer] = {}  # by id, in the order of their deaths
        self._filled = filled
        self._due = DueQueue(now.wall_ms)
        self._ready: deque[Timer] = deque()
        self._ready_count = 0
        self._mixed = False  # some have come that were due before others that were here
        self._urgent: dict[str, Timer] = {}
        self._missed: dict[str, Timer] = {}  # ready like the others, but overdue beyond the grace
        self._behind: set[str] = set()  # ids of those of them that were BEHIND
        self._popped_at = 0  # Unix ms; whatever is ready was due by then
        self._first: Timer | None = None  # of what is ready, when last reported
        self._first_since = 0
        self._retries: dict[int, RetryQueue] = {}
        self._parking = Parking()
        self._reported: dict[int, tuple[int, int, bool]] = {}
        self.batch_size = 0  # nothing becomes ready before the type is known
        self.drops = False  # whether what is missed is dropped, as soon as the type is not paused
        self._paused = False
        self._slack_ms = 1
        self.changed = True
        self.wakes: tuple[int | None, int | None] = (None, None)

    # ---- what State tells

    def enter(self, timers: list[Timer]) -> None:
        """Live timers have come, WAITING, URGENT or BEHIND."""
        self.live += len(timers)
        if self._filled:
            self._due.push(timers)
        self.changed = True

    def enter_retry(self, timer: Timer, failure: Failure) -> None:
        """A live timer that has left its place waits for its next attempt, `gap_ms` from the failure's `since`."""
        timer.failure = failure
        timer.state = RETRYING
        self.retrying += 1
        if self._filled:
            self._push_retry(timer, failure)
        self.changed = True

    def mix(self) -> None:
        """What comes may have been due for longer than what is here: it has waited elsewhere."""
        self._mixed = True

    def leave(self, timer: Timer) -> None:
        """Take a timer out of wherever it is; the caller changes its state right after. It still counts as live."""
        state = timer.state
        if state <= URGENT:
            self._due.discard()
        elif state == READY:
            if timer.failure is not None:
                self._retries[timer.failure.limit].ready_count -= 1
                self.retrying -= 1
            elif self._missed.pop(timer.id, None) is not None:
                self._behind.discard(timer.id)
            elif self._urgent.pop(timer.id, None) is None:
                self._ready_count -= 1
        elif state == IN_FLIGHT:
            self.in_flight -= 1
        elif state == RETRYING:
            self.retrying -= 1
            if timer.failure is not None and (queue := self._retries.get(timer.failure.limit)) is not None:
                queue.stale += 1
        elif state == PARKED:
            self._parking.discard()
            self.retrying -= timer.failure is not None
        self.changed = True

    def end(self, timers: list[Timer]) -> None:
        """Live timers are no more. The caller changes their state right after."""
        self.live -= len(timers)
        in_flight = queued = 0
        for timer in timers:
            if timer.state == IN_FLIGHT:
                in_flight += 1
            elif timer.state <= URGENT:
                queued += 1
            else:
                self.leave(timer)
        self.in_flight -= in_flight
        self._due.discard(queued)
        self.changed = True

    def fill(self, waiting: list[Timer], retrying: list[Timer]) -> None:
        """Queue what recovery has left: it is counted, and in no queue."""
        self._filled = True
        self._due = DueQueue(self._due.now_ms, self._due.grace_ms)
        self._due.push(waiting)
        for timer in retrying:
            assert timer.failure is not None
            self._push_retry(timer, timer.failure)

    # ---- what Shard asks

    def set_type(self, type: TimerType | None) -> None:
        """Know the type's limits; without one nothing more becomes ready."""
        self.batch_size = type.batch_size if type else 0
        self._slack_ms = max(1, min(type.max_lag_ms // 10, SLACK_MS_MAX)) if type else 1
        self._paused = type is None or type.state != "active"
        if type is not None:
            self.drops = type.misfire.policy == "drop"
            sorted_otherwise = self._due.grace_ms != type.grace_ms
            self._due.set_grace(type.grace_ms, spares_turns=self.drops)
            if self.drops or sorted_otherwise:
                self._put_back([*self._missed.values()])
        self.changed = True

    def refresh(self, now: Now, held: dict[str, Timer], blocked: set[str]) -> None:
        """Let what is due be ready, up to a batch. A timer whose id is blocked goes to `held` instead."""
        self.step_back(now)
        self._popped_at = now.wall_ms
        self._due.advance(now.wall_ms)
        while late := self._due.late(islice(self._urgent.values(), 1), now.wall_ms):
            self._put_back(late)
        while self._ready and self._due.late(islice(self._ready, 1), now.wall_ms):
            if (timer := self._ready.popleft()).state == READY:
                self._put_back([timer])
        if (room := self.batch_size - self._ready_count - len(self._urgent)) > 0:
            ready: list[Timer] = []
            for timer in _not_blocked(self._due.pop_due(room), held, blocked):
                if timer.state == URGENT:
                    timer.state = READY
                    self._urgent[timer.id] = timer
                else:
                    timer.state = READY
                    ready.append(timer)
            self._ready += ready
            self._ready_count += len(ready)
            if self._mixed:
                self._sort_ready()
            if len(self._ready) > 2 * self._ready_count + SLICE:  # moved while nothing is taken: a paused type, say
                self._ready = deque(timer for timer in self._ready if timer.state == READY)
        if not self.drops:
            self._pop_missed(self.batch_size, held, blocked)
        for queue in self._retries.values():
            queue.pop_due(now, self.batch_size)

    def pop_dropped(self, count: int, held: dict[str, Timer], blocked: set[str]) -> list[str]:
        """Ids of up to `count` timers that are to be dropped now, as missed; the caller does so at once."""
        if not self.drops or self._paused:
            return []
        self._pop_missed(count, held, blocked)
        return list(self._missed)

    def release(self, timer: Timer, wall_ms: int) -> None:
        """A timer that was held back may go, unless the wall clock has gone back meanwhile."""
        if timer.fire_at > wall_ms or self._due.late([timer], wall_ms):
            timer.state = URGENT if timer.armed_for_now else WAITING
            self._due.push([timer])
        elif timer.armed_for_now:
            timer.state = READY
            self._urgent[timer.id] = timer
        else:
            timer.state = READY
            self._ready_count += 1
            if self._ready and self._ready[0].due_at > timer.due_at:
                self._ready.appendleft(timer)
            else:
                self._ready.append(timer)
        self.changed = True

    def step_back(self, now: Now) -> None:
        """Where the wall clock has gone back, what is ready and not due any more waits again."""
        wall_ms = now.wall_ms
        if wall_ms >= self._popped_at:
            return
        self._popped_at = wall_ms
        for queue in self._retries.values():
            queue.step_back(now)
        self._put_back([*self._missed.values()])
        self._put_back([t for t in (*self._urgent.values(), *self._ready) if t.state == READY and t.fire_at > wall_ms])
        self._ready = deque(timer for timer in self._ready if timer.state == READY)
        self._first = None
        self._unpark_early(wall_ms)
        self.changed = True

    def take(self, limit: int, count: int, wall_ms: int) -> tuple[list[Timer], int]:
        """Up to `count` ready timers, now IN_FLIGHT; and for retries the boot ms of the oldest last attempt."""
        taken: list[Timer] = []
        tried_at = 0
        if limit == 0:
            if late := self._due.late(self._urgent.values(), wall_ms):
                self._put_back(late)
            while self._urgent and len(taken) < count:
                taken.append(self._urgent.pop(next(iter(self._urgent))))
            urgent = len(taken)
            ready = self._ready
            while ready and len(taken) < count:
                chunk = [ready.popleft() for _ in range(min(len(ready), count - len(taken)))]
                live = [timer for timer in chunk if timer.state == READY]
                if late := self._due.late(live, wall_ms):
                    self._put_back(late)
                    live = [timer for timer in live if timer.state == READY]
                taken += live
            self._ready_count -= len(taken) - urgent
        elif limit == MISSED:
            while self._missed and len(taken) < count:
                taken.append(self._missed.pop(next(iter(self._missed))))
            self._behind.difference_update([timer.id for timer in taken] if self._behind else ())
        elif (queue := self._retries.get(limit)) is not None:
            while queue.ready and len(taken) < count:
                entry = queue.ready.popleft()
                if is_ready(entry):
                    retry_at, _, _, timer, failure = entry
                    taken.append(timer)
                    last = retry_at - failure.gap_ms
                    tried_at = min(tried_at, last) if tried_at else last
            queue.ready_count -= len(taken)
            self.retrying -= len(taken)
        for timer in taken:
            timer.state = IN_FLIGHT
        self.in_flight += len(taken)
        # The dispatcher counts what it has asked for out of the lane, and must hear of it again, whatever is left.
        self._reported[limit] = (-1, 0, False)
        self.changed = True
        return taken, tried_at

    def park(self, key: str, timers: list[Timer], wall_ms: int) -> None:
        """Put back timers that are in flight, unattempted, until `key` is taken from."""
        self.in_flight -= len(timers)
        for timer in timers:
            timer.state = PARKED
            self.retrying += timer.failure is not None
        self._parking.put(key, timers)
        if any(timer.fire_at > wall_ms for timer in timers):
            self._unpark_early(wall_ms)
        self.changed = True

    def take_parked(self, key: str, count: int, wall_ms: int) -> list[Timer]:
        """Up to `count` timers that were parked under a key, now IN_FLIGHT. What has aged there is missed instead."""
        taken: list[Timer] = []
        late: list[Timer] = []
        while len(taken) < count and len(late) < SLICE and (found := self._parking.take(key, count - len(taken))):
            ages = [timer for timer in found if timer.failure is None] if self.drops or not is_missed(key) else []
            missed = self._due.late(ages, wall_ms)
            for timer in missed:
                timer.state = WAITING
            late += missed
            taken += [timer for timer in found if timer.state == PARKED] if missed else found
        self._due.push(late)
        for timer in taken:
            timer.state = IN_FLIGHT
            self.retrying -= timer.failure is not None
        self.in_flight += len(taken)
        self.changed = True
        return taken

    def report(self, shard: int) -> list[Ready]:
        """What the dispatcher does not know yet."""
        while self._ready and self._ready[0].state != READY:
            self._ready.popleft()
        since = self._waits_since(self._ready[0]) if self._ready else 0
        lanes = dict.fromkeys(self._reported, (0, 0, False))
        lanes[0] = (self._ready_count + len(self._urgent), since, bool(self._urgent))
        if self._missed:
            lanes[MISSED] = (len(self._missed), next(iter(self._missed.values())).due_at, False)
        for limit, queue in self._retries.items():
            lanes[limit] = (queue.ready_count, queue.oldest_try(), False)
        news = [
            Ready(shard, self.name, limit, count, oldest, urgent)
            for limit, (count, oldest, urgent) in lanes.items()
            if self._reported.get(limit, (0, 0, False)) != (count, oldest, urgent)
        ]
        self._reported = {limit: said for limit, said in lanes.items() if said[0]}
        for limit in [limit for limit, queue in self._retries.items() if queue.empty]:
            del self._retries[limit]
        news += [Ready(shard, self.name, 0, count, 0, key=key) for key, count in self._parking.news()]
        return news

    def is_due(self, now: Now) -> bool:
        """Whether a wake-up settled before has come, or the wall clock has gone back behind what is ready."""
        wall, boot = self.wakes
        return (
            (wall is not None and wall <= now.wall_ms)
            or (boot is not None and boot <= now.boot_ms)
            or now.wall_ms < self._popped_at
        )

    def settle_wake(self) -> None:
        """Work out when time alone makes something ready here: `wakes` = (wall ms, boot ms)."""
        wall = self._due.next_at()
        if wall and self._ready_count + len(self._urgent) >= self.batch_size:
            wall = None  # full: a Take or a new type comes first
        elif wall:
            wall = -(-wall // self._slack_ms) * self._slack_ms  # the shards' wake-ups fall together
        firsts = [*islice(self._urgent.values(), 1), *islice(self._ready, 1)]
        if not self._paused and (at := self._due.missed_at(firsts)) is not None:
            at = -(-at // AGING_MS) * AGING_MS
            wall = at if wall is None else min(wall, at)
        if self._due.missed_most and (not self._paused if self.drops else len(self._missed) < self.batch_size):
            wall = 0
        nexts = [q.next_at() for q in self._retries.values() if q.ready_count < self.batch_size]
        boot = min((at for at in nexts if at is not None), default=None)
        if any(queue.sweeping for queue in self._retries.values()):
            boot = 0
        for queue in self._retries.values():
            if queue.early:
                wall = queue.early[0][0] if wall is None else min(wall, queue.early[0][0])
        self.wakes = wall, boot
        self.changed = False

    def oldest_due_at(self, now_ms: int) -> int | None:
        """Unix ms since when the longest waiting due timer waits (of the first thousand)."""
        timers = islice(self._first_attempts_due(now_ms), 1_000)
        return min((min(timer.due_at, now_ms) for timer in timers), default=None)

    def count_due(self, now_ms: int, limit: int) -> int:
        """How many first attempts are due and neither in flight nor held, counted up to `limit`."""
        return sum(1 for _ in islice(self._first_attempts_due(now_ms), limit))

    def count_missed(self) -> int:
        """How many missed ones wait, at most: one that has left a queue counts until it is met there."""
        return self._due.missed_most + len(self._missed) + self._parking.count(is_missed)

    def soonest(self, count: int) -> list[Timer]:
        """The soonest `count` timers that are neither in flight, held nor dead."""
        found = [
            timer for timer in (*self._urgent.values(), *self._missed.values(), *self._ready) if timer.state == READY
        ]
        for queue in self._retries.values():
            found += [e[3] for e in islice(queue.entries(), LOOK) if e[3].state == RETRYING and e[3].failure is e[4]]
            found += [e[3] for e in queue.ready if is_ready(e)]
        found += islice(self._parking, LOOK)
        return nsmallest(count, found + self._due.soonest(count))

    def _waits_since(self, first: Timer) -> int:
        """Unix ms from which the wait of the first that is ready counts.

        Its acceptance may lie ahead: generations go on where the wall clock has gone back. It waits from now on then,
        and no longer than others.
        """
        if first is not self._first:
            self._first = first
            self._first_since = min(first.due_at, self._popped_at)
        return self._first_since

    def _first_attempts_due(self, now_ms: int) -> Iterator[Timer]:
        ready = (*self._missed.values(), *self._urgent.values(), *self._ready)
        yield from (timer for timer in ready if timer.state == READY and timer.fire_at <= now_ms)
        yield from (timer for timer in self._parking if timer.failure is None and timer.fire_at <= now_ms)
        yield from self._due.due(now_ms)

    def _pop_missed(self, count: int, held: dict[str, Timer], blocked: set[str]) -> None:
        """Let up to `count` of the missed be ready."""
        if self._due.missed_most and (room := count - len(self._missed)) > 0:
            for timer in _not_blocked(self._due.pop_missed(room), held, blocked):
                if timer.state == BEHIND:
                    self._behind.add(timer.id)
                timer.state = READY
                self._missed[timer.id] = timer

    def _sort_ready(self) -> None:
        """Let the first be the one that waits the longest: by its wait a batch is closed.

        Nothing else need be sorted: while more is overdue than fits here, batches are closed since they are full.
        """
        live = [timer for timer in self._ready if timer.state == READY]
        self._ready = deque(sorted(live, key=attrgetter("due_at")))
        self._mixed = self._due.has_overdue

    def _put_back(self, timers: list[Timer]) -> None:
        """What is ready waits in the due order again, as before; the caller takes stale ones off the ready list."""
        for timer in timers:
            urgent = timer.id in self._urgent or (timer.id in self._missed and timer.armed_for_now)
            behind = timer.id in self._behind
            self.leave(timer)
            timer.state = BEHIND if behind else URGENT if urgent else WAITING
        self._due.push(timers)

    def _unpark_early(self, wall_ms: int) -> None:
        early: list[Timer] = []
        for timer in self._parking.remove_early(wall_ms):
            if timer.failure is None:
                timer.state = WAITING
                early.append(timer)
            else:
                timer.state = RETRYING
                self._push_retry(timer, timer.failure)
        self._due.push(early)

    def _push_retry(self, timer: Timer, failure: Failure) -> None:
        queue = self._retries.get(failure.limit)
        if queue is None:
            queue = self._retries[failure.limit] = RetryQueue(failure.limit)
        queue.push(timer, failure)


def _not_blocked(timers: list[Timer], held: dict[str, Timer], blocked: set[str]) -> list[Timer]:
    """Those that may go; one whose id is in an open delivery goes to `held` instead."""
    if not blocked:
        return timers
    free = []
    for timer in timers:
        if timer.id in blocked:
            timer.state = HELD
            held[timer.id] = timer
        else:
            free.append(timer)
    return free
