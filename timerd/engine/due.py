"""The due order of one type's timers in one shard: a heap for the near future, coarse buckets for the rest.

    now                near_until
     |--- heap, sorted ---|- 8 s -|- 8 s -|--- 9 min ---|--- 9 min ---|------ 9 h ------| ...

A timer goes into a bucket by its distance, and moves to finer buckets as its time comes near (at most four moves in
its life), so that the heap that is really kept in order stays small however many timers are pending.

Nothing is ever searched for. A timer that was moved or cancelled stays where it is, as a stale entry (its `state` says
so), until its bucket opens or its turn in the heap comes; when stale entries outnumber the live ones they are swept,
a slice at a time. The heap is swept into a second one: taking from the end of a heap's list leaves it a heap.

Invariants:
  1. Everything with fire_at < near_until is in a heap, or in a bucket that is being opened.
  2. A bucket's start is not after the fire_at of anything in it.
  3. No call does more than about `SLICE` entries of upkeep; `next_at` says 0 while more is to be done.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, nsmallest
from typing import Final

from timerd.engine.timer import URGENT, Timer

WIDTHS: Final = (13, 19, 25, 31)  # bits of a bucket's width in ms: 8.2 s, 8.7 min, 9.3 h, 24.9 days
LEAD_MS: Final = 4_000  # a bucket opens this long before its start: time to open a million timers slice by slice
SLICE: Final = 4_000  # entries of upkeep a call: about 2 ms
SWEEP_FLOOR: Final = 8_192  # stale entries that are not worth a sweep


class DueQueue:
    """Timers by (fire_at, generation). Holds timers in state WAITING or URGENT; anything else in here is stale."""

    def __init__(self, now_ms: int) -> None:
        self._near_until = self._horizon(now_ms)
        self._near: list[Timer] = []
        self._swept: list[Timer] = []  # the heap before the sweep under way, emptied from its end
        self._buckets: dict[tuple[int, int], list[Timer]] = {}  # (width, fire_at >> width)
        self._starts: list[tuple[int, int]] = []  # heap of (start, -width): of two that start together, coarse first
        self._stale = 0
        self._entries = 0
        self._sweep: Iterator[None] | None = None

    def __len__(self) -> int:
        """Live entries."""
        return self._entries - self._stale

    def push(self, timer: Timer) -> None:
        """Add a timer that is in no queue."""
        self._entries += 1
        if timer.fire_at < self._near_until:
            heappush(self._near, timer)
        else:
            self._put(timer)

    def discard(self) -> None:
        """Be told that a timer in here is no longer WAITING or URGENT."""
        self._stale += 1

    def pop_due(self, now_ms: int, count: int) -> list[Timer]:
        """Up to `count` timers whose time has come, soonest first; they are no longer in here."""
        due: list[Timer] = []
        for _ in range(count + SLICE):
            heap = self._first_heap()
            if not heap or heap[0].fire_at > now_ms or len(due) == count:
                break
            timer = heappop(heap)
            self._entries -= 1
            if timer.state <= URGENT:
                due.append(timer)
            else:
                self._stale -= 1
        return due

    def advance(self, now_ms: int) -> None:
        """Open the buckets whose time comes near, and sweep, a slice of each."""
        self._near_until = max(self._near_until, self._horizon(now_ms))
        budget = SLICE
        while budget > 0 and self._starts and self._starts[0][0] < self._near_until:
            budget -= self._open(budget)
        if self._sweep is None and self._stale > SWEEP_FLOOR and self._stale > self._entries // 2:
            self._sweep = self._sweep_all()
        if self._sweep is not None:
            try:
                next(self._sweep)
            except StopIteration:
                self._sweep = None

    def next_at(self) -> int | None:
        """Unix ms at which there is something to do: a timer due, a bucket to open; 0 = upkeep is under way."""
        if self._sweep is not None:
            return 0
        at: int | None = None
        if self._starts:
            start = self._starts[0][0]
            at = 0 if start < self._near_until else start - LEAD_MS
        if heap := self._first_heap():
            at = heap[0].fire_at if at is None else min(at, heap[0].fire_at)
        return at

    def soonest(self, count: int) -> list[Timer]:
        """The `count` soonest live timers, in order. Looks at no more of the heap than it must."""
        found = _smallest(self._near, count) + _smallest(self._swept, count)
        for start, width in sorted((start, -width) for start, width in self._starts):
            if len(found) >= count and start > sorted(found)[count - 1].fire_at:
                break
            found += nsmallest(count, (t for t in self._buckets[width, start >> width] if t.state <= URGENT))
        return sorted(found)[:count]

    def count_due(self, now_ms: int, limit: int) -> int:
        """How many are due and live, counted up to `limit`."""
        due = 0
        for heap in (self._near, self._swept):
            todo = [0]
            while todo and due < limit:
                at = todo.pop()
                if at < len(heap) and heap[at].fire_at <= now_ms:
                    due += heap[at].state <= URGENT
                    todo += (2 * at + 1, 2 * at + 2)
        return due

    @staticmethod
    def _horizon(now_ms: int) -> int:
        return (((now_ms + LEAD_MS) >> WIDTHS[0]) + 1) << WIDTHS[0]

    def _first_heap(self) -> list[Timer]:
        if not self._swept:
            return self._near
        return self._swept if not self._near or self._swept[0] < self._near[0] else self._near

    def _put(self, timer: Timer) -> None:
        """Into the bucket that its distance asks for (fire_at >= near_until)."""
        distance = timer.fire_at - self._near_until
        for width in WIDTHS:
            if distance >> width < 64:
                break
        key = (width, timer.fire_at >> width)
        bucket = self._buckets.get(key)
        if bucket is None:
            self._buckets[key] = [timer]
            heappush(self._starts, (key[1] << width, -width))
        else:
            bucket.append(timer)

    def _open(self, budget: int) -> int:
        """Take up to `budget` entries out of the first bucket, into the heap or finer buckets; how many."""
        start, minus_width = self._starts[0]
        key = (-minus_width, start >> -minus_width)
        bucket = self._buckets[key]
        chunk = bucket[-budget:]
        if len(chunk) == len(bucket):
            heappop(self._starts)
            del self._buckets[key]
        else:
            del bucket[-budget:]
        for timer in chunk:
            if timer.state > URGENT:
                self._stale -= 1
                self._entries -= 1
            elif timer.fire_at < self._near_until:
                heappush(self._near, timer)
            else:
                self._put(timer)
        return len(chunk)

    def _sweep_all(self) -> Iterator[None]:
        """Drop the stale entries of the heap, then of every bucket; a step for each slice."""
        self._swept, self._near = self._near, []
        while self._swept:
            chunk = self._swept[-SLICE:]
            del self._swept[-SLICE:]
            live = [timer for timer in chunk if timer.state <= URGENT]
            self._dropped(len(chunk) - len(live))
            if not self._near:
                self._near = live
                heapify(self._near)
            else:
                for timer in live:
                    heappush(self._near, timer)
            yield
        for key in list(self._buckets):
            at = 0
            while (bucket := self._buckets.get(key)) is not None and at < len(bucket):
                chunk = bucket[at : at + SLICE]
                live = [timer for timer in chunk if timer.state <= URGENT]
                self._dropped(len(chunk) - len(live))
                bucket[at : at + SLICE] = live
                at += len(live)
                yield

    def _dropped(self, count: int) -> None:
        self._stale -= count
        self._entries -= count


def _smallest(heap: list[Timer], count: int) -> list[Timer]:
    """The `count` smallest live entries of a heap, by walking it from the top: O(count log count)."""
    found: list[Timer] = []
    front = [(heap[0], 0)] if heap else []
    while front and len(found) < count:
        timer, at = heappop(front)
        if timer.state <= URGENT:
            found.append(timer)
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(front, (heap[child], child))
    return found
