"""What a type's target may be given: timers in a batch, deliveries at once, timers a second.

The types are followed from outside: what somebody has put, and what a process that starts has. While a put is under
way, and for a moment after it, either form may be in force; a batch that was formed under the old one may still leave.

First attempts that are overdue by more than the grace have limits of their own: a rate, half of the deliveries, and no
on-time timer in their batches. How late one was when it was handed out shows only about at the target, so what is near
the grace is judged as neither. A turn that was overdue so far already when an answer re-armed its timer to it counts
from its fire time, for the process that did so; the grace it had then is known as well as any form of the type.

The rate is the contract's: in any span of `t` seconds at most `rate * t + burst` timers. Between the decision to send
and the sending a turn has to become durable, so a span is taken for that much longer.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from tests.sim.account import Violation
from tests.sim.clock import SimClock
from timerd.engine.timer import TimerType

LINGER_S: Final = 1.0
LINGER_STALLED_S: Final = 20.0
BURST_S: Final = 0.1
SLACK_S: Final = 0.15
HANDED_OUT_MS: Final = 1_000  # from the decision that one is missed to its sending, at most


class Limits:
    """Of all types."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: SimClock) -> None:
        self._loop = loop
        self._clock = clock
        self._forms: dict[str, list[tuple[TimerType, float]]] = {}  # with when it was replaced; for ever = it was not
        self._level: dict[str, tuple[float, float]] = {}  # timers that may pass, and when that was so
        self._missed_level: dict[str, tuple[float, float]] = {}
        self._missed: dict[str, set[tuple[str, int]]] = {}  # deliveries that catch up, by their first timers
        self._behind: dict[tuple[str, int], bool] = {}  # turns missed at their re-arm; whether that is for sure
        self.missed = 0
        """Timers of such deliveries."""
        self.turns = 0
        """Those of them that were missed at their re-arm."""

    def maybe(self, type: TimerType) -> None:
        """The type may be this from now on."""
        self._forms.setdefault(type.name, []).append((type, float("inf")))
        self._level.pop(type.name, None)
        self._missed_level.pop(type.name, None)

    def known(self, type: TimerType) -> None:
        """The type is this, and nothing else."""
        now = self._loop.time()
        old = [(form, min(until, now)) for form, until in self._forms.get(type.name, ()) if form != type]
        self._forms[type.name] = [*old[-4:], (type, float("inf"))]
        self._level.pop(type.name, None)
        self._missed_level.pop(type.name, None)

    def started(self) -> None:
        """A process has begun, and has granted nothing yet."""
        self._level.clear()
        self._missed_level.clear()
        self._missed.clear()
        self._behind.clear()

    def rearmed(self, name: str, member: tuple[str, int], late_ms: int, *, sure: bool) -> None:
        """An answer re-arms a timer, to a time that was so long ago by then."""
        forms = self._in_force(name, LINGER_S if sure else LINGER_STALLED_S)
        if late_ms > min(form.grace_ms for form in forms):
            self._behind[member] = sure and late_ms > max(form.grace_ms for form in forms)

    def behind(self, member: tuple[str, int]) -> bool:
        """Whether it may be missed however lately it was accepted."""
        return member in self._behind

    def shared(self, name: str, open_posts: int, *, stalled: bool) -> None:
        """A callback goes to a host, which has so many under way, this one included."""
        since = self._loop.time() - (LINGER_STALLED_S if stalled else LINGER_S)
        share = max(max(1, form.max_in_flight // 4) for form, until in self._forms[name] if until >= since)
        if open_posts > share:
            raise Violation(f"{open_posts} callbacks of {name} to one host, whose share is {share}")

    def posted(self, name: str, timers: int, open_posts: int, *, stalled: bool) -> None:
        """A delivery starts."""
        since = self._loop.time() - (LINGER_STALLED_S if stalled else LINGER_S)
        forms = [form for form, until in self._forms[name] if until >= since]
        if timers > max(form.batch_size for form in forms):
            raise Violation(f"a batch of {timers} of {name}, which is {forms}")
        if open_posts > max(form.max_in_flight for form in forms):
            raise Violation(f"{open_posts} deliveries of {name} at once, which is {forms}")
        self._spend(self._level, name, [form.max_per_second for form in forms], timers, stalled)

    def caught_up(self, name: str, late: Mapping[tuple[str, int], tuple[int, int]], *, stalled: bool) -> None:
        """A delivery of first attempts starts, so long (ms) after they were due and after their fire times."""
        forms = self._in_force(name, LINGER_STALLED_S if stalled else LINGER_S)
        graces = [form.grace_ms for form in forms]
        may_spare = any(form.misfire.policy == "drop" for form in forms)
        # By how much each is overdue, at least and at most.
        least = [fired if self._behind.get(m) and not may_spare else due for m, (due, fired) in late.items()]
        most = [fired if m in self._behind else due for m, (due, fired) in late.items()]
        if max(least) <= max(graces) + HANDED_OUT_MS:
            return
        if min(most) <= min(graces) and not stalled:
            raise Violation(f"on-time and missed timers of {name} share a batch: {late}, the graces were {graces}")
        if min(least) <= max(graces) + HANDED_OUT_MS:
            return
        self.missed += len(late)
        self.turns += sum(self._behind.get(member, False) for member in late)
        under_way = self._missed.setdefault(name, set())
        under_way.add(next(iter(late)))
        most = max(max(1, form.max_in_flight // 2) for form in forms)
        if len(under_way) > most and not stalled:
            raise Violation(f"{len(under_way)} deliveries of {name} catch up at once, and {most} may")
        rates = [form.misfire.max_per_second for form in forms]
        self._spend(self._missed_level, name, rates, len(late), stalled)

    def answered(self, name: str, first: tuple[str, int]) -> None:
        """A delivery has ended."""
        self._missed.get(name, set()).discard(first)

    def _in_force(self, name: str, linger_s: float) -> list[TimerType]:
        since = self._loop.time() - linger_s
        return [form for form, until in self._forms[name] if until >= since]

    def _spend(
        self,
        levels: dict[str, tuple[float, float]],
        name: str,
        rates: list[float | None],
        timers: int,
        stalled: bool,
    ) -> None:
        known = [rate for rate in rates if rate is not None]
        if stalled or len(known) < len(rates):
            levels.pop(name, None)
            return
        rate = max(known)
        most = max(1, int(rate * BURST_S)) + rate * SLACK_S + 1
        now_s = self._clock.lived_s
        level, at = levels.get(name, (most, now_s))
        level = min(most, level + (now_s - at) * rate) - timers
        if level < 0:
            missed = "missed " if levels is self._missed_level else ""
            raise Violation(f"{-level:.1f} {missed}timers of {name} more than {rate} a second")
        levels[name] = level, now_s
