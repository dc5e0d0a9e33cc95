"""One host that callbacks of one type go to: what is under way to it, what is parked for it, and how it is.

A host is a scheme, a name and a port, as the requests write them. It has a breaker, a pace and a pause (Retry-After) of
its own, and no more of the type's requests at once than its share.
"""

from typing import Final

from timerd.engine.breaker import Breaker
from timerd.engine.catchup import is_missed
from timerd.engine.choice import Lane
from timerd.engine.condition import Condition, condition_of
from timerd.engine.pace import CALM_MS, Pace

SHARES: Final = 4  # one host gets at most a quarter of a type's requests under way


def share_of(max_in_flight: int) -> int:
    """How many requests of a type may be under way to one host."""
    return max(1, max_in_flight // SHARES)


class Host:
    """See the module. Times are boot ms."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parked = Lane(0)
        """What the shards have parked for it."""
        self.missed = Lane(0)
        """The same, of what catches up."""
        self.in_flight = 0
        """Requests under way, those that have been asked for among them."""
        self.answers = False
        """Whether anything has come back from it yet. Until then it gets one request at a time: hosts that hang are as
        many as whoever arms cares to name, and each would hold a whole share until its time is up."""
        self.breaker = Breaker()
        self.pace = Pace()
        self.troubled_since = 0
        """Since when it is down, slowed or held; 0 = it is none of these, as far as is known."""
        self.held_until = 0
        self.waits_until = 0
        """The moment for which it stands in the gate's queue of moments."""

    def room(self, share: int) -> int:
        """How many more may be sent, whenever it may be tried at all."""
        if self.breaker.open:
            return 0 if self.breaker.probe is not None else 1
        return max(0, (self.pace.limit(share) if self.answers else 1) - self.in_flight)

    @property
    def free_at(self) -> int:
        """From when it may be tried."""
        return max(self.held_until, self.pace.held_until, self.breaker.probe_at if self.breaker.open else 0)

    @property
    def untroubled(self) -> bool:
        """Whether nothing is known of it that would be missed. (One that is slowed and has taken something since is
        given one request at a time when it is forgotten, which is no more.)"""
        return self.breaker.untroubled and self.pace.untroubled and not self.held_until

    def calm(self, boot_ms: int) -> bool:
        """Whether nothing is under way or parked, and the last sign of trouble is long past."""
        return self.idle and boot_ms - max(self.pace.strained_at, self.pace.held_until, self.held_until) >= CALM_MS

    def forget(self) -> None:
        """Begin anew, after long. That it is down stays known: a probe costs no more than a first request."""
        if not self.breaker.open:
            self.pace = Pace()
            self.held_until = self.troubled_since = 0

    def condition(self, share: int, boot_ms: int) -> Condition:
        """How it is at this moment."""
        return condition_of(self.breaker, self.pace, self.held_until, share, boot_ms, self.troubled_since, self.name)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way to it, and nothing waits for it."""
        lanes = (self.parked, self.missed)
        return not self.in_flight and not any(lane.reported or lane.asked for lane in lanes)

    def lane(self, key: str) -> Lane:
        """What is parked under this key of it."""
        return self.missed if is_missed(key) else self.parked
