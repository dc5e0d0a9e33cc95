"""Reports: what the node says of itself. Values for the API's status, stats and metrics; nothing here acts."""

import msgspec

from timerd.engine.message import ShardTally


class LagWindow(msgspec.Struct, frozen=True):
    """Lag (ms from due to the start of delivery) over the last minute; None when nothing was delivered."""

    p50_ms: int | None = None
    p99_ms: int | None = None
    max_ms: int | None = None


class TargetReport(msgspec.Struct, frozen=True):
    """How a target is: a type's processor, or a host of callbacks. Times are Unix ms."""

    breaker: str
    """closed | open | probing"""
    window: int
    """Requests that may be under way now,"""
    bound: int
    """of so many that are configured."""
    held_until: int | None = None
    next_probe_at: int | None = None
    reason: str = ""
    since: int | None = None
    """When its trouble began."""
    host: str = ""

    @property
    def slowed(self) -> bool:
        """Whether it gets less than is configured, and is not down."""
        return self.breaker == "closed" and self.window < self.bound


class HostsReport(msgspec.Struct, frozen=True):
    """How the hosts of a callback type are."""

    known: int
    open: int
    slowed: int
    held: int
    troubled: list[TargetReport]
    """Those longest in trouble."""


class TypeReport(msgspec.Struct, frozen=True):
    """One type over all shards. The counts are since the data directory began, the rest since the process did."""

    armed: int = 0
    revived: int = 0
    fired: int = 0
    cancelled: int = 0
    replaced: int = 0
    dead: int = 0
    purged: int = 0
    superseded: int = 0
    retried: int = 0
    dropped: dict[str, int] = {}
    live: int = 0
    in_flight: int = 0
    retrying: int = 0
    dead_letters: int = 0
    missed: int = 0
    """Overdue beyond the grace, and waiting for their first attempt; at most."""
    batches: int = 0
    """Batches delivered, whatever the outcome."""
    batch_timers: int = 0
    """Timers in them: batch_timers / batches is the mean batch size."""
    unnamed: int = 0
    """Ids in answers that were not in their batch."""
    coalesced: int = 0
    """Turns that re-arms skipped, since they were overdue."""
    breaker: str = "closed"
    """closed | open"""
    lag: LagWindow = LagWindow()
    target: TargetReport | None = None
    """Of a processor."""
    hosts: HostsReport | None = None
    """Of callbacks."""

    @property
    def slowed(self) -> int:
        """How many targets get less than is configured."""
        return self.hosts.slowed if self.hosts else int(self.target is not None and self.target.slowed)

    @property
    def held(self) -> int:
        """How many targets get nothing for a while."""
        return self.hosts.held if self.hosts else int(self.target is not None and self.target.held_until is not None)


class ShardReport(msgspec.Struct, frozen=True):
    """One shard as `/v1/shards` shows it."""

    id: int
    owner: str
    epoch: int
    timers: int
    capacity: int
    utilisation: float
    in_flight: int
    slots: int = 0
    """Of the ring table's 16,384, those that it owns."""
    moving_in: int = 0
    """Of these, those of which another shard may hold timers yet."""
    moving_out: int = 0
    """Slots that it has given away, and may hold timers of yet."""


class Scaled(msgspec.Struct, frozen=True):
    """What a change of the number of shards has come to."""

    shards: int
    ring_version: int
    moving: bool
    """Slots are on their way between shards."""


class StatusReport(msgspec.Struct, frozen=True):
    """The node as `/v1/status` shows it. Times are Unix ms."""

    version: str
    durability: str
    replicas: int
    sync: str
    uptime_s: float
    node: str
    timers: dict[str, int]
    """By state: armed, due, in_flight, retrying, dead."""
    oldest_due_at: int | None
    log_live_bytes: int
    log_disk_bytes: int
    ring_version: int


class NodeTally(msgspec.Struct, frozen=True):
    """All counts of one moment, for /metrics and /v1/stats: every shard was asked in the same turn."""

    shards: list[ShardTally]
    types: dict[str, TypeReport]
    log_live_bytes: int
    log_disk_bytes: int
    turns: int
    appended_bytes: int
    bodies_accepted_bytes: int = 0
    """Of payloads that were put apart from their timers."""
    bodies_copied_bytes: int = 0
    """Of these, written once more since, so that the segment they lay in could be dropped."""


class Vitals(msgspec.Struct, frozen=True):
    """How a node of a cluster does; all of it is known without asking anybody. Counts are since its start."""

    connected: bool
    """To a NATS server."""
    heartbeat_age_s: float
    """Since a heartbeat of this node was last stored."""
    append_age_s: float
    """How long the oldest append has been under way; 0: none is."""
    shards_held: int
    shards: int
    plan_version: int
    ring_version: int
    appends_unknown: int
    """Appends of which no answer came, each time one did not."""
    shards_fenced: int
    """Shards that turned out to be another's when something was stored."""
    forwarded_requests: int
    """Questions to other nodes that callers' requests came to,"""
    forwarded_timers: int
    """and the timers that were armed or cancelled by them."""


class NodeReport(msgspec.Struct, frozen=True):
    """One node of the cluster as `/v1/nodes` shows it."""

    id: str
    address: str
    """Where it is reached; empty: where this answer came from."""
    shards: list[int]
    """Those that it is to serve."""
    seen_at: int | None
    """Unix ms at which it was last heard of."""


class RingReport(msgspec.Struct, frozen=True):
    """Where ids live, as `/v1/ring` shows it."""

    version: int
    """Of the table."""
    slots: tuple[int, ...]
    """The shard of each slot."""
    owners: dict[int, tuple[str, str]]
    """(id, address) of the node that serves a shard; of a shard that nobody serves there is none."""
