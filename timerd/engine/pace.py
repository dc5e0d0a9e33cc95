"""The pace of one target: how many requests may be under way to it while it shows that it has too much to do.

A target of which nothing is known gets all that is configured, from the first request on. A sign of overload (429, 503,
504, a time-out, a connection that fails) halves what may be under way; then it grows again with what succeeds: at first
by one a success, which doubles it a round, from half of where it was cut by an eighth a round, until it is whole again
and nothing is remembered. After a pause that the target asked for, and after an outage, it begins at one, so that the
end of a pause is no new storm (ADR 19).

One item that always fails must not make a healthy target look overloaded. So a retry that fails although the target has
taken something since it was cut is a sign only together with others, and whoever failed last is not heard again before
something is taken. And a request that was alone under way says nothing of too many at once, unless it is the second of
a row.

A target that refuses (429, 503) without a word about when to come again, and has taken nothing since it was slowed,
is also left alone for a while, longer each time, as a failing timer is.

It knows batches by their numbers and by one id each, and no timers. Pure: times and jitter are arguments.

Invariants
1. 1 <= window < bound, or the window is None: whole. (Of a bound of one it is one.)
2. A round cuts once: what was under way when it was cut says nothing new when it fails as well.
3. Of retries that fail it remembers those of a round, and at most an eighth of one.
4. Whatever fails, the window never falls below 1, and no pause of its own is longer than `max_backoff`.
"""

from typing import Final

from timerd.engine.answer import Failed
from timerd.engine.backoff import backoff_ms
from timerd.engine.timer import RetryPolicy

GROWS_BY: Final = 8  # an eighth a round: 2,000 successes from 16 to 256; one a round would be 30,000
FEW: Final = 4  # so few under way don't say how many are too many: then the window is halved, and not they
CALM_MS: Final = 600_000  # with no sign of overload for so long a type of little traffic is whole again, too


class Pace:
    """Of one target. Times are boot ms."""

    __slots__ = (
        "_again", "_cut_at", "_ease_from", "_ended", "_grown", "_heard", "_least", "_refusals", "_taken", "_top",
        "held_until", "reason", "strained_at", "window",
    )  # fmt: skip

    def __init__(self) -> None:
        self.window: int | None = None
        """How many requests may be under way; None: as many as are configured."""
        self.held_until = 0
        """Before this nothing is to be sent, because it refuses."""
        self.reason = ""
        """What the last sign of trouble was."""
        self.strained_at = 0
        """When that was."""
        self._top = 0  # the window before the cuts that nothing has succeeded between
        self._ease_from = 1  # below it the window doubles a round
        self._cut_at = 0  # batches up to this number were under way when it was cut
        self._grown = 0  # successes of this round
        self._taken = True  # whether anything has succeeded since it was cut
        self._refusals = 0  # cuts in a row by a refusal with nothing taken between
        self._heard = ""  # who failed last and was heard
        self._least = False  # the window is one because no more is configured: that is remembered for a larger bound
        self._ended = 0  # requests that have ended
        self._again: dict[str, int] = {}  # retries that failed while others were taken -> `_ended` then

    @property
    def slowed(self) -> bool:
        """Whether the target gets less than is configured."""
        return self.window is not None and not self._least

    @property
    def untroubled(self) -> bool:
        """Whether it knows nothing that would be missed: the last it heard was a success."""
        return self._taken and not self.held_until

    def limit(self, bound: int) -> int:
        """How many requests may be under way, of the `bound` that is configured."""
        return bound if self.window is None else min(self.window, bound)

    def fail(
        self, failed: Failed, batch_no: int, newest: int, under_way: int, bound: int, policy: RetryPolicy,
        boot_ms: int, jitter: float, who: str = "", again: bool = False,
    ) -> None:  # fmt: skip
        """A request has failed, and not because of what was in it, as far as is known.

        `newest`: the last batch that was begun. `under_way`: requests, this one among them. `bound`: as configured.
        `who`: a timer of it, `again` if that has failed before.
        """
        self._ended += 1
        if failed.wants_pause:
            self.restart(newest, bound, failed.error, boot_ms)
        elif failed.suspect or failed.refused:
            if batch_no <= self._cut_at:
                self.note(failed.error, boot_ms)
            elif self._is_sign(who, again, bound):
                self.note(failed.error, boot_ms)
                if under_way == 1 and self._taken:
                    self._top, self._taken = self.limit(bound), False
                else:
                    self._cut(newest, under_way, bound)
                if failed.refused:
                    self._refuse(policy, boot_ms, jitter)

    def note(self, reason: str, boot_ms: int) -> None:
        """There was one more sign of trouble. Of a target that is down that is all there is to know here."""
        self.strained_at, self.reason = boot_ms, reason

    def restart(self, newest: int, bound: int, reason: str, boot_ms: int) -> None:
        """A pause begins or an outage has ended: what comes next comes one at a time. Batches up to `newest` say
        nothing new."""
        self._top = max(self._top, self.limit(bound)) if self.slowed else bound
        self._cut_at = max(self._cut_at, newest)
        self._taken = False
        self._refusals = 0
        self.note(reason, boot_ms)
        self._set(1, bound)

    def succeed(self, boot_ms: int, bound: int) -> None:
        """A request has been answered with success."""
        self._taken = True
        self._ended += 1
        self._refusals = 0
        if self.held_until <= boot_ms:
            self.held_until = 0
        window = self.window
        if window is None:
            return
        if self._least and bound > 1:
            self._least, self._ease_from = False, bound // 2
        self._grown += 1
        if window < self._ease_from:
            self._grown, window = 0, window + 1
        elif self._grown >= window:
            self._grown, window = 0, window + max(1, window // GROWS_BY)
        if window >= bound or boot_ms - self.strained_at >= CALM_MS:
            self.forget()
        else:
            self.window = window

    def hasten(self, by: int) -> None:
        """A pause of its own ends at this moment at the latest."""
        self.held_until = min(self.held_until, by)

    def forget(self) -> None:
        """It is another target, or whole again."""
        self.window = None
        self.held_until = 0
        self.reason = ""
        self._top = self._grown = self._refusals = 0
        self._taken = True
        self._heard = ""
        self._again.clear()

    def _is_sign(self, who: str, again: bool, bound: int) -> bool:
        """Whether this failure says something of the target that was not known."""
        if not self._taken:
            known, self._heard = bool(who) and who == self._heard, who
            return not known
        if again:
            self._again.pop(who, None)
            self._again[who] = self._ended
            size = self.limit(bound)
            while self._ended - self._again[first := next(iter(self._again))] >= max(FEW, size):
                del self._again[first]
            if len(self._again) < max(2, size // GROWS_BY):
                return False
        self._heard = who
        return True

    def _cut(self, newest: int, under_way: int, bound: int) -> None:
        before = self.limit(bound)
        self._top = before if self._taken else max(self._top, before)
        self._cut_at = newest
        self._taken = False
        self._again.clear()
        self._set((before if under_way <= FEW else min(before, under_way)) // 2, bound)

    def _refuse(self, policy: RetryPolicy, boot_ms: int, jitter: float) -> None:
        """The first of a row costs no pause: it may be that there was only a little too much."""
        if self._refusals:
            gap_ms = round(backoff_ms(policy, self._refusals) * jitter)
            self.held_until = boot_ms + max(1, min(gap_ms, policy.max_backoff_ms))
        self._refusals += 1

    def _set(self, window: int, bound: int) -> None:
        self._grown = 0
        self._ease_from = max(1, min(self._top, bound) // 2)
        self.window = max(1, window)
        self._least = bound <= 1
