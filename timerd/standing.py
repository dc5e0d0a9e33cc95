"""Standing still: which shards of a cluster wait for their log, and what callers are told then.

A shard is full because more is asked than can be stored, or because nothing is: its append is under way and the servers
do not answer. The first is the callers' to mend and the second is not, so they must not look alike.
"""

from collections.abc import Iterable

from timerd.engine.message import Refused
from timerd.group import STILL_MS
from timerd.ports import Clock
from timerd.runners import Runners


class Standing:
    """Of one node."""

    def __init__(self, runners: Runners, clock: Clock) -> None:
        self._runners = runners
        self._clock = clock

    def append_age_ms(self) -> int:
        """How long the oldest append has been under way; 0: none is."""
        now_ms = self._clock.now().boot_ms
        begun = [since for group in self._runners.groups if (since := group.runner.appending_since) is not None]
        return now_ms - min(begun, default=now_ms)

    def still(self, shards: Iterable[int]) -> list[int]:
        """Those of these whose append has been under way for longer than `STILL_MS`. None of a data directory: a disk
        that is slow is slow for all."""
        runners, now_ms = self._runners, self._clock.now().boot_ms
        if runners.logs.sole is not None:
            return []
        found = []
        for shard in shards:
            if shard in runners.shards:
                since = runners.group_of(shard).runner.appending_since
                if since is not None and now_ms - since > STILL_MS:
                    found.append(shard)
        return found

    def silent(self, shards: Iterable[int]) -> Refused | None:
        """What is said when these have no room, or no answer, if that is because a log does not answer."""
        still = self.still(shards)
        if not still:
            return None
        since_s = self.append_age_ms() // 1000
        why = f"the log of shard {min(still)} has not answered for {since_s} s (are the NATS servers a majority?)"
        return Refused("shard-unavailable", why, retry_after_s=1)

    def full(self, shards: Iterable[int]) -> Refused:
        """What is said when one of these has no room."""
        overloaded = Refused("overloaded", "more is being asked than can be stored in two seconds", retry_after_s=1)
        return self.silent(shards) or overloaded
