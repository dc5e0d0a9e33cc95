"""Catch-up: the lane of what was missed, beside on-time traffic, of one type over all shards.

A missed timer is a first attempt that is overdue by more than the type's grace. Such timers leave in batches of their
own, under a rate of their own, and hold at most half of the type's requests: so on-time timers always find room,
however many are catching up. On-time ones and retries go first, but of `TURNS` choices one goes to catch-up, lest it
starve.

A callback's timer is parked under its host's name; a missed one under another key, so that on-time ones of the same
host are not behind it.
"""

from typing import Final

from timerd.engine.rate import Rate, rate_of
from timerd.engine.timer import TimerType

MISSED: Final = -1  # the limit of the lane (type, limit) that is caught up
TURNS: Final = 8
_MARK: Final = "missed "  # no host's name has a space


def key_of_missed(host: str) -> str:
    """Under which key what is missed of a host is parked."""
    return _MARK + host


def is_missed(key: str) -> bool:
    """Whether it is such a key."""
    return key.startswith(_MARK)


def host_of(key: str) -> str:
    """The host's name in either kind of key."""
    return key.removeprefix(_MARK)


class CatchUp:
    """What a type allows to its missed timers, and whose turn it is. Which of them are ready, its caller knows."""

    def __init__(self) -> None:
        self.rate: Rate | None = None
        self.passed_over = 0
        """Choices made for others since catch-up had one, while it wanted one."""

    def set_type(self, type: TimerType | None, boot_ms: int) -> None:
        """Know the type as it is now."""
        self.rate = rate_of(type.misfire.max_per_second if type else None, self.rate, boot_ms)

    def room(self, in_flight: int, slots: int) -> int:
        """How many more requests of it may be under way, where the type may have `slots` of all kinds."""
        return max(0, max(1, slots // 2) - in_flight)

    @property
    def its_turn(self) -> bool:
        """Whether it goes before on-time timers now."""
        return self.passed_over >= TURNS - 1

    def note_choice(self, missed: bool, wanted: bool) -> None:
        """A choice was made, of what was missed or not; catch-up `wanted` it too."""
        self.passed_over = self.passed_over + 1 if wanted and not missed else 0
