"""Merging: what several nodes counted, as if one had.

Counts are added up by shard, so they are exact: of a shard that two nodes tell of, because it went from one to the
other between their answers, the later owner's count stands. What is known of deliveries is each node's own, and is put
together so that no trouble is hidden: of states the worst, of lags the largest. A percentile of several nodes can't be
had from theirs; what is shown is never below it.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from timerd.engine.condition import HOSTS_SHOWN
from timerd.engine.message import ShardTally
from timerd.report import HostsReport, LagWindow, NodeTally, TargetReport, TypeReport
from timerd.tallies import Delivered, sum_up

_STATES: Final = ("closed", "probing", "open")  # the better first


def merged(tallies: Sequence[NodeTally], known: Iterable[str]) -> NodeTally:
    """One tally of them all, which lists these types at least."""
    shards = newest(shard for tally in tallies for shard in tally.shards)
    names = {name for tally in tallies for name in tally.types}
    delivered = {name: _delivered([tally.types[name] for tally in tallies if name in tally.types]) for name in names}
    return NodeTally(
        shards,
        sum_up({*known, *names}, shards, delivered),
        *(
            sum(getattr(tally, field) for tally in tallies)
            for field in (
                "log_live_bytes",
                "log_disk_bytes",
                "turns",
                "appended_bytes",
                "bodies_accepted_bytes",
                "bodies_copied_bytes",
            )
        ),
    )


def newest(tallies: Iterable[ShardTally]) -> list[ShardTally]:
    """Each shard once, by number, as its last owner counted it."""
    found: dict[int, ShardTally] = {}
    for tally in tallies:
        known = found.get(tally.shard)
        if known is None or tally.epoch > known.epoch:
            found[tally.shard] = tally
    return [found[shard] for shard in sorted(found)]


def _delivered(reports: Sequence[TypeReport]) -> Delivered:
    targets = [report.target for report in reports if report.target is not None]
    hosts = [report.hosts for report in reports if report.hosts is not None]
    return Delivered(
        batches=sum(report.batches for report in reports),
        batch_timers=sum(report.batch_timers for report in reports),
        unnamed=sum(report.unnamed for report in reports),
        coalesced=sum(report.coalesced for report in reports),
        breaker=_worst(report.breaker for report in reports),
        lag=merged_lag([report.lag for report in reports]),
        target=_target(targets) if targets else None,
        hosts=_hosts(hosts) if hosts else None,
    )


def merged_lag(windows: Sequence[LagWindow]) -> LagWindow:
    """The largest of each: the whole service's is at most that."""
    return LagWindow(
        _largest(window.p50_ms for window in windows),
        _largest(window.p99_ms for window in windows),
        _largest(window.max_ms for window in windows),
    )


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _worst(states: Iterable[str]) -> str:
    return max(states, key=lambda state: _STATES.index(state) if state in _STATES else len(_STATES))


def _target(reports: Sequence[TargetReport]) -> TargetReport:
    """One target by what each node knows of it: each has a share of what may be under way."""
    troubled = [report for report in reports if report.since is not None]
    first = min(troubled, key=lambda report: report.since or 0, default=reports[0])
    probes = [report.next_probe_at for report in reports if report.next_probe_at is not None]
    return TargetReport(
        breaker=_worst(report.breaker for report in reports),
        window=sum(report.window for report in reports),
        bound=sum(report.bound for report in reports),
        held_until=max((r.held_until for r in reports if r.held_until is not None), default=None),
        next_probe_at=min(probes, default=None),
        reason=first.reason,
        since=first.since,
        host=first.host,
    )


def _hosts(reports: Sequence[HostsReport]) -> HostsReport:
    """Nodes know some hosts in common, so how many there are is not less than what the best of them knows."""
    by_host: dict[str, list[TargetReport]] = {}
    for report in reports:
        for host in report.troubled:
            by_host.setdefault(host.host, []).append(host)
    troubled = sorted((_target(hosts) for hosts in by_host.values()), key=lambda host: (host.since or 0, host.host))
    return HostsReport(
        known=max(report.known for report in reports),
        open=max(report.open for report in reports),
        slowed=max(report.slowed for report in reports),
        held=max(report.held for report in reports),
        troubled=troubled[:HOSTS_SHOWN],
    )
