"""Conditions of targets as reports: boot time becomes wall time, and nothing else."""

from timerd.engine.condition import Condition, HostsCondition
from timerd.engine.now import Now
from timerd.report import HostsReport, TargetReport


def target_report(now: Now, of: Condition) -> TargetReport:
    """One target."""
    return TargetReport(
        of.breaker,
        of.window,
        of.bound,
        _wall(now, of.held_until),
        _wall(now, of.next_probe_at),
        of.reason,
        _wall(now, of.since),
        of.host,
    )


def hosts_report(now: Now, of: HostsCondition) -> HostsReport:
    """The hosts of a type."""
    return HostsReport(of.known, of.open, of.slowed, of.held, [target_report(now, each) for each in of.troubled])


def _wall(now: Now, boot_ms: int) -> int | None:
    return now.wall_ms + boot_ms - now.boot_ms if boot_ms else None
