"""How the one target of a processor's type is, by what its batches have come to; and what a failure says.

It has a breaker, a pace and a pause (Retry-After), which end with its address, and a pause of our own while we could
not send at all. A failure says something of the target, of the batch, or of us (ADR 3); which one is decided here.

It knows batches only as they were posted: nothing of what is ready, of lanes, or of rates (`Flow`).

Invariants
1. What comes back from an address that the type has no more says nothing about the one that it has.
2. A failure counts against a timer only if it was alone in its batch.
"""

from typing import Final

from timerd.engine.answer import Failed
from timerd.engine.backoff import backoff_ms
from timerd.engine.batch import Batch
from timerd.engine.breaker import Breaker
from timerd.engine.command import TargetTurned
from timerd.engine.condition import Condition, Course, condition_of, course_of, turns
from timerd.engine.message import WholeFailure
from timerd.engine.now import Now
from timerd.engine.pace import Pace
from timerd.engine.timer import RetryPolicy, Timer, TimerType

NO_POLICY: Final = RetryPolicy()


class Target:
    """Of one type. Times are boot ms."""

    def __init__(self, name: str, open: set[int]) -> None:
        """`name`: the type's; `open`: the batches under way, which the flow keeps."""
        self.breaker = Breaker()
        self.pace = Pace()
        self.turned: list[TargetTurned] = []
        """What it has come to, and nobody has been told."""
        self.gone = False
        """It answered that it is gone; until the types are set again."""
        self._name = name
        self._open = open
        self._policy = NO_POLICY
        self._bound = 1
        self._held_until = 0
        self._ours_until = 0  # we could not send: nothing is tried before. 0: we could, as far as is known
        self._troubled_since = 0
        self._url: str | None = None  # the address it had last
        self._elsewhere: set[int] = set()  # batches under way to an address that the type had before

    def set_type(self, type: TimerType | None, before: TimerType | None, boot_ms: int) -> None:
        """Know the type as it is now, and as it was. What is known of a target ends with its address."""
        if type is not None:
            if self._url is not None and type.url != self._url:
                self.breaker, self.pace = Breaker(), Pace()
                self._held_until = self._troubled_since = 0
                self._elsewhere = set(self._open)
            self._url = type.url
            by = type.tries_by(before, boot_ms)
            self.breaker.hasten(by)
            self.pace.hasten(by)
        if type != before:
            self._ours_until = 0
        self.gone = False
        self._policy = type.retry if type else NO_POLICY
        self._bound = type.max_in_flight if type else 1

    @property
    def free_at(self) -> int:
        """From when it may be tried."""
        return max(self._held, self._ours_until, self.breaker.probe_at if self.breaker.open else 0)

    @property
    def slots(self) -> int:
        """How many batches may be under way. While the breaker is open that is the breaker's business. While we can't
        send, one finds out whether we can again."""
        if self._ours_until:
            return 1
        return self._bound if self.breaker.open else self.pace.limit(self._bound)

    def condition(self, boot_ms: int) -> Condition:
        """How it is at this moment."""
        return condition_of(self.breaker, self.pace, self._held_until, self._bound, boot_ms, self._troubled_since)

    def leave(self) -> bool:
        """A batch is being sent. Whether more may be begun for that."""
        was, self._ours_until = self._ours_until, 0
        return was > 0

    def accept(self, batch_no: int, boot_ms: int) -> None:
        """The target has taken a batch."""
        if batch_no in self._elsewhere:
            return
        was, reason = course_of(self.breaker, self.pace), self.pace.reason
        self.pace.succeed(boot_ms, self._bound)
        self.breaker.succeed(boot_ms)
        self._turn(was, boot_ms, reason)

    def judge(self, now: Now, batch: Batch, failed: Failed, jitter: float) -> WholeFailure:
        """What a failure of the whole batch makes of its members; the breaker and the hold learn what it says of the
        target.

        Either it says nothing about them (a down target, Retry-After, 410): they stay whole, and it does not count. Or
        it may be one of them: they travel in half the size next time, and it counts when there is only one.
        """
        breaker, policy = self.breaker, self._policy
        alone = batch.timers[0] if len(batch.timers) == 1 else None
        gap_ms = max(1, round(backoff_ms(policy, 1) * jitter))
        if batch.batch_no in self._elsewhere:
            return WholeFailure(failed.error, gap_ms, batch.whole, unknown=failed.unknown)
        if failed.ours:
            breaker.drop_probe(batch.batch_no)
            gap_ms = max(gap_ms, failed.retry_after_ms or 0)
            self._ours_until = max(self._ours_until, now.boot_ms + gap_ms)
            return WholeFailure(failed.error, gap_ms, batch.whole)
        was = course_of(breaker, self.pace)
        if breaker.open:
            self.pace.note(failed.error, now.boot_ms)
        elif failed.wants_pause or not (failed.suspect and self._is_own_fault(batch, failed, alone)):
            newest, under_way = max(self._open, default=batch.batch_no), len(self._open)
            who = batch.timers[0]
            self.pace.fail(
                failed, batch.batch_no, newest, under_way, self._bound, policy, now.boot_ms, jitter,
                who.id, who.failure is not None,
            )  # fmt: skip
        if failed.suspect:
            breaker.suspect(batch.batch_no, alone.id if alone else None, policy, now.boot_ms, jitter)
        elif failed.sent:
            breaker.hear()
        else:
            breaker.drop_probe(batch.batch_no)
        if failed.retry_after_ms is not None:
            self._held_until = max(self._held_until, now.boot_ms + failed.retry_after_ms)
        self._turn(was, now.boot_ms, failed.error)
        if failed.retry_after_ms is not None:
            return WholeFailure(failed.error, max(gap_ms, failed.retry_after_ms), batch.whole)
        if failed.gone:
            self.gone = True
            return WholeFailure(failed.error, gap_ms, batch.whole)
        if failed.suspect and not self._is_own_fault(batch, failed, alone):
            if alone and alone.failure and not breaker.open:
                # No probe spaces out the tries of a timer that is the only one to fail.
                gap_ms = max(1, round(backoff_ms(policy, alone.failure.attempts + 1) * jitter))
            return WholeFailure(failed.error, gap_ms, batch.whole, unknown=failed.unknown)
        half = max(1, min(batch.whole, len(batch.timers)) // 2)
        bury = alone is not None and failed.no_retry
        counted = alone is not None and not bury
        return WholeFailure(failed.error, gap_ms, half, counted=counted, unknown=failed.unknown, bury=bury)

    @property
    def _held(self) -> int:
        """Nothing is sent before, for the target's sake."""
        return max(self._held_until, self.pace.held_until)

    def _turn(self, was: Course, boot_ms: int, reason: str) -> None:
        """The target has been heard of: what has changed is told, and an outage that has ended ends gently."""
        if was.open and not self.breaker.open:
            self.pace.restart(max(self._open, default=0), self._bound, reason, boot_ms)
        self._ours_until = 0
        now = course_of(self.breaker, self.pace)
        self.turned += turns(was, now, self._name, "", reason)
        held = self._held > boot_ms
        self._troubled_since = (self._troubled_since or boot_ms) if now.open or now.slowed or held else 0

    def _is_own_fault(self, batch: Batch, failed: Failed, alone: Timer | None) -> bool:
        """Whether a sign of a down target comes from something in the batch.

        It does when the target has taken other batches since these timers failed before, and is not known to be down.
        To split a batch by that is cheap; to count it against a timer wants more: that it failed in the same way then.
        So the first batches that meet an outage, before the breaker has noticed, pay nothing for what they had before.
        """
        if self.breaker.open or not failed.sent or not 0 < batch.tried_at <= self.breaker.succeeded_at:
            return False
        if alone is None or alone.failure is None:
            return True
        return alone.failure.error.partition(":")[0] == failed.error.partition(":")[0]
