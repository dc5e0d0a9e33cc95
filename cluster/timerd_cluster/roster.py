"""Who is there, by what has been heard: a plain value, told everything and asked.

A member is there while news of it keep coming: not by what its clock or the servers' clocks say, but by how long ago,
on this machine's boot clock, a heartbeat was heard that had not been heard before. So a bucket that is read late, or
again, keeps nobody alive. Time counts only while something could be heard: after a silence of the servers, or of this
process, nobody is given up before it has had the usual time again. That somebody is gone is a suspicion and no more:
what it may still do, its leases decide.
"""

from typing import Final

from timerd.ports import Member

BEAT_MS: Final = 1_000
DEAD_MS: Final = 4_000  # four beats: one that is late, or lost in an election of the bucket's own, is no death
DEAF_PART: Final = 2  # of DEAD_MS without hearing anything is a silence


class News:
    """What is known of one name."""

    def __init__(self, member: Member | None, revision: int, at_ms: int) -> None:
        self.member = member
        """None: it has left."""
        self.revision = revision
        self.at_ms = at_ms
        """When it was heard, moved on by silences."""
        self.shown_ms = at_ms
        """When it was to be read last, news or not."""
        self.sounded_ms = at_ms
        """When somebody was heard to put it."""
        self.fresh = False
        """More than once: it was alive while this roster was."""


class Roster:
    """All members that one process knows of, itself among them."""

    def __init__(self, now_ms: int, dead_ms: int = DEAD_MS) -> None:
        self._dead_ms = dead_ms
        self._began_ms = now_ms
        self._listened_ms = now_ms
        self._known: dict[str, News] = {}

    def listened(self, now_ms: int) -> None:
        """What there is to hear has been read just now. To be said before what was `heard`."""
        silent_ms = now_ms - self._listened_ms
        if silent_ms > self._dead_ms // DEAF_PART:
            for news in self._known.values():
                if self._listened_ms - news.at_ms < self._dead_ms:
                    news.at_ms = now_ms
        self._listened_ms = now_ms

    def heard(self, now_ms: int, name: str, member: Member | None, revision: int) -> None:
        """A heartbeat of a name, or (None) that it goes. One whose revision is not newer than before is no news."""
        known = self._known.get(name)
        if known is None:
            self._known[name] = News(member, revision, now_ms)
            return
        known.shown_ms = now_ms
        if revision > known.revision:
            known.member, known.revision, known.at_ms, known.fresh = member, revision, now_ms, True

    def sounded(self, now_ms: int, name: str) -> None:
        """A heartbeat was heard on its way to the bucket: nobody is kept alive by that, but it tells sooner."""
        if (known := self._known.get(name)) is not None:
            known.sounded_ms = now_ms

    def silent(self, since_ms: int) -> list[Member]:
        """Those of whom neither has been heard after that moment, by name."""
        return [
            member
            for member in self.there()
            if max(self._known[member.name].at_ms, self._known[member.name].sounded_ms) < since_ms
        ]

    def there(self) -> list[Member]:
        """The members that were there when it last listened, by name."""
        return [
            news.member
            for _, news in sorted(self._known.items())
            if news.member is not None and self._listened_ms - news.at_ms < self._dead_ms
        ]

    def seen_ms(self, name: str) -> int | None:
        """When a name was heard last."""
        news = self._known.get(name)
        return None if news is None or news.member is None else news.at_ms

    def old(self, than_ms: int) -> list[tuple[str, int]]:
        """Names, with their revisions, of which there were no news for so long, and which are still to be read."""
        return [
            (name, news.revision)
            for name, news in self._known.items()
            if news.shown_ms == self._listened_ms and self._listened_ms - news.at_ms >= than_ms
        ]

    def forget(self, than_ms: int) -> None:
        """Know nothing more of names that were not to be read for so long: by then no replica shows them either."""
        for name, news in list(self._known.items()):
            if self._listened_ms - news.shown_ms >= than_ms:
                del self._known[name]

    def begin_anew(self) -> None:
        """Revisions count from the beginning again."""
        for news in self._known.values():
            news.revision = 0

    def is_settled(self, me: str) -> bool:
        """Whether whoever died before it began is no longer taken for alive: none is left that was heard but once."""
        return self._listened_ms - self._began_ms >= self._dead_ms or all(
            news.fresh or news.member is None or name == me for name, news in self._known.items()
        )
