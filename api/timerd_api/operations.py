"""Operations: the routes that tell how the service is, for probes, dashboards and people.

They read and never change anything. Probes ignore query parameters, since some monitors add their own.
"""

from fastapi import APIRouter, Request, Response
from msgspec import structs

from timerd.engine.instant import format_instant
from timerd.report import HostsReport, NodeTally, TargetReport, TypeReport
from timerd_api.body import answer
from timerd_api.exposition import MEDIA_TYPE, Exposition
from timerd_api.problem import granted
from timerd_api.schema import Health, Readiness, StatusItem
from timerd_api.service import Cluster, Service
from timerd_api.stats_schema import HostItem, HostsItem, LagItem, Stats, TargetItem, TypeStats
from timerd_api.values import Query


def type_stats(report: TypeReport) -> TypeStats:
    """A type's counts as they are shown."""
    return TypeStats(
        armed=report.armed,
        replaced=report.replaced,
        cancelled=report.cancelled,
        fired=report.fired,
        superseded=report.superseded,
        retried=report.retried,
        dead=report.dead,
        revived=report.revived,
        purged=report.purged,
        dropped=report.dropped,
        live=report.live,
        in_flight=report.in_flight,
        retrying=report.retrying,
        dead_letters=report.dead_letters,
        missed=report.missed,
        batches=report.batches,
        mean_batch_size=round(report.batch_timers / report.batches, 2) if report.batches else 0.0,
        unnamed=report.unnamed,
        coalesced=report.coalesced,
        breaker=report.breaker,  # type: ignore[arg-type]  # the node's words are the wire's
        lag=LagItem(report.lag.p50_ms, report.lag.p99_ms, report.lag.max_ms),
        target=_target(report.target) if report.target else None,
        hosts=_hosts(report.hosts) if report.hosts else None,
    )


def _instant(wall_ms: int | None) -> str | None:
    return None if wall_ms is None else format_instant(wall_ms)


def _target(of: TargetReport) -> TargetItem:
    since, held_until, next_probe_at = _instant(of.since), _instant(of.held_until), _instant(of.next_probe_at)
    return TargetItem(since, of.breaker, of.window, of.bound, held_until, next_probe_at, of.reason)  # type: ignore[arg-type]


def _hosts(of: HostsReport) -> HostsItem:
    troubled = [HostItem(host=host.host, **structs.asdict(_target(host))) for host in of.troubled]
    return HostsItem(of.known, of.open, of.slowed, of.held, troubled)


def add_routes(router: APIRouter, service: Service, cluster: Cluster | None) -> None:
    """Add the routes of the service itself."""
    exposition = Exposition()

    def whole(tally: NodeTally) -> NodeTally:
        """A tally in which a type that has never been used shows too, with zeros."""
        types = dict.fromkeys(service.types, TypeReport()) | tally.types
        return structs.replace(tally, types=types)

    @router.get("/healthz")
    async def health(request: Request) -> Response:
        return answer(request, Health())

    @router.get("/readyz")
    async def readiness(request: Request) -> Response:
        reason = service.unready()
        if reason is None:
            return answer(request, Readiness("ready"))
        return answer(request, Readiness("unready", reason), 503)

    @router.get("/v1/status")
    async def status(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        report = granted(await service.status())
        oldest = report.oldest_due_at
        return answer(
            request,
            StatusItem(
                version=report.version,
                durability=report.durability,
                replicas=report.replicas,
                sync=report.sync,
                now=format_instant(service.clock.now().wall_ms),
                uptime_s=report.uptime_s,
                node=report.node,
                timers=report.timers,
                oldest_due_at=None if oldest is None else format_instant(oldest),
                log_live_bytes=report.log_live_bytes,
                log_disk_bytes=report.log_disk_bytes,
                ring_version=report.ring_version,
            ),
        )

    @router.get("/v1/stats")
    async def stats(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        tally = whole(granted(await service.tally()))
        return answer(request, Stats({name: type_stats(report) for name, report in sorted(tally.types.items())}))

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        tally = granted(await service.tally()) if cluster is None else await cluster.own_tally()
        vitals = None if cluster is None else cluster.vitals()
        return Response(exposition.render(whole(tally), vitals), media_type=MEDIA_TYPE)
