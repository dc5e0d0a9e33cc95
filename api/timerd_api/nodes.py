"""Nodes: who serves what, for operators, and for clients that send each timer to its owner by themselves."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response

from timerd.engine.instant import format_instant
from timerd.report import NodeReport, RingReport
from timerd_api.body import answer
from timerd_api.problem import granted
from timerd_api.schema import Instant
from timerd_api.service import Cluster, Service
from timerd_api.values import Query


class NodeItem(msgspec.Struct):
    """`shards`: those that it is to serve. `seen_at`: when it was last heard of."""

    id: str
    address: str
    shards: list[int]
    seen_at: Instant | None


class NodeList(msgspec.Struct):
    """The nodes that are there, by id."""

    nodes: list[NodeItem]


class RingOwner(msgspec.Struct):
    """A shard, and the node that serves it; null while none does."""

    id: int
    node: str | None
    address: str | None


class Ring(msgspec.Struct):
    """Where ids live: `slots[hash & 16383]` is an id's shard, `hash` being the 64-bit XXH3 of the id's UTF-8."""

    version: Annotated[int, msgspec.Meta(description="of the table; who serves a shard may change without it")]
    hash: str
    slots: list[int]
    shards: list[RingOwner]


HASH = "xxh3_64"


def add_routes(router: APIRouter, service: Service, cluster: Cluster | None) -> None:
    """Add the routes of nodes. Without a cluster there is one, and it is where the request came in."""

    def here(request: Request) -> str:
        headers = dict(request.scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        return f"{request.scope['scheme']}://{host}" if host else ""

    async def alone(request: Request) -> NodeReport:
        status = granted(await service.status())
        shards = [shard.id for shard in granted(await service.shards())]
        return NodeReport(status.node, here(request), shards, service.clock.now().wall_ms)

    @router.get("/v1/nodes")
    async def nodes(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        reports = [await alone(request)] if cluster is None else cluster.nodes()
        return answer(
            request,
            NodeList(
                [
                    NodeItem(
                        report.id,
                        report.address or here(request),
                        report.shards,
                        None if report.seen_at is None else format_instant(report.seen_at),
                    )
                    for report in reports
                ]
            ),
        )

    @router.get("/v1/ring")
    async def ring(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        if cluster is not None:
            report = cluster.ring()
        else:
            table, node = service.table, await alone(request)
            report = RingReport(table.version, table.shards, dict.fromkeys(table.shard_ids, (node.id, node.address)))
        shards = sorted(set(report.slots))
        owners = [RingOwner(shard, *report.owners.get(shard, (None, None))) for shard in shards]
        shown = Ring(report.version, HASH, list(report.slots), owners)
        return answer(request, shown)
