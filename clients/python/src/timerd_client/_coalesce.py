"""What goes into the next request, and what has to wait.

Calls wait here as jobs. Arms that are called one by one are taken together: while no request with arms is open the
next one takes whatever is there, and while one is open the arms gather. Nobody waits for a timer to coalesce.

Pure: no I/O, no clock, no locks (a shell calls in from one thread at a time). Invariants:

1. A key of a write (an id, or a type's name) is in at most one open request. Reads have no keys.
2. Jobs that share a key are sent in the order in which they were added, also when one of them goes back to be sent
   again. In one request they stand in that order.
3. A key whose last request may still arrive is held until it can't any more (`Exchange.settled_at`).
4. Every job is settled exactly once.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

import msgspec

from timerd_client._errors import OutcomeUnknown, TimerdError, Unavailable
from timerd_client._protocol import Call, EncodedArm, Key

TURN_ITEMS_MAX: Final = 1_000  # more saves nothing: by then the request's own cost is a thousandth each
TURN_BYTES_MAX: Final = 1 << 20  # what a shard takes up in one turn; cheap to send again
OPEN_MAX: Final = 8  # requests, one connection each: what an httpx pool manages well
OTHERS_OPEN_MAX: Final = 6  # of them, others than single arms: slow reads must not keep arms from being sent
OVERTAKE_S: Final = 0.1  # an open request this much slower than usual must not hold up the other ids


class Chunk(msgspec.Struct, frozen=True):
    """Arms that stay together in a request of their own: a part of what a caller gave as one."""

    items: Sequence[EncodedArm]
    offset: int
    """Where the part begins in the whole: pointers in errors count from there."""


Work = EncodedArm | Chunk | Call[Any]


class Job:
    """One call that waits. `outcome` is a result or an error once it is settled."""

    __slots__ = ("added_at", "deadline", "keys", "outcome", "settled", "unsure", "wake", "work")

    def __init__(self, work: Work, keys: tuple[Key, ...], wake: Any) -> None:
        self.work = work
        self.keys = keys
        self.wake = wake
        """The shell's: how to tell the caller. Not looked into."""
        self.added_at = self.deadline = 0.0
        self.unsure = False
        """It was sent before, and that answer is missing."""
        self.settled = False
        self.outcome: Any = None

    def settle(self, outcome: Any) -> None:
        assert not self.settled
        self.settled, self.outcome = True, outcome


class Turn:
    """The jobs of one request: arms that are coalesced, or one job of another kind."""

    __slots__ = ("deadline", "jobs")

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = jobs
        self.deadline = min([job.deadline for job in jobs])

    @property
    def coalesced(self) -> bool:
        return isinstance(self.jobs[0].work, EncodedArm)


class Coalescer:
    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._queue: deque[Job] = deque()  # by deadline as well: all have the same timeout
        self._others = 0  # jobs in the queue that are no single arms
        self._open = 0
        self._arms_open = 0
        self._open_keys: set[Key] = set()
        self._held: dict[Key, float] = {}
        self._releases: list[tuple[float, int, Key]] = []  # the number breaks ties: keys are not of one kind
        self._numbers = count()
        self._look_again = 0.0  # no arm can be taken before, while one is open and few have gathered

    def add(self, job: Job, now: float) -> None:
        job.added_at = now
        job.deadline = now + self._timeout
        self._queue.append(job)
        if not isinstance(job.work, EncodedArm):
            self._others += 1
        else:
            self._look_again = min(self._look_again, now + OVERTAKE_S)

    def take(self, now: float) -> Turn | None:
        """The next request, or None while there is nothing that may be sent."""
        self._release(now)
        queue = self._queue
        if not queue or self._open >= OPEN_MAX:
            return None
        others = self._others > 0 and self._open - self._arms_open < OTHERS_OPEN_MAX
        if self._arms_open and not others and len(queue) < TURN_ITEMS_MAX and now < self._look_again:
            return None
        taken: list[Job] = []
        skipped: list[Job] = []
        blocked: set[Key] = set()  # keys of skipped jobs: what comes later must not overtake them (2)
        size = 0
        closed_until = 0.0
        enough = len(queue) >= TURN_ITEMS_MAX
        while queue and len(taken) < TURN_ITEMS_MAX:
            job = queue.popleft()
            if job.settled:
                self._others -= not isinstance(job.work, EncodedArm)
                continue
            work = job.work
            if closed_until and not others:
                skipped.append(job)
                break
            free = self._free(job.keys, blocked)
            if free and isinstance(work, EncodedArm):
                if not taken and self._arms_open and not enough and job.added_at + OVERTAKE_S > now:
                    closed_until = closed_until or job.added_at + OVERTAKE_S
                elif not closed_until:
                    size += len(work.data)
                    if taken and size > TURN_BYTES_MAX:
                        skipped.append(job)
                        break
                    taken.append(job)
                    continue
            elif free and others and not taken:
                taken.append(job)
                self._others -= 1
                break
            skipped.append(job)
            blocked.update(job.keys)
        queue.extendleft(reversed(skipped))
        if not taken:
            self._look_again = closed_until or float("inf")
            return None
        turn = Turn(taken)
        self._open += 1
        self._arms_open += turn.coalesced
        for job in taken:
            self._open_keys.update(job.keys)
        return turn

    def done(self, turn: Turn, outcomes: Sequence[Any], settled_at: float, deadline: float, now: float) -> list[Job]:
        """A request has ended, with one outcome a job. Returns the jobs that are settled by it.

        A job that has more time than the request had is sent again when the request failed for want of time (and not
        for good).
        """
        assert len(outcomes) == len(turn.jobs)
        self._open -= 1
        self._arms_open -= turn.coalesced
        self._look_again = 0.0
        settled: list[Job] = []
        again: list[Job] = []
        for job, outcome in zip(turn.jobs, outcomes, strict=True):
            self._open_keys.difference_update(job.keys)
            if settled_at > now:
                self._hold(job.keys, settled_at)  # (3), also when the caller has gone away
            if job.settled:
                continue
            wants = isinstance(outcome, OutcomeUnknown) or (isinstance(outcome, Unavailable) and not outcome.final)
            if wants and job.deadline > deadline:
                job.unsure = job.unsure or isinstance(outcome, OutcomeUnknown)
                again.append(job)
            else:
                job.settle(outcome)
                settled.append(job)
        self._queue.extendleft(reversed(again))
        self._others += sum(not isinstance(job.work, EncodedArm) for job in again)
        return settled

    def expire(self, now: float) -> list[Job]:
        """Settle the jobs whose time is up before they could be sent."""
        late: list[Job] = []
        queue = self._queue
        while queue and (queue[0].settled or queue[0].deadline <= now):
            job = queue.popleft()
            self._others -= not isinstance(job.work, EncodedArm)
            if not job.settled:
                error: TimerdError = Unavailable("waited too long for earlier requests to end; it was not sent")
                if job.unsure:
                    error = OutcomeUnknown("no answer in time")
                job.settle(error)
                late.append(job)
        return late

    def wake_at(self, now: float) -> float | None:
        """When to call `take` or `expire` again if nothing else happens; always later than `now`."""
        if not self._queue:
            return None
        times = [self._queue[0].deadline]
        if self._releases:
            times.append(self._releases[0][0])
        if self._arms_open and self._open < OPEN_MAX:
            times.append(self._look_again)
        return min((time for time in times if time > now), default=None)

    def first(self) -> Job | None:
        """The job that has waited longest, if any waits."""
        return next((job for job in self._queue if not job.settled), None)

    def _free(self, keys: tuple[Key, ...], blocked: set[Key]) -> bool:
        if len(keys) == 1:
            key = keys[0]
            return key not in self._open_keys and key not in self._held and key not in blocked
        return (
            self._open_keys.isdisjoint(keys) and blocked.isdisjoint(keys) and not any(key in self._held for key in keys)
        )

    def _hold(self, keys: tuple[Key, ...], until: float) -> None:
        for key in keys:
            if until > self._held.get(key, 0.0):
                self._held[key] = until
                heapq.heappush(self._releases, (until, next(self._numbers), key))

    def _release(self, now: float) -> None:
        while self._releases and self._releases[0][0] <= now:
            until, _, key = heapq.heappop(self._releases)
            if self._held.get(key) == until:
                del self._held[key]
            self._look_again = 0.0
