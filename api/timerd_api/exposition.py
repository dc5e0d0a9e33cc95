"""Exposition: the node's tally as Prometheus metrics, names and help in one table.

A scrape is one tally, so its numbers are of one moment and balance: for each type and in total,
armed + revived = fired + cancelled + replaced + dead + dropped (all reasons) + live.
The registry is this object's own; nothing is ever registered globally.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from timerd.report import LagWindow, NodeTally, TypeReport, Vitals

MEDIA_TYPE: Final = CONTENT_TYPE_LATEST


class OfType(NamedTuple):
    """A metric with a sample a type. Counters get `_total` behind their names."""

    name: str
    help: str
    value: Callable[[TypeReport], float]
    counts: bool = True


TYPE_METRICS: Final = (
    OfType("timerd_armed", "Generations given by arms and re-arms.", lambda r: r.armed),
    OfType("timerd_revived", "Dead letters that were replayed.", lambda r: r.revived),
    OfType("timerd_fired", "Generations delivered and acknowledged.", lambda r: r.fired),
    OfType("timerd_cancelled", "Live timers cancelled.", lambda r: r.cancelled),
    OfType("timerd_replaced", "Live generations that a new arm took the place of.", lambda r: r.replaced),
    OfType("timerd_dead", "Timers given up as dead letters.", lambda r: r.dead),
    OfType("timerd_purged", "Dead letters that are no more, replayed ones aside.", lambda r: r.purged),
    OfType("timerd_superseded", "Answers about generations that were no longer current.", lambda r: r.superseded),
    OfType("timerd_retried", "Failed attempts that will be followed by another.", lambda r: r.retried),
    OfType("timerd_batches", "Batches delivered, whatever the outcome.", lambda r: r.batches),
    OfType("timerd_batch_timers", "Timers in the batches delivered.", lambda r: r.batch_timers),
    OfType("timerd_unnamed", "Ids in answers that were not in their batch.", lambda r: r.unnamed),
    OfType("timerd_coalesced", "Turns that overdue re-arms skipped (misfire policy).", lambda r: r.coalesced),
    OfType("timerd_live", "Timers that are live.", lambda r: r.live, counts=False),
    OfType("timerd_in_flight", "Timers in a delivery whose outcome is open.", lambda r: r.in_flight, counts=False),
    OfType("timerd_retrying", "Timers that wait for another attempt.", lambda r: r.retrying, counts=False),
    OfType("timerd_dead_letters", "Dead letters kept.", lambda r: r.dead_letters, counts=False),
    OfType("timerd_missed", "Timers overdue beyond the grace that wait, at most.", lambda r: r.missed, counts=False),
    OfType("timerd_breaker_open", "1 while the target counts as down.", lambda r: r.breaker == "open", counts=False),
    OfType("timerd_slowed", "Targets that get fewer requests at once than may be.", lambda r: r.slowed, counts=False),
    OfType(
        "timerd_held",
        "Targets that get nothing until a set time.",
        lambda r: r.held,
        counts=False,
    ),
)
DROPPED: Final = ("timerd_dropped", "Generations dropped, by reason.")
LAG: Final = ("timerd_lag_seconds", "From due to the start of delivery over the last minute; quantile 1 is the worst.")
QUANTILES: Final[tuple[tuple[str, Callable[[LagWindow], float | None]], ...]] = (
    ("0.5", lambda lag: lag.p50_ms),
    ("0.99", lambda lag: lag.p99_ms),
    ("1", lambda lag: lag.max_ms),
)
SHARD_TIMERS: Final = ("timerd_shard_timers", "Live timers in a shard.")
OLDEST_DUE: Final = ("timerd_oldest_due_timestamp_seconds", "Since when the longest waiting due timer waits; 0 = none.")


class OfNode(NamedTuple):
    """A metric with one sample."""

    name: str
    help: str
    value: Callable[[NodeTally], float]
    counts: bool = True


NODE_METRICS: Final = (
    OfNode(
        "timerd_moving_slots",
        "Slots of which another shard than their owner may hold timers yet.",
        lambda t: sum(shard.adopted for shard in t.shards),
        counts=False,
    ),
    OfNode("timerd_turns", "Turns persisted.", lambda t: t.turns),
    OfNode("timerd_log_appended_bytes", "Bytes appended to the log.", lambda t: t.appended_bytes),
    OfNode(
        "timerd_log_live_bytes",
        "Bytes that the log needs: a checkpoint, bodies, kept room (not written yet, so this may be above disk).",
        lambda t: t.log_live_bytes,
        counts=False,
    ),
    OfNode("timerd_log_disk_bytes", "Bytes of the log on disk.", lambda t: t.log_disk_bytes, counts=False),
    OfNode(
        "timerd_bodies_accepted_bytes",
        "Bytes of payloads above 512 bytes, as they were accepted.",
        lambda t: t.bodies_accepted_bytes,
    ),
    OfNode(
        "timerd_bodies_copied_bytes",
        "Bytes of such payloads written once more, so that the files they lay in could be deleted.",
        lambda t: t.bodies_copied_bytes,
    ),
)


class OfCluster(NamedTuple):
    """A metric with one sample, of a node of a cluster."""

    name: str
    help: str
    value: Callable[[Vitals], float]
    counts: bool = False


CLUSTER_METRICS: Final = (
    OfCluster("timerd_cluster_connected", "1 while a NATS server is connected to.", lambda v: v.connected),
    OfCluster("timerd_append_age_seconds", "How long the oldest append has been under way.", lambda v: v.append_age_s),
    OfCluster("timerd_shards_held", "Shards that this node has.", lambda v: v.shards_held),
    OfCluster("timerd_shards", "Shards of the cluster.", lambda v: v.shards),
    OfCluster("timerd_plan_version", "The newest plan of the shards that this node knows.", lambda v: v.plan_version),
    OfCluster("timerd_ring_version", "The ring table that this node goes by.", lambda v: v.ring_version),
    OfCluster("timerd_appends_unknown", "Appends of which no answer came.", lambda v: v.appends_unknown, True),
    OfCluster("timerd_shards_fenced", "Shards that another node turned out to have.", lambda v: v.shards_fenced, True),
    OfCluster("timerd_forwarded_requests", "Requests to other nodes.", lambda v: v.forwarded_requests, True),
    OfCluster("timerd_forwarded_timers", "Timers armed or cancelled by those.", lambda v: v.forwarded_timers, True),
)


class Exposition(Collector):
    """Renders one tally at a time."""

    def __init__(self) -> None:
        self._tally: NodeTally | None = None
        self._vitals: Vitals | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, tally: NodeTally, vitals: Vitals | None = None) -> bytes:
        """Prometheus text of this tally, and of these."""
        self._tally, self._vitals = tally, vitals
        try:
            return generate_latest(self._registry)
        finally:
            self._tally = None

    def collect(self) -> Iterator[Metric]:
        tally = self._tally
        if tally is None:
            return
        types = sorted(tally.types.items())
        for of_type in TYPE_METRICS:
            family = _family(of_type.name, of_type.help, of_type.counts, ["type"])
            for name, report in types:
                family.add_metric([name], float(of_type.value(report)))
            yield family
        dropped = CounterMetricFamily(*DROPPED, labels=["type", "reason"])
        lag = GaugeMetricFamily(*LAG, labels=["type", "quantile"])
        for name, report in types:
            for reason, count in sorted(report.dropped.items()):
                dropped.add_metric([name, reason], count)
            for quantile, value in QUANTILES:
                if (ms := value(report.lag)) is not None:
                    lag.add_metric([name, quantile], ms / 1000)
        yield dropped
        yield lag
        shard_timers = GaugeMetricFamily(*SHARD_TIMERS, labels=["shard"])
        for shard in sorted(tally.shards, key=lambda s: s.shard):
            shard_timers.add_metric([str(shard.shard)], sum(t.live for t in shard.types.values()))
        yield shard_timers
        waiting = [s.oldest_due_at for s in tally.shards if s.oldest_due_at is not None]
        yield GaugeMetricFamily(*OLDEST_DUE, value=min(waiting, default=0) / 1000)
        for of_node in NODE_METRICS:
            family = _family(of_node.name, of_node.help, of_node.counts, [])
            family.add_metric([], of_node.value(tally))
            yield family
        for of_cluster in CLUSTER_METRICS if self._vitals is not None else ():
            assert self._vitals is not None
            family = _family(of_cluster.name, of_cluster.help, of_cluster.counts, [])
            family.add_metric([], float(of_cluster.value(self._vitals)))
            yield family


def _family(name: str, help: str, counts: bool, labels: list[str]) -> CounterMetricFamily | GaugeMetricFamily:
    return (CounterMetricFamily if counts else GaugeMetricFamily)(name, help, labels=labels)
