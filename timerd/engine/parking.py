"""What is put back: due timers of one type in one shard that may not be tried now, by the key they wait for.

The dispatcher names the key (for a callback it is the host) and takes from under it when that is free again, so nobody
polls: a timer is looked at once to learn its key, and once more to send it, however long that is from now. Keys mean
nothing here. It is held in memory only: after a restart what was parked is simply due.

Nothing is searched for: a timer that leaves otherwise (moved, cancelled) stays as a stale entry, and stale entries are
swept when they outnumber the others. So a count may be too high, and a Take may bring less than it asked for.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from timerd.engine.timer import PARKED, Timer

SWEEP_FLOOR: Final = 1_024  # stale entries that are not worth a sweep


class Parking:
    """Timers in state PARKED by key, each key's in the order in which they came; any other state in here is stale."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Timer]] = {}
        self._changed: dict[str, None] = {}
        self._entries = 0
        self._stale = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[Timer]:
        """Those that are live, key by key."""
        for queue in self._queues.values():
            yield from (timer for timer in queue if timer.state == PARKED)

    def put(self, key: str, timers: list[Timer]) -> None:
        """Timers that are in no queue, their state being PARKED already."""
        self._queues.setdefault(key, deque()).extend(timers)
        self._entries += len(timers)
        self._changed[key] = None

    def count(self, wanted: Callable[[str], bool]) -> int:
        """How many entries lie under such keys. Linear in keys, not in timers."""
        return sum(len(queue) for key, queue in self._queues.items() if wanted(key))

    def discard(self) -> None:
        """Be told that one timer in here is no longer PARKED, or is about to be."""
        self._stale += 1

    def take(self, key: str, count: int) -> list[Timer]:
        """The longest waiting `count` under a key; the caller changes their state. Its count is told again."""
        self._changed[key] = None
        queue = self._queues.get(key)
        taken: list[Timer] = []
        while queue and len(taken) < count:
            timer = queue.popleft()
            self._entries -= 1
            if timer.state == PARKED:
                taken.append(timer)
            else:
                self._stale -= 1
        if not queue:
            self._queues.pop(key, None)
        return taken

    def remove_early(self, wall_ms: int) -> list[Timer]:
        """Take out what is not due yet: the wall clock has gone back."""
        early = [timer for timer in self if timer.fire_at > wall_ms]
        if early:
            self._keep(lambda timer: timer.state == PARKED and timer.fire_at <= wall_ms)
        return early

    def news(self) -> list[tuple[str, int]]:
        """(key, count) wherever it changed, or was taken from."""
        if self._stale > SWEEP_FLOOR and self._stale > self._entries // 2:
            self._keep(lambda timer: timer.state == PARKED)
        if not self._changed:
            return []
        news = [(key, len(self._queues.get(key, ()))) for key in self._changed]
        self._changed = {}
        return news

    def _keep(self, wanted: Callable[[Timer], bool]) -> None:
        for key, queue in list(self._queues.items()):
            kept = deque(timer for timer in queue if wanted(timer))
            if len(kept) < len(queue):
                self._changed[key] = None
                if kept:
                    self._queues[key] = kept
                else:
                    del self._queues[key]
        self._entries = sum(len(queue) for queue in self._queues.values())
        self._stale = 0
