"""Retries of one type in one shard, those that may travel in batches of one size: by boot time, until they are ready.

Nothing is searched for. A timer that leaves (moved, cancelled) stays as a stale entry, which is dropped when it is met;
when stale entries outnumber the others they are swept, a slice at a time.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from timerd.engine.due import SLICE, SWEEP_FLOOR
from timerd.engine.now import Now
from timerd.engine.timer import READY, RETRYING, Failure, Timer

RetryEntry = tuple[int, int, int, Timer, Failure]
"""(retry at, boot ms; generation; number; timer; its failure then): stale unless the timer's failure still is this one.

No two have one number: a generation that has moved away and come back may be here twice, and timers have no order that
holds for those.
"""


def is_ready(entry: RetryEntry) -> bool:
    return entry[3].state == READY and entry[3].failure is entry[4]


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
        self._count = 0
        self._unswept: list[RetryEntry] = []
        """What is left of a `waiting` with too many of them: a heap still, since it is taken from its end."""

    def push(self, timer: Timer, failure: Failure) -> None:
        """Let a timer wait out the gap of its last failure."""
        self._count += 1
        heappush(self.waiting, (failure.since + failure.gap_ms, timer.generation, self._count, timer, failure))

    def oldest_try(self) -> int:
        """Boot ms of the last attempt of the retry that is ready longest; 0 if none is."""
        while self.ready and not is_ready(self.ready[0]):
            self.ready.popleft()
        return self.ready[0][0] - self.ready[0][4].gap_ms if self.ready else 0

    def pop_due(self, now: Now, count: int) -> None:
        """Let up to `count` retries be ready whose gap is over, and whose time has come: the wall clock may go back."""
        while self.early and self.early[0][0] <= now.wall_ms:
            heappush(self.waiting, heappop(self.early)[2])
        self._sweep()
        while self.ready_count < count and (at := self.next_at()) is not None and at <= now.boot_ms:
            entry = heappop(self._first_heap())
            timer = entry[3]
            if timer.state == RETRYING and timer.failure is entry[4]:
                if timer.fire_at > now.wall_ms:
                    heappush(self.early, (timer.fire_at, timer.generation, entry))
                    continue
                timer.state = READY
                self.ready.append(entry)
                self.ready_count += 1
            else:
                self.stale -= 1
        if len(self.ready) > 2 * self.ready_count + SLICE:
            self.ready = deque(entry for entry in self.ready if is_ready(entry))

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
            if entry[3].state == RETRYING and entry[3].failure is entry[4]:
                heappush(self.waiting, entry)
            else:
                self.stale -= 1

    def step_back(self, now: Now) -> None:
        """The wall clock has gone back: what is ready and not due any more waits again."""
        ready: deque[RetryEntry] = deque()
        for entry in self.ready:
            timer = entry[3]
            if is_ready(entry) and timer.fire_at > now.wall_ms:
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
