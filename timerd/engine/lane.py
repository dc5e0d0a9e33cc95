"""What one shard holds of one type: its waiting timers in due order, what is ready to be taken, its retries.

A shard pops at most `batch_size` timers of a kind into a ready list and tells the dispatcher the count; the rest stays
where it is, so that a million timers due at once cost nothing. First attempts and retries never mix: retries are kept
by the largest batch they may travel in.

Everything here is a cache of the timers' own fields: recovery fills it through the same calls. A timer that leaves is
only counted out (`leave`); the queues drop it when they meet it.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush, nsmallest
from itertools import islice
from typing import Final

from timerd.engine.due import LOOK, SLICE, SWEEP_FLOOR, DueQueue
from timerd.engine.effect import Ready
from timerd.engine.now import Now
from timerd.engine.parking import Parking
from timerd.engine.record import Totals
from timerd.engine.timer import (
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

SLACK_MS_MAX: Final = 50  # looking this much later for due timers saves most wake-ups, and max_lag has room for it

RetryEntry = tuple[int, int, Timer, Failure]
"""(retry at, boot ms; generation; timer; its failure then): stale unless the timer's failure still is this one."""


def _is_ready(entry: RetryEntry) -> bool:
    return entry[2].state == READY and entry[2].failure is entry[3]


class RetryQueue:
    """The retries that may travel in batches of at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waiting: list[RetryEntry] = []
        self.early: list[tuple[int, int, RetryEntry]] = []
        """Heap by fire_at: those whose gap is over, and whose time is to come again since the wall clock went back."""
        self.ready: deque[RetryEntry] = deque()
        self.ready_count = 0
        self.stale = 0
        """Entries of `waiting` whose timers went on otherwise."""
        self._unswept: list[RetryEntry] = []
        """What is left of a `waiting` with too many of them: a heap still, since it is taken from its end."""

    def oldest_try(self) -> int:
        """Boot ms of the last attempt of the retry that is ready longest; 0 if none is."""
        while self.ready and not _is_ready(self.ready[0]):
            self.ready.popleft()
        return self.ready[0][0] - self.ready[0][3].gap_ms if self.ready else 0

    def pop_due(self, now: Now, count: int) -> None:
        """Let up to `count` retries be ready whose gap is over, and whose time has come: the wall clock may go back."""
        while self.early and self.early[0][0] <= now.wall_ms:
            heappush(self.waiting, heappop(self.early)[2])
        self._sweep()
        while self.ready_count < count and (at := self.next_at()) is not None and at <= now.boot_ms:
            entry = heappop(self._first_heap())
            timer = entry[2]
            if timer.state == RETRYING and timer.failure is entry[3]:
                if timer.fire_at > now.wall_ms:
                    heappush(self.early, (timer.fire_at, timer.generation, entry))
                    continue
                timer.state = READY
                self.ready.append(entry)
                self.ready_count += 1
            else:
                self.stale -= 1
        if len(self.ready) > 2 * self.ready_count + SLICE:
            self.ready = deque(entry for entry in self.ready if _is_ready(entry))

    def next_at(self) -> int | None:
        """Boot ms of the first gap that ends, a stale entry's perhaps."""
        heap = self._first_heap()
        return heap[0][0] if heap else None

    @property
    def sweeping(self) -> bool:
        """Whether more is to be swept at once."""
        return bool(self._unswept)

    def _first_heap(self) -> list[RetryEntry]:
        if not self._unswept or (self.waiting and self.waiting[0][:2] <= self._unswept[0][:2]):
            return self.waiting
        return self._unswept

    def _sweep(self) -> None:
        """Drop the stale entries when they outnumber the others, a slice at a time: a gap may last for days."""
        stale = self.stale - len(self.early)  # those may all be among the early ones, which leave by themselves
        if not self._unswept and stale > SWEEP_FLOOR and stale > len(self.waiting) // 2:
            self._unswept, self.waiting = self.waiting, []
        for _ in range(min(SLICE, len(self._unswept))):
            entry = self._unswept.pop()
            if entry[2].state == RETRYING and entry[2].failure is entry[3]:
                heappush(self.waiting, entry)
            else:
                self.stale -= 1

    def step_back(self, now: Now) -> None:
        """The wall clock has gone back: what is ready and not due any more waits again."""
        ready: deque[RetryEntry] = deque()
        for entry in self.ready:
            timer = entry[2]
            if _is_ready(entry) and timer.fire_at > now.wall_ms:
                timer.state = RETRYING
                self.ready_count -= 1
                heappush(self.early, (timer.fire_at, timer.generation, entry))
            else:
                ready.append(entry)
        self.ready = ready

    def entries(self) -> Iterator[RetryEntry]:
        """All that wait, stale ones too."""
        yield from self.waiting
        yield from self._unswept
        yield from (entry for _, _, entry in self.early)

    @property
    def empty(self) -> bool:
        return not (self.waiting or self._unswept or self.early or self.ready)


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
        self._urgent: dict[str, Timer] = {}
        self._popped_at = 0  # Unix ms; whatever is ready was due by then
        self._first: Timer | None = None  # of what is ready, when last reported
        self._first_since = 0
        self._retries: dict[int, RetryQueue] = {}
        self._parking = Parking()
        self._reported: dict[int, tuple[int, int, bool]] = {}
        self.batch_size = 0  # nothing becomes ready before the type is known
        self._slack_ms = 1
        self.changed = True
        self.wakes: tuple[int | None, int | None] = (None, None)

    # ---- what State tells

    def enter(self, timers: list[Timer]) -> None:
        """Live timers have come, WAITING or URGENT."""
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

    def leave(self, timer: Timer) -> None:
        """Take a timer out of wherever it is; the caller changes its state right after. It still counts as live."""
        state = timer.state
        if state <= URGENT:
            self._due.discard()
        elif state == READY:
            if timer.failure is not None:
                self._retries[timer.failure.limit].ready_count -= 1
                self.retrying -= 1
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
        self._due = DueQueue(self._due.now_ms)
        self._due.push(waiting)
        for timer in retrying:
            assert timer.failure is not None
            self._push_retry(timer, timer.failure)

    # ---- what Shard asks

    def set_type(self, type: TimerType | None) -> None:
        """Know the type's limits; without one nothing more becomes ready."""
        self.batch_size = type.batch_size if type else 0
        self._slack_ms = max(1, min(type.max_lag_ms // 10, SLACK_MS_MAX)) if type else 1
        self.changed = True

    def refresh(self, now: Now, held: dict[str, Timer], blocked: set[str]) -> None:
        """Let what is due be ready, up to a batch. A timer whose id is blocked goes to `held` instead."""
        self.step_back(now)
        self._popped_at = now.wall_ms
        self._due.advance(now.wall_ms)
        if (room := self.batch_size - self._ready_count - len(self._urgent)) > 0:
            ready: list[Timer] = []
            for timer in self._due.pop_due(room):
                if blocked and timer.id in blocked:
                    timer.state = HELD
                    held[timer.id] = timer
                elif timer.state == URGENT:
                    timer.state = READY
                    self._urgent[timer.id] = timer
                else:
                    timer.state = READY
                    ready.append(timer)
            self._ready += ready
            self._ready_count += len(ready)
            if len(self._ready) > 2 * self._ready_count + SLICE:  # moved while nothing is taken: a paused type, say
                self._ready = deque(timer for timer in self._ready if timer.state == READY)
        for queue in self._retries.values():
            queue.pop_due(now, self.batch_size)

    def release(self, timer: Timer, wall_ms: int) -> None:
        """A timer that was held back may go, unless the wall clock has gone back meanwhile."""
        if timer.fire_at > wall_ms:
            timer.state = WAITING
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
        early = [t for t in (*self._urgent.values(), *self._ready) if t.state == READY and t.fire_at > wall_ms]
        for timer in early:
            state = URGENT if timer.id in self._urgent else WAITING
            self.leave(timer)
            timer.state = state
        self._ready = deque(timer for timer in self._ready if timer.state == READY)
        self._first = None
        self._due.push(early)
        self._unpark_early(wall_ms)
        self.changed = True

    def take(self, limit: int, count: int) -> tuple[list[Timer], int]:
        """Up to `count` ready timers, now IN_FLIGHT; and for retries the boot ms of the oldest last attempt."""
        taken: list[Timer] = []
        tried_at = 0
        if limit == 0:
            while self._urgent and len(taken) < count:
                taken.append(self._urgent.pop(next(iter(self._urgent))))
            urgent = len(taken)
            ready = self._ready
            while ready and len(taken) < count:
                chunk = [ready.popleft() for _ in range(min(len(ready), count - len(taken)))]
                taken += [timer for timer in chunk if timer.state == READY]
            self._ready_count -= len(taken) - urgent
        elif (queue := self._retries.get(limit)) is not None:
            while queue.ready and len(taken) < count:
                entry = queue.ready.popleft()
                if _is_ready(entry):
                    retry_at, _, timer, failure = entry
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

    def take_parked(self, key: str, count: int) -> list[Timer]:
        """Up to `count` timers that were parked under a key, now IN_FLIGHT."""
        taken = self._parking.take(key, count)
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

    def soonest(self, count: int) -> list[Timer]:
        """The soonest `count` timers that are neither in flight, held nor dead."""
        found = [timer for timer in (*self._urgent.values(), *self._ready) if timer.state == READY]
        for queue in self._retries.values():
            found += [e[2] for e in islice(queue.entries(), LOOK) if e[2].state == RETRYING and e[2].failure is e[3]]
            found += [e[2] for e in queue.ready if _is_ready(e)]
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
        ready = (*self._urgent.values(), *self._ready)
        yield from (timer for timer in ready if timer.state == READY and timer.fire_at <= now_ms)
        yield from (timer for timer in self._parking if timer.failure is None and timer.fire_at <= now_ms)
        yield from self._due.due(now_ms)

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
        heappush(queue.waiting, (failure.since + failure.gap_ms, timer.generation, timer, failure))
