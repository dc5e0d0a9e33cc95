"""What `/v1/stats` shows of types: counts, lag, and how targets are. Values only, like the rest of the schema."""

from typing import Literal

import msgspec

from timerd_api.schema import Instant

Breaker = Literal["closed", "open", "probing"]


class TargetItem(msgspec.Struct):
    """How a type's processor is, and since when if in trouble. `window` of `bound` requests may be under way to it."""

    since: Instant | None
    breaker: Breaker
    window: int
    bound: int
    held_until: Instant | None
    next_probe_at: Instant | None
    reason: str


class HostItem(TargetItem):
    """A host of callbacks in trouble, and how it is: as a processor."""

    host: str


class HostsItem(msgspec.Struct):
    """The hosts of a callback type that have something to do, counted; those longest in trouble by name."""

    known: int
    open: int
    slowed: int
    held: int
    troubled: list[HostItem]


class LagItem(msgspec.Struct):
    """Milliseconds from due to the start of delivery, over the last minute; null when nothing was delivered."""

    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None


class TypeStats(msgspec.Struct):
    """A type's counts since the data directory began; batches since the process did."""

    armed: int
    replaced: int
    cancelled: int
    fired: int
    superseded: int
    retried: int
    dead: int
    revived: int
    purged: int
    dropped: dict[str, int]
    live: int
    in_flight: int
    retrying: int
    dead_letters: int
    missed: int
    batches: int
    mean_batch_size: float
    unnamed: int
    coalesced: int
    breaker: Literal["closed", "open"]
    lag: LagItem
    target: TargetItem | None
    hosts: HostsItem | None


class Stats(msgspec.Struct):
    types: dict[str, TypeStats]
