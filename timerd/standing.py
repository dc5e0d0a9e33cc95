"""Standing still: which shards of a cluster wait for their log, and what callers are told then.

A shard is full because more is asked than can be stored, or because nothing is: its append is under way and the servers
do not answer. The first is the callers' to mend and the second is not, so they must not look alike.
"""

from collections.abc import Iterable, Sequence

from timerd.engine.message import Refused
from timerd.engine.now import Now
from timerd.runners import STILL_MS, Runners


def append_age_ms(runners: Runners, now: Now) -> int:
    """How long the oldest append has been under way; 0: none is."""
    begun = [since for group in runners.groups if (since := group.runner.appending_since) is not None]
    return now.boot_ms - min(begun, default=now.boot_ms)


def still(runners: Runners, shards: Iterable[int], now: Now) -> list[int]:
    """Those of these whose append has been under way for longer than `STILL_MS`. None of a data directory: a disk that
    is slow is slow for all."""
    if runners.logs.sole is not None:
        return []
    found = []
    for shard in shards:
        if shard in runners.shards:
            since = runners.group_of(shard).runner.appending_since
            if since is not None and now.boot_ms - since > STILL_MS:
                found.append(shard)
    return found


def log_does_not_answer(shards: Sequence[int], age_ms: int) -> Refused:
    """What a request is refused with whose shards have no room because of that."""
    why = f"the log of shard {shards[0]} has not answered for {age_ms // 1000} s (are the NATS servers a majority?)"
    return Refused("shard-unavailable", why, retry_after_s=1)
