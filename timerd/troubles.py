"""What an operator should read about deliveries that fail, without reading it a thousand times.

One line a type when deliveries begin to fail, at most one every `QUIET_MS` while they go on failing, one when they are
taken again; and likewise for timers that were given up. The first line comes at once.
"""

from typing import Final

import structlog

QUIET_MS: Final = 30_000

log = structlog.get_logger()


class Quiet:
    """Lets a line through, and then only counts for a while."""

    def __init__(self) -> None:
        self._until = -1
        self._held_back = 0

    def count(self, boot_ms: int, by: int = 1) -> int | None:
        """How many there were since the last line, if it is time for one."""
        self._held_back += by
        if boot_ms < self._until:
            return None
        self._until = boot_ms + QUIET_MS
        counted, self._held_back = self._held_back, 0
        return counted


class Troubles:
    """Of all types of a node."""

    def __init__(self) -> None:
        self._failing: dict[str, Quiet] = {}
        self._resumed: dict[str, Quiet] = {}
        self._dead: dict[str, Quiet] = {}

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

    def buried(self, boot_ms: int, type: str, timers: int) -> None:
        """Timers were given up."""
        if (counted := self._dead.setdefault(type, Quiet()).count(boot_ms, timers)) is not None:
            log.warning("timers_buried", type=type, timers=counted, see=f"/v1/dead-letters?type={type}")
