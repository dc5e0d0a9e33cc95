"""What an operator should read about deliveries that fail, without reading it a thousand times.

One line a type when deliveries begin to fail, at most one every `QUIET_MS` while they go on failing, one when they are
taken again; and likewise for timers that were given up, or dropped as missed. The first line comes at once. What a
target comes to (its breaker opens or closes, it is slowed down or no more) has a line each time, at most `TURNS_MAX` of
a kind and type in `QUIET_MS`.

Whatever is counted gets into a line: with the next event, when the quiet is over, or at the end, whichever is first.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from timerd.engine.command import TargetTurned

QUIET_MS: Final = 30_000
TURNS_MAX: Final = 10  # of a type with many hosts, all of which go down at once

log = structlog.get_logger()


class Quiet:
    """Lets a line through (or `lines` of them), and then only counts for a while."""

    def __init__(self, lines: int = 1) -> None:
        self.until = -1
        """When the quiet is over."""
        self.held_back = 0
        self._lines = lines
        self._left = 0
        self._line: Callable[[int], None] = lambda counted: None

    def count(self, boot_ms: int, line: Callable[[int], None], by: int = 1) -> None:
        """Something happened. `line` writes that, given how much of it there was since the last line."""
        self.held_back += by
        self._line = line
        self.look(boot_ms)

    def look(self, boot_ms: int) -> None:
        """Write the line if there is something to say and it is time for it."""
        if not self.held_back:
            return
        if boot_ms >= self.until:
            self.until, self._left = boot_ms + QUIET_MS, self._lines
        if self._left:
            self._left -= 1
            self.tell()

    def tell(self) -> None:
        """Write what was held back, whatever the time."""
        if counted := self.take():
            self._line(counted)

    def take(self) -> int:
        """What was held back, for another line to say it, or for none."""
        counted, self.held_back = self.held_back, 0
        return counted


class Troubles:
    """Of all types of a node."""

    def __init__(self) -> None:
        self._failing: dict[str, Quiet] = {}
        self._resumed: dict[str, Quiet] = {}
        self._dead: dict[str, Quiet] = {}
        self._dropped: dict[str, Quiet] = {}
        self._turned: dict[tuple[str, str], Quiet] = {}
        self._bad: set[str] = set()  # types whose last batch was not taken
        self._holding: dict[Quiet, None] = {}  # those that hold something back, in order
        self._look_at = 0  # no quiet of theirs is over before

    def failed(self, boot_ms: int, type: str, url: str, reason: str, timers: int) -> None:
        """A batch was not taken."""
        self._bad.add(type)
        if type in self._resumed:
            self._resumed[type].take()
        line = partial(_say_failed, type, url, reason, timers)
        self._count(self._failing.setdefault(type, Quiet()), boot_ms, line)

    def taken(self, boot_ms: int, type: str) -> None:
        """A batch was taken."""
        if type in self._bad:
            self._bad.discard(type)
            line = partial(_say_resumed, type, self._failing[type])
            self._count(self._resumed.setdefault(type, Quiet()), boot_ms, line)

    def turned(self, boot_ms: int, what: TargetTurned) -> None:
        """A target's condition has changed."""
        quiet = self._turned.setdefault((what.type, what.what), Quiet(TURNS_MAX))
        self._count(quiet, boot_ms, partial(_say_turned, what))

    def buried(self, boot_ms: int, type: str, timers: int) -> None:
        """Timers were given up."""
        self._count(self._dead.setdefault(type, Quiet()), boot_ms, partial(_say_buried, type), timers)

    def dropped(self, boot_ms: int, type: str, timers: int) -> None:
        """Timers were dropped, as missed."""
        self._count(self._dropped.setdefault(type, Quiet()), boot_ms, partial(_say_dropped, type), timers)

    def look(self, boot_ms: int) -> None:
        """Say what was held back and whose quiet is over. Called now and then, also when nothing happens."""
        if not self._holding or boot_ms < self._look_at:
            return
        for quiet in self._holding:
            if boot_ms >= quiet.until:
                quiet.look(boot_ms)
        self._holding = {quiet: None for quiet in self._holding if quiet.held_back}
        self._look_at = min((quiet.until for quiet in self._holding), default=0)

    def end(self) -> None:
        """Nothing comes any more: say all that was held back."""
        for quiet in self._holding:
            quiet.tell()
        self._holding = {}

    def _count(self, quiet: Quiet, boot_ms: int, line: Callable[[int], None], by: int = 1) -> None:
        quiet.count(boot_ms, line, by)
        if quiet.held_back:
            self._look_at = min(self._look_at, quiet.until) if self._holding else quiet.until
            self._holding[quiet] = None


def _say_failed(type: str, url: str, reason: str, timers: int, batches: int) -> None:
    log.warning("delivery_failed", type=type, url=url, reason=reason, timers=timers, batches=batches)


def _say_resumed(type: str, failing: Quiet, _: int) -> None:
    """What failed and is in no line yet is said here: a line about it would come too late."""
    log.info("delivery_resumed", type=type, **_unnoted(failing.take()))


def _say_turned(what: TargetTurned, counted: int) -> None:
    say = log.warning if what.what in ("breaker_opened", "slow_down_began") else log.info
    fields = {"host": what.host} if what.host else {}
    say(what.what, type=what.type, reason=what.reason, **fields, **_unnoted(counted - 1))


def _say_buried(type: str, timers: int) -> None:
    log.warning("timers_buried", type=type, timers=timers, see=f"/v1/dead-letters?type={type}")


def _say_dropped(type: str, timers: int) -> None:
    log.warning("timers_dropped", type=type, reason="misfire", timers=timers)


def _unnoted(count: int) -> dict[str, str]:
    return {"unnoted": str(count)} if count else {}
