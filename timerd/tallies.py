"""Sums over shards: what every shard counted of a type, as one report. Linear in types and shards.

A type of which nothing is due, in flight or to be retried has no target in trouble, whatever is known of it: nobody
waits for it. So an alert on trouble ends when the last timer that was kept waiting has been cancelled or given up.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from timerd.engine.message import ShardTally, TypeTally
from timerd.report import HostsReport, LagWindow, TargetReport, TypeReport

SUMMED: Final = (
    "armed", "revived", "fired", "cancelled", "replaced", "dead", "purged", "superseded", "retried",
    "live", "in_flight", "retrying", "dead_letters", "missed",
)  # fmt: skip


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
        reports[name] = TypeReport(**sums, dropped=dropped, **told._asdict())
    return reports


def _untroubled(told: Delivered) -> Delivered:
    target, hosts = told.target, told.hosts
    return told._replace(
        breaker="closed",
        target=target and TargetReport("closed", target.bound, target.bound),
        hosts=hosts and HostsReport(hosts.known, 0, 0, 0, []),
    )
