"""Who is there, by what has been heard: a plain value, told everything and asked.

A member is there while news of it keep coming: not by what its clock or the servers' clocks say, but by how long ago,
on this machine's boot clock, a heartbeat was heard that had not been heard before. So a bucket that is read late, or
again, keeps nobody alive. That somebody is gone is a suspicion and no more: what it may still do, its leases decide.
"""

from typing import Final

from timerd.ports import Member

BEAT_MS: Final = 1_000
DEAD_MS: Final = 4_000  # four beats: one that is late, or lost in an election of the bucket's own, is no death


class Roster:
    """All members that one process knows of, itself among them."""

    def __init__(self, now_ms: int, dead_ms: int = DEAD_MS) -> None:
        self._dead_ms = dead_ms
        self._began_ms = now_ms
        self._known: dict[str, tuple[Member | None, int, int]] = {}  # by name: None has left; revision; when heard

    def heard(self, now_ms: int, name: str, member: Member | None, revision: int) -> None:
        """A heartbeat of a name, or (None) that it goes. One whose revision is not newer than before is no news."""
        known = self._known.get(name)
        if known is None or revision > known[1]:
            self._known[name] = (member, revision, now_ms)

    def there(self, now_ms: int) -> list[Member]:
        """The members that are there, by name."""
        return [
            member
            for _, (member, _, at_ms) in sorted(self._known.items())
            if member is not None and now_ms - at_ms < self._dead_ms
        ]

    def is_settled(self, now_ms: int) -> bool:
        """Whether it has listened for so long that whoever died before it began is no longer taken for alive."""
        return now_ms - self._began_ms >= self._dead_ms
