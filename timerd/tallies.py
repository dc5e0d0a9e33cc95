"""Sums over shards: what every shard counted, as reports. Linear in types and shards.

A type of which nothing is due, in flight or to be retried has no target in trouble, whatever is known of it: nobody
waits for it. So an alert on trouble ends when the last timer that was kept waiting has been cancelled or given up.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from timerd import __version__
from timerd.engine.message import ShardTally, TypeTally
from timerd.engine.settings import Settings
from timerd.ports import LogUsage
from timerd.report import (
    HostsReport,
    LagWindow,
    NodeTally,
    ShardReport,
    StatusReport,
    TargetReport,
    TypeReport,
)

SUMMED: Final = (
    "armed", "revived", "fired", "cancelled", "replaced", "dead", "purged", "superseded", "retried",
    "live", "in_flight", "retrying", "dead_letters", "missed",
)  # fmt: skip


class Kept(Protocol):
    """How what is durable is kept: see `ports.Log`."""

    @property
    def durability(self) -> str: ...
    @property
    def replicas(self) -> int: ...
    @property
    def sync(self) -> str: ...


class Delivered(NamedTuple):
    """The part of a report that is counted where deliveries are made, since the process began."""

    batches: int = 0
    batch_timers: int = 0
    unnamed: int = 0
    coalesced: int = 0
    breaker: str = "closed"
    lag: LagWindow = LagWindow()
    target: TargetReport | None = None
    hosts: HostsReport | None = None


NOTHING: Final = Delivered()


def sum_up(
    known: Iterable[str], shards: Sequence[ShardTally], delivered: Mapping[str, Delivered]
) -> dict[str, TypeReport]:
    """A report for each known type, and for each that some shard has counted, by name."""
    by_name: dict[str, list[TypeTally]] = {name: [] for name in known}
    for shard in shards:
        for name, tally in shard.types.items():
            by_name.setdefault(name, []).append(tally)
    reports = {}
    for name in sorted(by_name):
        tallies = by_name[name]
        dropped: dict[str, int] = {}
        for tally in tallies:
            for reason, count in tally.dropped.items():
                dropped[reason] = dropped.get(reason, 0) + count
        told = delivered.get(name, NOTHING)
        if not any(tally.due or tally.in_flight or tally.retrying for tally in tallies):
            told = _untroubled(told)
        sums = {field: sum([getattr(tally, field) for tally in tallies]) for field in SUMMED}
        # What one shard has let go of and the other has not entered yet lives, and is in none of them.
        sums["live"] += sum(tally.moved_out - tally.moved_in for tally in tallies)
        reports[name] = TypeReport(**sums, dropped=dropped, **told._asdict())
    return reports


def _untroubled(told: Delivered) -> Delivered:
    target, hosts = told.target, told.hosts
    return told._replace(
        breaker="closed",
        target=target and TargetReport("closed", target.bound, target.bound),
        hosts=hosts and HostsReport(hosts.known, 0, 0, 0, []),
    )


class Sums(Protocol):
    """What a node's logs have come to: see `Runners`."""

    @property
    def turns(self) -> int: ...
    @property
    def appended_bytes(self) -> int: ...
    @property
    def live_bytes(self) -> int: ...
    @property
    def accepted_bytes(self) -> int: ...
    @property
    def copied_bytes(self) -> int: ...
    def usage(self) -> LogUsage: ...


def node_tally(
    shards: Sequence[ShardTally], known: Iterable[str], delivered: Mapping[str, Delivered], sums: Sums
) -> NodeTally:
    """All counts of a node."""
    usage = sums.usage()
    return NodeTally(
        [*shards],
        sum_up(known, shards, delivered),
        sums.live_bytes,
        usage.frame_bytes + usage.body_bytes,
        sums.turns,
        sums.appended_bytes,
        sums.accepted_bytes,
        sums.copied_bytes,
    )


def timers_by_state(tally: NodeTally) -> dict[str, int]:
    """How many timers there are, by state."""
    types = tally.types.values()
    due = sum(t.due for shard in tally.shards for t in shard.types.values())
    in_flight = sum(t.in_flight for t in types)
    retrying = sum(t.retrying for t in types)
    return {
        "armed": sum(t.live for t in types) - due - in_flight - retrying,
        "due": due,
        "in_flight": in_flight,
        "retrying": retrying,
        "dead": sum(t.dead_letters for t in types),
    }


def oldest_due(tally: NodeTally) -> int | None:
    """Unix ms since when the timer waits that has waited longest; None: nothing is due."""
    return min((shard.oldest_due_at for shard in tally.shards if shard.oldest_due_at is not None), default=None)


def status_report(tally: NodeTally, settings: Settings, log: Kept, uptime_s: float, ring_version: int) -> StatusReport:
    """For /v1/status."""
    return StatusReport(
        version=__version__,
        durability=log.durability,
        replicas=log.replicas,
        sync=log.sync,
        uptime_s=uptime_s,
        node=settings.node,
        timers=timers_by_state(tally),
        oldest_due_at=oldest_due(tally),
        log_live_bytes=tally.log_live_bytes,
        log_disk_bytes=tally.log_disk_bytes,
        ring_version=ring_version,
    )


def shard_report(tally: ShardTally, owner: str, capacity: int) -> ShardReport:
    """One shard, for /v1/shards."""
    timers = sum(t.live for t in tally.types.values())
    return ShardReport(
        id=tally.shard,
        owner=owner,
        epoch=tally.epoch,
        timers=timers,
        capacity=capacity,
        utilisation=timers / capacity,
        in_flight=sum(t.in_flight for t in tally.types.values()),
        slots=tally.slots,
        moving_in=tally.adopted,
        moving_out=tally.ceded,
    )


def shard_reports(tallies: Sequence[ShardTally], settings: Settings) -> list[ShardReport]:
    """For /v1/shards: those that own slots, or hold timers of slots that they have given away."""
    reports = [shard_report(tally, settings.node, settings.shard_capacity) for tally in tallies]
    return [report for report in reports if report.slots or report.moving_out]
