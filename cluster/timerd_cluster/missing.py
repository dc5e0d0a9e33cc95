"""Missing: pieces of bodies that the servers say are not there, and since when. Knows no server and no clock.

What is acknowledged is with most of the replicas; but one that was the leader, and does not know yet that it is no
more, says that it is not there. So it takes time until that is believed, and that time goes on from one read to the
next: who asks may have less patience than it takes.
"""

from typing import Final, NamedTuple

MISSING_S: Final = 15.0  # a leader that is cut off from the others knows it after 10 s
APART_S: Final = 5.0  # two that say so farther apart may each be a leader of that kind: then it begins anew

Key = tuple[int, int]
"""Segment, and the end of the extent in it."""


class Seen(NamedTuple):
    """The first and the last time that one was said to be missing."""

    first_s: float
    last_s: float

    @property
    def believed(self) -> bool:
        return self.last_s - self.first_s >= MISSING_S


class Missing:
    """Of one stream."""

    def __init__(self) -> None:
        self._seen: dict[Key, Seen] = {}

    def is_new(self, key: Key) -> bool:
        """Whether it is not known to be missing."""
        return key not in self._seen

    def said(self, key: Key, now_s: float) -> bool:
        """It has just been said to be missing. Whether that is to be believed by now."""
        seen = self._seen.get(key)
        if seen is None or (not seen.believed and now_s - seen.last_s > APART_S):
            seen = Seen(now_s, now_s)
        self._seen[key] = seen = Seen(seen.first_s, now_s)
        return seen.believed

    def found(self, key: Key) -> None:
        """It is there."""
        self._seen.pop(key, None)

    def drop(self, segment: int) -> None:
        """Nothing of a segment is asked for any more."""
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != segment}
