"""Exposition: the node's tally as Prometheus metrics, names and help in one table.

A scrape is one tally, so its numbers are of one moment and balance: for each type and in total,
armed + revived = fired + cancelled + replaced + dead + dropped (all reasons) + live.
The registry is this object's own; nothing is ever registered globally.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from timerd.report import LagWindow, NodeTally, TypeReport, Vitals

MEDIA_TYPE: Final = CONTENT_TYPE_LATEST

Told = TypeVar("Told")


class Figure(NamedTuple, Generic[Told]):
    """A metric, and how its value is read. Counters get `_total` behind their names."""

    name: str
    help: str
    value: Callable[[Told], float]
    counts: bool = True

    def family(self, told: Iterable[tuple[Sequence[str], Told]], labels: Sequence[str] = ()) -> Metric:
        """With a sample of each that is told of."""
        family = (CounterMetricFamily if self.counts else GaugeMetricFamily)(self.name, self.help, labels=labels)
        for values, each in told:
            family.add_metric(values, float(self.value(each)))
        return family


TYPE_METRICS: Final[Sequence[Figure[TypeReport]]] = (
    Figure("timerd_armed", "Generations given by arms and re-arms.", lambda r: r.armed),
    Figure("timerd_revived", "Dead letters that were replayed.", lambda r: r.revived),
    Figure("timerd_fired", "Generations delivered and acknowledged.", lambda r: r.fired),
    Figure("timerd_cancelled", "Live timers cancelled.", lambda r: r.cancelled),
    Figure("timerd_replaced", "Live generations that a new arm took the place of.", lambda r: r.replaced),
    Figure("timerd_dead", "Timers given up as dead letters.", lambda r: r.dead),
    Figure("timerd_purged", "Dead letters that are no more, replayed ones aside.", lambda r: r.purged),
    Figure("timerd_superseded", "Answers about generations that were no longer current.", lambda r: r.superseded),
    Figure("timerd_retried", "Failed attempts that will be followed by another.", lambda r: r.retried),
    Figure("timerd_batches", "Batches delivered, whatever the outcome.", lambda r: r.batches),
    Figure("timerd_batch_timers", "Timers in the batches delivered.", lambda r: r.batch_timers),
    Figure("timerd_unnamed", "Ids in answers that were not in their batch.", lambda r: r.unnamed),
    Figure("timerd_coalesced", "Turns that overdue re-arms skipped (misfire policy).", lambda r: r.coalesced),
    Figure("timerd_live", "Timers that are live.", lambda r: r.live, counts=False),
    Figure("timerd_in_flight", "Timers in a delivery whose outcome is open.", lambda r: r.in_flight, counts=False),
    Figure("timerd_retrying", "Timers that wait for another attempt.", lambda r: r.retrying, counts=False),
    Figure("timerd_dead_letters", "Dead letters kept.", lambda r: r.dead_letters, counts=False),
    Figure("timerd_missed", "Timers overdue beyond the grace that wait, at most.", lambda r: r.missed, counts=False),
    Figure("timerd_breaker_open", "1 while the target counts as down.", lambda r: r.breaker == "open", counts=False),
    Figure("timerd_slowed", "Targets that get fewer requests at once than may be.", lambda r: r.slowed, counts=False),
    Figure(
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


NODE_METRICS: Final[Sequence[Figure[NodeTally]]] = (
    Figure(
        "timerd_moving_slots",
        "Slots of which another shard than their owner may hold timers yet.",
        lambda t: sum(shard.adopted for shard in t.shards),
        counts=False,
    ),
    Figure("timerd_turns", "Turns persisted.", lambda t: t.turns),
    Figure("timerd_log_appended_bytes", "Bytes appended to the log.", lambda t: t.appended_bytes),
    Figure(
        "timerd_log_live_bytes",
        "Bytes that the log needs: a checkpoint, bodies, kept room (not written yet, so this may be above disk).",
        lambda t: t.log_live_bytes,
        counts=False,
    ),
    Figure("timerd_log_disk_bytes", "Bytes of the log on disk.", lambda t: t.log_disk_bytes, counts=False),
    Figure(
        "timerd_bodies_accepted_bytes",
        "Bytes of payloads above 512 bytes, as they were accepted.",
        lambda t: t.bodies_accepted_bytes,
    ),
    Figure(
        "timerd_bodies_copied_bytes",
        "Bytes of such payloads written once more, so that the files they lay in could be deleted.",
        lambda t: t.bodies_copied_bytes,
    ),
)


CLUSTER_METRICS: Final[Sequence[Figure[Vitals]]] = (
    Figure("timerd_cluster_connected", "1 while a NATS server is connected to.", lambda v: v.connected, counts=False),
    Figure(
        "timerd_heartbeat_age_seconds",
        "How long ago the servers last stored a heartbeat of this node.",
        lambda v: v.heartbeat_age_s,
        counts=False,
    ),
    Figure(
        "timerd_append_age_seconds",
        "How long the oldest append has been under way.",
        lambda v: v.append_age_s,
        counts=False,
    ),
    Figure("timerd_shards_held", "Shards that this node has.", lambda v: v.shards_held, counts=False),
    Figure("timerd_shards", "Shards of the cluster.", lambda v: v.shards, counts=False),
    Figure(
        "timerd_plan_version",
        "The newest plan of the shards that this node knows.",
        lambda v: v.plan_version,
        counts=False,
    ),
    Figure("timerd_ring_version", "The ring table that this node goes by.", lambda v: v.ring_version, counts=False),
    Figure("timerd_appends_unknown", "Appends of which no answer came.", lambda v: v.appends_unknown),
    Figure("timerd_shards_fenced", "Shards that another node turned out to have.", lambda v: v.shards_fenced),
    Figure("timerd_forwarded_requests", "Requests to other nodes.", lambda v: v.forwarded_requests),
    Figure("timerd_forwarded_timers", "Timers armed or cancelled by those.", lambda v: v.forwarded_timers),
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
        reports = [([name], report) for name, report in types]
        for of_type in TYPE_METRICS:
            yield of_type.family(reports, ["type"])
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
            yield of_node.family([((), tally)])
        if self._vitals is not None:
            for of_cluster in CLUSTER_METRICS:
                yield of_cluster.family([((), self._vitals)])
