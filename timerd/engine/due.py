"""The due order of one type's timers in one shard: a hierarchical wheel.

    overdue   now         near_until
    |- FIFO -|- 1 ms bins -|- 8 s -|- 8 s -|--- 9 min ---|--- 9 min ---|------ 9 h ------| ...

A timer goes into a bin by its distance, and moves to finer bins as its time comes near (at most four moves in its
life), so that what is kept in fine order stays small however many timers are pending. Bins are plain lists and a
level's bins a dict, made when something goes in: arming is an append, and a second heap entry is paid for by a bin, not
by a timer. The timers of a bin whose millisecond has come are appended to `overdue` and wait there to be taken: due
order is therefore by millisecond, and within one by arrival here. A million timers due at one instant are one list.

Nothing is ever searched for. A timer that was moved or cancelled stays where it is, as a stale entry (its `state` says
so), until its bin opens; when stale entries outnumber the live ones they are swept, a slice at a time.

Wall time may go back. What is overdue by then and should not be goes into a bin again when its turn comes.

Invariants:
  1. Each live timer is in here once.
  2. A bin's start is not after the fire_at of anything in it, and not before `near_until` when it is made, but for the
     1 ms bins.
  3. No call does more than about `SLICE` entries of upkeep; `next_at` says 0 while more is to be done.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, nsmallest
from itertools import islice
from typing import Final

from timerd.engine.timer import URGENT, Timer

WIDTHS: Final = (0, 13, 19, 25, 31)  # bits of a bin's width in ms: 1 ms, 8.2 s, 8.7 min, 9.3 h, 24.9 days
BINS_A_LEVEL: Final = 64  # so that a bin of one level has at most as many of the next below
LEAD_MS: Final = 4_000  # a bin opens this long before its start: time to open a million timers slice by slice
SLICE: Final = 4_000  # entries of upkeep a call: about 2 ms
SWEEP_FLOOR: Final = 8_192  # stale entries that are not worth a sweep
LOOK: Final = 20_000  # entries of one bin that a reader looks at, about 4 ms
FOREVER: Final = 2**63

Level = tuple[int, int, dict[int, list[Timer]]]
"""(fire_at before which this level takes a timer; width; its bins by fire_at >> width)"""


class DueQueue:
    """Timers by the millisecond in which they are due: those in state WAITING or URGENT; any other in here is stale.

    Call `advance` before `pop_due` and `next_at`: it says what time it is.
    """

    def __init__(self, now_ms: int) -> None:
        self._now = now_ms
        self._ripe_until = now_ms  # the latest `_now` there was: whatever is overdue was so by then
        self._overdue: deque[Timer] = deque()
        self._bins: tuple[dict[int, list[Timer]], ...] = tuple({} for _ in WIDTHS)
        self._ticks: list[int] = []  # heap: the 1 ms bins
        self._starts: list[tuple[int, int]] = []  # heap: the others, (start, -level): of equal starts, coarse first
        self._levels: tuple[Level, ...] = ()
        self._near_until = 0
        self._reach(now_ms)
        self._stale = 0
        self._entries = 0
        self._sweep: Iterator[None] | None = None

    @property
    def now_ms(self) -> int:
        """Unix ms of the last `advance`."""
        return self._now

    def __len__(self) -> int:
        """Live entries."""
        return self._entries - self._stale

    def push(self, timers: list[Timer]) -> None:
        """Add timers that are in no queue."""
        self._entries += len(timers)
        self._place(timers)

    def discard(self, count: int = 1) -> None:
        """Be told that so many timers in here are no longer WAITING or URGENT."""
        self._stale += count

    def pop_due(self, count: int) -> list[Timer]:
        """Up to `count` timers whose time has come, soonest first; they are no longer in here."""
        overdue = self._overdue
        due: list[Timer] = []
        budget = count + SLICE
        while overdue and len(due) < count and budget > 0:
            chunk = [overdue.popleft() for _ in range(min(len(overdue), count - len(due), budget))]
            budget -= len(chunk)
            live = [timer for timer in chunk if timer.state <= URGENT]
            self._dropped(len(chunk) - len(live))
            if self._now < self._ripe_until:  # the wall clock went back
                early = [timer for timer in live if timer.fire_at > self._now]
                live = [timer for timer in live if timer.fire_at <= self._now]
                self._place(early)
            self._entries -= len(live)
            due += live
        return due

    def advance(self, now_ms: int) -> None:
        """It is `now_ms`: open the bins whose time comes near, and sweep, a slice of each."""
        self._now = now_ms
        self._ripe_until = max(self._ripe_until, now_ms)
        self._reach(now_ms)
        budget = SLICE
        while budget > 0 and self._starts and self._starts[0][0] < self._near_until:
            budget -= self._open(budget)
        if self._ticks and self._ticks[0] <= now_ms:
            self._ripen()
        if self._sweep is None and self._stale > SWEEP_FLOOR and self._stale > self._entries // 2:
            self._sweep = self._sweep_all()
        if self._sweep is not None:
            try:
                next(self._sweep)
            except StopIteration:
                self._sweep = None

    def next_at(self) -> int | None:
        """Unix ms at which there is something to do: a timer due, a bin to open; 0 = upkeep is under way."""
        if self._sweep is not None:
            return 0
        if self._overdue:
            return self._now
        at = self._ticks[0] if self._ticks else None
        if self._starts:
            start = self._starts[0][0]
            if start < self._near_until:
                return 0
            at = start - LEAD_MS if at is None else min(at, start - LEAD_MS)
        return at

    # ---- for readers

    def soonest(self, count: int) -> list[Timer]:
        """The `count` soonest live timers, by (fire_at, generation); of a bin with very many, of the first `LOOK`."""
        found = _live(self._overdue)
        near = 0
        for tick in sorted(self._ticks):
            if near >= count:
                break
            timers = _live(self._bins[0][tick])
            found += timers
            near += len(timers)
        found = nsmallest(count, found)
        for start, minus_level in sorted(self._starts):
            if len(found) == count and start > found[-1].fire_at:
                break
            found = nsmallest(count, found + _live(self._bin(start, -minus_level)))
        return found

    def due(self, now_ms: int) -> Iterator[Timer]:
        """The live timers that are due, about in the order in which they became so."""
        ticks = sorted(tick for tick in self._ticks if tick <= now_ms)
        starts = sorted(entry for entry in self._starts if entry[0] <= now_ms)
        yield from (t for t in self._overdue if t.state <= URGENT and t.fire_at <= now_ms)
        for tick in ticks:
            yield from (t for t in self._bins[0][tick] if t.state <= URGENT)
        for start, minus_level in starts:
            yield from (t for t in _live(self._bin(start, -minus_level)) if t.fire_at <= now_ms)

    # ---- steps

    def _reach(self, now_ms: int) -> None:
        """Let what is soon after `now_ms` be near. What was near stays so when the clock goes back."""
        until = (((now_ms + LEAD_MS) >> WIDTHS[1]) + 1) << WIDTHS[1]
        if until > self._near_until:
            self._near_until = until
            ends = (until, *(until + (BINS_A_LEVEL << width) for width in WIDTHS[1:-1]), FOREVER)
            self._levels = tuple(zip(ends, WIDTHS, self._bins, strict=True))

    def _place(self, timers: Iterable[Timer]) -> None:
        """Into the bins that their distances ask for."""
        now = self._now
        levels = self._levels
        for timer in timers:
            at = timer.fire_at
            if at <= now:
                self._overdue.append(timer)
                continue
            for end, width, bins in levels:  # noqa: B007 - what the loop ends at is what it is for
                if at < end:
                    break
            timers_there = bins.get(at >> width)
            if timers_there is not None:
                timers_there.append(timer)
            else:
                bins[at >> width] = [timer]
                if width:
                    heappush(self._starts, (at >> width << width, -WIDTHS.index(width)))
                else:
                    heappush(self._ticks, at)

    def _bin(self, start: int, level: int) -> list[Timer]:
        return self._bins[level][start >> WIDTHS[level]]

    def _open(self, budget: int) -> int:
        """Take up to `budget` entries out of the first bin, into finer ones; how many."""
        start, minus_level = self._starts[0]
        timers = self._bin(start, -minus_level)
        chunk = timers[:budget]
        if len(chunk) == len(timers):
            heappop(self._starts)
            del self._bins[-minus_level][start >> WIDTHS[-minus_level]]
        else:
            del timers[:budget]
        live = [timer for timer in chunk if timer.state <= URGENT]
        self._dropped(len(chunk) - len(live))
        self._place(live)
        return len(chunk)

    def _ripen(self) -> None:
        """Let the timers of the milliseconds that have come be overdue."""
        now = self._now
        ticks = self._ticks
        bins = self._bins[0]
        overdue = self._overdue
        enough = len(overdue) + SLICE
        while ticks and ticks[0] <= now and len(overdue) < enough:
            timers = bins[ticks[0]]
            if len(timers) <= SLICE:
                overdue += timers
                del bins[heappop(ticks)]
            else:
                overdue += timers[:SLICE]
                del timers[:SLICE]

    def _sweep_all(self) -> Iterator[None]:
        """Drop the stale entries of every bin, then of what is overdue; a step for each slice."""
        budget = SLICE
        for bins in self._bins:
            for key in list(bins):
                at = 0
                # A bin may open while this waits between two steps; then some of it is looked at by nobody, or twice.
                while (timers := bins.get(key)) is not None and at < len(timers):
                    chunk = timers[at : at + SLICE]
                    live = [timer for timer in chunk if timer.state <= URGENT]
                    if len(live) < len(chunk):
                        timers[at : at + SLICE] = live
                        self._dropped(len(chunk) - len(live))
                    at += len(live)
                    budget -= len(chunk)
                    if budget <= 0:
                        yield
                        budget = SLICE
        overdue = self._overdue
        left = len(overdue)
        while left > 0:
            yield
            chunk = [overdue.popleft() for _ in range(min(left, SLICE, len(overdue)))]
            left -= SLICE
            live = [timer for timer in chunk if timer.state <= URGENT]
            self._dropped(len(chunk) - len(live))
            overdue += live

    def _dropped(self, count: int) -> None:
        self._stale -= count
        self._entries -= count


def _live(timers: Iterable[Timer]) -> list[Timer]:
    return [timer for timer in islice(timers, LOOK) if timer.state <= URGENT]
