"""What waits for one shard's next turn: bounded in bytes and in time, deliveries first, each kind first in, first out.

Arms and the like may come faster than they can be stored. What is accepted then only waits, and who asked has given up
before it is done, asks again, and waits behind it: so the wait is bounded as well as the memory. A delivery under way
does not queue behind them: what is due must not be late because much is being armed. Nothing that waits here has been
answered, so whoever asked can't tell the order.
"""

from collections import deque
from typing import Final

from timerd.engine.message import Message

MEMORY_MAX: Final = 64 << 20  # of all inboxes: a good half second of the smallest arms at full speed
SHARE_MIN: Final = 2 << 20  # of one, however many shards there are
TIMER_MEMORY: Final = 256  # of a timer that waits, beside its bytes in the log
WAIT_MS_MAX: Final = 2_000  # of what is next: longer than a disk hiccups, and shorter than callers have patience
TURN_BYTES_MAX: Final = 1 << 20  # a turn gathers this much, or one message of each kind


class Inbox:
    """Messages and their sizes in bytes of the log, as their senders put them. Times are boot ms."""

    def __init__(self, shards: int) -> None:
        """One of so many, which share what all of them may take."""
        self.share(shards)
        self._ahead: deque[tuple[Message, int]] = deque()
        self._messages: deque[tuple[Message, int, int, int]] = deque()  # (message, bytes, memory, since when it waits)
        self.bytes = 0
        """Of the log, that all of them will take."""
        self.memory = 0
        """About what those take that do not go ahead."""

    def share(self, shards: int) -> None:
        """There are so many now."""
        self.memory_max = max(SHARE_MIN, MEMORY_MAX // shards)

    def __bool__(self) -> bool:
        return bool(self._messages or self._ahead)

    def has_room(self, now_ms: int) -> bool:
        """Whether a caller's message may come in.

        Whatever its size: if one had to fit into what is left, small ones would always get in before large ones. So the
        last that comes in may lie beyond the bound.
        """
        return not self._messages or (self.memory < self.memory_max and not self._keeps_waiting(now_ms))

    def put(self, message: Message, size: int, timers: int, now_ms: int) -> None:
        """Add a message. Callers' messages ask `has_room` first; the service's own are few and always come in."""
        memory = size + TIMER_MEMORY * timers
        self._messages.append((message, size, memory, now_ms))
        self.bytes += size
        self.memory += memory

    def put_ahead(self, message: Message, size: int) -> None:
        """Add a step of a delivery: no more of them than deliveries may be under way."""
        self._ahead.append((message, size))
        self.bytes += size

    def gather(self, room: int = TURN_BYTES_MAX) -> list[Message]:
        """Take the messages of one turn: up to `room` bytes, or one of each kind."""
        gathered: list[Message] = []
        while self._ahead and (not gathered or self._ahead[0][1] <= room):
            message, size = self._ahead.popleft()
            gathered.append(message)
            room -= size
            self.bytes -= size
        ahead = len(gathered)
        while self._messages and (len(gathered) == ahead or self._messages[0][1] <= room):
            message, size, memory, _ = self._messages.popleft()
            gathered.append(message)
            room -= size
            self.bytes -= size
            self.memory -= memory
        return gathered

    def _keeps_waiting(self, now_ms: int) -> bool:
        return now_ms - self._messages[0][3] > WAIT_MS_MAX
