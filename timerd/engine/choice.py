"""What the shards have ready of one lane, and how a batch of it is asked of them.

Counts alone, by what each shard said last: no timers, no targets, no clock. Whether anything may leave, and of which
lane, is for `Flow` and `Gate` to say.

Invariant: what takes under way may still get is never asked for again.
"""

from typing import NamedTuple

from timerd.engine.effect import Ready


class Choice(NamedTuple):
    """A batch that may leave now."""

    limit: int
    whole: int
    """The largest batch that its members may travel in."""
    takes: list[tuple[int, int]]
    """(shard, how many)"""
    key: str = ""
    """Not empty: of what is parked under it."""


class Lane:
    """What the shards have ready of one lane, by what each said last."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reported: dict[int, Ready] = {}
        self.asked: dict[int, int] = {}
        """By shard: what Takes under way may still take of `reported`."""

    def free(self, shard: int) -> int:
        """How many more this shard can be asked for.

        A Ready that was made before the shard saw a Take still counts what the Take is about to get, so takes under way
        are subtracted from every Ready, until their Taken arrives.
        """
        return max(0, self.reported[shard].count - self.asked.get(shard, 0))

    def total(self) -> int:
        """How many can be asked for in all shards."""
        return sum([self.free(shard) for shard in self.reported])

    def urgent(self) -> bool:
        """Whether somewhere one is ready that waits for no batch."""
        return any(ready.urgent and self.free(shard) for shard, ready in self.reported.items())

    def since(self) -> int | None:
        """The longest wait, where it is known: a shard with a Take under way will say anew."""
        return min(
            (ready.since for shard, ready in self.reported.items() if ready.count and not self.asked.get(shard)),
            default=None,
        )

    def last_try(self) -> int:
        """Boot ms of the longest waiting retry's last attempt."""
        return min((ready.since for shard, ready in self.reported.items() if self.free(shard)), default=0)

    def split(self, count: int) -> list[tuple[int, int]]:
        """Which shards give how many of `count`: urgent ones first, then those that have waited longest."""
        takes = []
        for shard, _ in sorted(self.reported.items(), key=lambda item: (not item[1].urgent, item[1].since, item[0])):
            part = min(count, self.free(shard))
            if part:
                takes.append((shard, part))
                count -= part
        return takes

    def forget(self, shard: int) -> list[Ready]:
        """Take out what the shard has said; its takes under way stay."""
        said = self.reported.pop(shard, None)
        return [] if said is None else [said]

    def tidy(self, shard: int) -> None:
        """Forget what says nothing of this shard."""
        if not self.asked.get(shard):
            self.asked.pop(shard, None)
            if shard in self.reported and not self.reported[shard].count:
                del self.reported[shard]
