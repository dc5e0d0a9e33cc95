"""Room for payloads on their way: how much of what lies apart is in memory for deliveries, and whose turn it is to
fetch some.

Batches fetch their payloads one at a time, types taking turns: the log and the loop go on between two chunks of one,
where they would wait behind chunks of all. What has been fetched stays until its delivery has ended. A batch that finds
no room waits, in its slot; a type that has nothing in memory always gets its turn, so that one whose target is slow
takes none from the others.

Invariants
1. One batch is fetching at a time.
2. A type has at most its share in memory, or one batch; all together at most the room, and one batch a type.
"""

import asyncio
from collections import Counter, deque
from typing import Final

ROOM_BYTES: Final = 64 << 20
SHARES: Final = 2  # one type gets half of it


class Room:
    """Of one node."""

    def __init__(self, bytes_max: int = ROOM_BYTES) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        """In memory, or about to be."""
        self._of: Counter[str] = Counter()
        self._fetching = False
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}  # in the order of their turns

    async def enter(self, type: str, size: int) -> None:
        """Return when so many bytes may be fetched. Call `fetched`, and in the end `leave`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(type, deque()).append((size, future))
        self._admit()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.fetched()
                self.leave(type, size)
            raise

    def fetched(self) -> None:
        """Whoever was let in last has what it wanted; the next may fetch."""
        self._fetching = False
        self._admit()

    def leave(self, type: str, size: int) -> None:
        """These bytes are in memory no more."""
        self.bytes -= size
        self._of[type] -= size
        if not self._of[type]:
            del self._of[type]
        self._admit()

    def _admit(self) -> None:
        if self._fetching:
            return
        for type, queue in list(self._waiting.items()):
            while queue and queue[0][1].done():
                queue.popleft()  # nobody waits for it any more
            if queue and self._fits(type, queue[0][0]):
                size, future = queue.popleft()
                del self._waiting[type]
                if queue:
                    self._waiting[type] = queue  # at the end: the others come first
                self.bytes += size
                self._of[type] += size
                self._fetching = True
                future.set_result(None)
                return
            if not queue:
                del self._waiting[type]

    def _fits(self, type: str, size: int) -> bool:
        if not self._of[type]:
            return True
        return self.bytes + size <= self._bytes_max and self._of[type] + size <= self._bytes_max // SHARES
