"""What waits for one shard's next turn: first in, first out, and bounded."""

from collections import deque
from typing import Final

from timerd.engine.message import Message

INBOX_BYTES_MAX: Final = 32 << 20  # a second or two of arms at full speed; beyond it callers are told to come back
TURN_BYTES_MAX: Final = 1 << 20  # a turn gathers this much, or one message


class Inbox:
    """Messages and their sizes in bytes, as their senders put them."""

    def __init__(self) -> None:
        self._messages: deque[tuple[Message, int]] = deque()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def has_room(self, size: int) -> bool:
        """Whether a caller's message of `size` may come in. One message always may, if nothing waits."""
        return not self._messages or self.bytes + size <= INBOX_BYTES_MAX

    def put(self, message: Message, size: int) -> None:
        """Add a message. Callers' messages ask `has_room` first; the service's own are few and always come in."""
        self._messages.append((message, size))
        self.bytes += size

    def gather(self, room: int = TURN_BYTES_MAX) -> list[Message]:
        """Take the messages of one turn: up to `room` bytes, or one."""
        gathered: list[Message] = []
        while self._messages and (not gathered or self._messages[0][1] <= room):
            message, size = self._messages.popleft()
            gathered.append(message)
            room -= size
            self.bytes -= size
        return gathered
