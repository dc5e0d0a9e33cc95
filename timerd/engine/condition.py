"""The condition of a target, for whoever looks: its breaker, what it is given, what it is being spared.

Values made from what `Flow` and `Gate` know; nothing here decides anything.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from timerd.engine.breaker import Breaker
from timerd.engine.command import TargetTurned
from timerd.engine.pace import Pace

HOSTS_SHOWN: Final = 100  # by name; the others are counted


class Condition(NamedTuple):
    """Of one target. Times are boot ms; 0 = there is none."""

    breaker: str
    """closed | open | probing"""
    window: int
    """How many requests may be under way,"""
    bound: int
    """of so many that are configured."""
    held_until: int
    """Nothing is sent before."""
    next_probe_at: int
    reason: str
    """What the trouble was last; empty if there is none."""
    since: int = 0
    """When the trouble began."""
    host: str = ""

    @property
    def is_down(self) -> bool:
        """Whether it is taken to be."""
        return self.breaker != "closed"


class HostsCondition(NamedTuple):
    """Of the hosts of a callback type."""

    known: int
    open: int
    slowed: int
    held: int
    troubled: Sequence[Condition]
    """At most `HOSTS_SHOWN`, those longest in trouble first."""

    @property
    def is_down(self) -> bool:
        """Whether some host is taken to be."""
        return self.open > 0


class Course(NamedTuple):
    """What is told when it changes."""

    open: bool
    slowed: bool


def course_of(breaker: Breaker, pace: Pace) -> Course:
    """How it is now."""
    return Course(breaker.open, pace.slowed)


def turns(was: Course, now: Course, type: str, host: str, reason: str) -> list[TargetTurned]:
    """What has changed. The end of an outage is not told as the beginning of a slow-down, though it is one."""
    if now.open != was.open:
        return [TargetTurned(type, host, "breaker_opened" if now.open else "breaker_closed", reason)]
    if now.slowed != was.slowed:
        return [TargetTurned(type, host, "slow_down_began" if now.slowed else "slow_down_ended", reason)]
    return []


def condition_of(
    breaker: Breaker, pace: Pace, held_until: int, bound: int, boot_ms: int, since: int = 0, host: str = ""
) -> Condition:
    """How a target is at this moment."""
    held_until = max(held_until, pace.held_until)
    if breaker.open:
        probing = breaker.probe is not None
        word, window, probe_at = (
            "probing" if probing else "open",
            1,
            0 if probing else max(breaker.probe_at, held_until),
        )
    else:
        word, window, probe_at = "closed", pace.limit(bound), 0
    held_until = held_until if held_until > boot_ms else 0
    troubled = breaker.open or held_until or window < bound
    reason, since = (pace.reason, since) if troubled else ("", 0)
    return Condition(word, window, bound, held_until, probe_at, reason, since, host)
