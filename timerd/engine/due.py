"""The due order of one type's timers in one shard: a hierarchical wheel.

      missed  overdue   now         near_until
    |- FIFO -|- FIFO -|- 1 ms bins -|- 8 s -|- 8 s -|--- 9 min ---|--- 9 min ---|------ 9 h ------| ...

A timer goes into a bin by its distance, and moves to finer bins as its time comes near (at most four moves in its
life), so that what is kept in fine order stays small however many timers are pending. Bins are plain lists and a
level's bins a dict, made when something goes in: arming is an append, and a second heap entry is paid for by a bin, not
by a timer. The timers of a bin whose millisecond has come are appended to `overdue` and wait there to be taken: due
order is therefore by millisecond, and within one by arrival here. A million timers due at one instant are one list.

What has been due for longer than the grace goes on to `missed`, from the front of `overdue` as it ages, or at once when
it is met so late (after a suspension, say). `overdue` is only about in the order of due times, so a few may be late to
be moved: whoever hands some out asks `late`.

A timer armed for the past is due when it is accepted, and ages from then on. One that is BEHIND is overdue since its
fire time, so it is missed at once; where that would end it (`set_grace`), it ages like any other.

Nothing is ever searched for. A timer that was moved or cancelled stays where it is, as a stale entry (its `state` says
so), until its bin opens; when stale entries outnumber the live ones they are swept, a slice at a time.

Wall time may go back. What is overdue by then and should not be goes into a bin again when its turn comes.

Invariants:
  1. Each live timer is in here once.
  2. A bin's start is not after the fire_at of anything in it, and not before `near_until` when it is made, but for the
     1 ms bins.
  3. No call does more than about `SLICE` entries of upkeep a kind; `next_at` says 0 while more is to be done.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, nsmallest
from itertools import islice
from typing import Final

from timerd.engine.timer import BEHIND, URGENT, Timer

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
    """Timers by the millisecond in which they are due: of a state up to URGENT; any other in here is stale.

    Call `advance` before `pop_due`, `pop_missed` and `next_at`: it says what time it is.
    """

    def __init__(self, now_ms: int, grace_ms: int | None = None) -> None:
        """`grace_ms`: None while it is not known; nothing is missed then."""
        self._now = now_ms
        self.grace_ms = grace_ms
        self._late_before = 0 if grace_ms is None else now_ms - grace_ms
        self.spares_turns = False
        self._ripe_until = now_ms  # the latest `_now` there was: whatever is overdue was so by then
        self._overdue: deque[Timer] = deque()
        self._missed: deque[Timer] = deque()
        self._unsorted: list[deque[Timer]] = []  # overdue or missed, by a rule that holds no more
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
        """Be told that so many timers in here have another state now, above URGENT."""
        self._stale += count

    def set_grace(self, grace_ms: int, spares_turns: bool = False) -> None:
        """Know from which age on a timer is missed. What was sorted by another rule is sorted again, by slices.

        `spares_turns`: one that is BEHIND is missed by its age here, too, as what is missed ends.
        """
        if (grace_ms, spares_turns) == (self.grace_ms, self.spares_turns):
            return
        self.grace_ms = grace_ms
        self.spares_turns = spares_turns
        self._late_before = self._now - grace_ms
        self._unsorted += [queue for queue in (self._missed, self._overdue) if queue]
        self._missed, self._overdue = deque(), deque()

    def late(self, timers: Iterable[Timer], now_ms: int) -> list[Timer]:
        """Those of them whose time came longer ago than the grace."""
        before = 0 if self.grace_ms is None else now_ms - self.grace_ms
        generation = before * 1000
        return [timer for timer in timers if timer.fire_at < before and timer.generation < generation]

    def pop_due(self, count: int) -> list[Timer]:
        """Up to `count` timers whose time has come, soonest first; they are no longer in here."""
        return self._pop(self._overdue, count)

    def pop_missed(self, count: int) -> list[Timer]:
        """Up to `count` timers whose time came longer ago than the grace, about in order; no longer in here."""
        return self._pop(self._missed, count)

    @property
    def has_overdue(self) -> bool:
        """Whether `pop_due` may find more."""
        return bool(self._overdue or self._unsorted)

    @property
    def missed_most(self) -> int:
        """How many `pop_missed` may find: at most so many, and 0 only if there are none."""
        return len(self._missed)

    def missed_at(self, others: Iterable[Timer]) -> int | None:
        """Unix ms at which the first of what is overdue, or of the others, is missed, if nobody takes it."""
        if self.grace_ms is None:
            return None
        firsts = [timer.due_at for timer in others]
        if self._overdue:
            firsts.append(self._overdue[0].due_at)
        return min(firsts) + self.grace_ms + 1 if firsts else None

    def advance(self, now_ms: int) -> None:
        """It is `now_ms`: open the bins whose time comes near, and sweep, a slice of each."""
        self._now = now_ms
        self._ripe_until = max(self._ripe_until, now_ms)
        self._late_before = 0 if self.grace_ms is None else now_ms - self.grace_ms
        self._reach(now_ms)
        if self._unsorted:
            self._sort_again()
        if self._overdue and self._is_missed(self._overdue[0]):
            self._age()
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
        """Unix ms at which there is something to do: a timer due, a bin to open; 0 = upkeep is under way.

        It says nothing of what is missed (`missed_most`).
        """
        if self._sweep is not None or self._unsorted:
            return 0
        if self._overdue:
            return 0 if self._is_missed(self._overdue[0]) else self._now
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
        found = [timer for queue in self._come() for timer in _live(queue)]
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
        for queue in self._come():
            yield from (t for t in queue if t.state <= URGENT and t.fire_at <= now_ms)
        for tick in ticks:
            yield from (t for t in self._bins[0][tick] if t.state <= URGENT)
        for start, minus_level in starts:
            yield from (t for t in _live(self._bin(start, -minus_level)) if t.fire_at <= now_ms)

    def _come(self) -> Iterator[deque[Timer]]:
        """Whatever time has come, the oldest first."""
        yield self._missed
        yield from self._unsorted
        yield self._overdue

    # ---- steps

    def _pop(self, queue: deque[Timer], count: int) -> list[Timer]:
        popped: list[Timer] = []
        budget = count + SLICE
        while queue and len(popped) < count and budget > 0:
            chunk = [queue.popleft() for _ in range(min(len(queue), count - len(popped), budget))]
            budget -= len(chunk)
            live = [timer for timer in chunk if timer.state <= URGENT]
            self._dropped(len(chunk) - len(live))
            if self._now < self._ripe_until:  # the wall clock went back: it may be too early for some
                of_missed = queue is self._missed
                stays = [t.fire_at <= self._now and (self._is_missed(t) or not of_missed) for t in live]
                if not all(stays):
                    self._place([timer for timer, stay in zip(live, stays, strict=True) if not stay])
                    live = [timer for timer, stay in zip(live, stays, strict=True) if stay]
            self._entries -= len(live)
            popped += live
        return popped

    def _is_missed(self, timer: Timer) -> bool:
        before = self._late_before
        if timer.fire_at >= before:
            return False
        return timer.generation < before * 1000 or (timer.state == BEHIND and not self.spares_turns)

    def _sort(self, timers: list[Timer]) -> None:
        """Their time has come: they are overdue, or missed already."""
        before, generation = self._late_before, self._late_before * 1000
        missed = [timer for timer in timers if timer.fire_at < before and timer.generation < generation]
        if len(missed) < len(timers):
            missed = [timer for timer in timers if self._is_missed(timer)]
            self._overdue += [timer for timer in timers if not self._is_missed(timer)]
        self._missed += missed

    def _sort_again(self) -> None:
        """Sort a slice of what was sorted by another grace."""
        queue = self._unsorted[0]
        chunk = [queue.popleft() for _ in range(min(len(queue), SLICE))]
        if not queue:
            del self._unsorted[0]
        live = [timer for timer in chunk if timer.state <= URGENT]
        self._dropped(len(chunk) - len(live))
        early = [timer for timer in live if timer.fire_at > self._now] if self._now < self._ripe_until else []
        if early:
            self._place(early)
            live = [timer for timer in live if timer.fire_at <= self._now]
        self._sort(live)

    def _age(self) -> None:
        """Move on what has been overdue for longer than the grace, up to a slice."""
        overdue = self._overdue
        stale = 0
        for _ in range(min(len(overdue), SLICE)):
            timer = overdue[0]
            if timer.state > URGENT:
                stale += 1
            elif self._is_missed(timer):
                self._missed.append(timer)
            else:
                break
            overdue.popleft()
        self._dropped(stale)

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
                (self._missed if self._is_missed(timer) else self._overdue).append(timer)
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
        left = SLICE
        while ticks and ticks[0] <= now and left > 0:
            at = ticks[0]
            timers = bins[at]
            if len(timers) <= SLICE:
                del bins[heappop(ticks)]
            else:
                timers, rest = timers[:SLICE], timers
                del rest[:SLICE]
            left -= len(timers)
            if at < self._late_before:
                self._sort(timers)
            else:
                self._overdue += timers

    def _sweep_all(self) -> Iterator[None]:
        """Drop the stale entries of every bin, then of what is overdue and missed; a step for each slice."""
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
        for queue in (self._overdue, self._missed):
            left = len(queue)
            while left > 0:
                yield
                chunk = [queue.popleft() for _ in range(min(left, SLICE, len(queue)))]
                left -= SLICE
                live = [timer for timer in chunk if timer.state <= URGENT]
                self._dropped(len(chunk) - len(live))
                queue += live

    def _dropped(self, count: int) -> None:
        self._stale -= count
        self._entries -= count


def _live(timers: Iterable[Timer]) -> list[Timer]:
    return [timer for timer in islice(timers, LOOK) if timer.state <= URGENT]
