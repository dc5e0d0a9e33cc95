"""Turns: whose batch begins next, when several types have something that may leave.

Types take turns by weight, one batch a turn, so that among those that always have something to do the work that
begins is shared by weight, within one batch each, and one that rarely has something to do goes first when it has. It is
stride scheduling (Waldspurger and Weihl, 1995): each turn moves a name on by what it cost over its weight, and the one
that is least far goes next. Were all turns alike, a batch of one timer would be paid for like one of a thousand. Pure;
it knows names, weights and costs, no flows.

Invariants
1. A name that joins is as far as the one that went last: waiting saves nothing up, and costs nothing.
2. Of two that are here all the time, cost / weight differ by no more than one turn of each.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

STRIDE: Final = 1 << 32


class Turns:
    """The names that may have something to do."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str]] = []  # (how far, when it came, name)
        self._far: dict[str, int] = {}  # those that are in it
        self._now = 0
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def names(self) -> Iterable[str]:
        """Those that are here."""
        return self._far

    def join(self, name: str) -> None:
        """It may have something to do. Nothing changes if it is here already."""
        if name not in self._far:
            self._put(name, self._now)

    def next(self) -> str:
        """Whose turn it is. It has left then: `again` if it has used its turn, and may have more to do."""
        self._now, _, name = heappop(self._heap)
        del self._far[name]
        return name

    def again(self, name: str, weight: int, cost: int) -> None:
        """The one whose turn it was has used it."""
        self._put(name, self._now + STRIDE * cost // max(1, weight))

    def _put(self, name: str, far: int) -> None:
        self._count += 1
        self._far[name] = far
        heappush(self._heap, (far, self._count, name))
