"""What an operator should read about deliveries that fail, without reading it a thousand times.

One line a type when deliveries begin to fail, at most one every `QUIET_MS` while they go on failing, one when they are
taken again; and likewise for timers that were given up. The first line comes at once. What a target comes to (its
breaker opens or closes, it is slowed down or no more) has a line each time, at most `TURNS_MAX` of a kind and type in
`QUIET_MS`.
"""

from typing import Final

import structlog

from timerd.engine.command import TargetTurned

QUIET_MS: Final = 30_000
TURNS_MAX: Final = 10  # of a type with many hosts, all of which go down at once

log = structlog.get_logger()


class Quiet:
    """Lets a line through (or `lines` of them), and then only counts for a while."""

    def __init__(self, lines: int = 1) -> None:
        self._lines = lines
        self._left = 0
        self._until = -1
        self._held_back = 0

    def count(self, boot_ms: int, by: int = 1) -> int | None:
        """How many there were since the last line, if it is time for one."""
        self._held_back += by
        if boot_ms >= self._until:
            self._until, self._left = boot_ms + QUIET_MS, self._lines
        if not self._left:
            return None
        self._left -= 1
        counted, self._held_back = self._held_back, 0
        return counted


class Troubles:
    """Of all types of a node."""

    def __init__(self) -> None:
        self._failing: dict[str, Quiet] = {}
        self._resumed: dict[str, Quiet] = {}
        self._dead: dict[str, Quiet] = {}
        self._turned: dict[tuple[str, str], Quiet] = {}

    def failed(self, boot_ms: int, type: str, url: str, reason: str, timers: int) -> None:
        """A batch was not taken."""
        if (batches := self._failing.setdefault(type, Quiet()).count(boot_ms)) is not None:
            log.warning("delivery_failed", type=type, url=url, reason=reason, timers=timers, batches=batches)

    def taken(self, boot_ms: int, type: str) -> None:
        """A batch was taken."""
        if type in self._failing:
            del self._failing[type]
            if self._resumed.setdefault(type, Quiet()).count(boot_ms) is not None:
                log.info("delivery_resumed", type=type)

    def turned(self, boot_ms: int, what: TargetTurned) -> None:
        """A target's condition has changed."""
        quiet = self._turned.setdefault((what.type, what.what), Quiet(TURNS_MAX))
        if (counted := quiet.count(boot_ms)) is None:
            return
        say = log.warning if what.what in ("breaker_opened", "slow_down_began") else log.info
        fields = {"host": what.host} if what.host else {}
        if counted > 1:
            fields["unnoted"] = str(counted - 1)
        say(what.what, type=what.type, reason=what.reason, **fields)

    def buried(self, boot_ms: int, type: str, timers: int) -> None:
        """Timers were given up."""
        if (counted := self._dead.setdefault(type, Quiet()).count(boot_ms, timers)) is not None:
            log.warning("timers_buried", type=type, timers=counted, see=f"/v1/dead-letters?type={type}")
