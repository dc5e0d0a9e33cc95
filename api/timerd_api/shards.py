"""Shards: how full they are, what moves between them, and how many there are to be."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import structs

from timerd_api.body import Form, Intake, answer, is_packed
from timerd_api.guard import about
from timerd_api.problem import granted
from timerd_api.service import Service
from timerd_api.values import Query, expires_at


class ShardItem(msgspec.Struct):
    id: int
    owner: str
    epoch: int
    timers: int
    capacity: int
    utilisation: float
    in_flight: int
    slots: int
    moving_in: int
    moving_out: int


class ShardList(msgspec.Struct):
    """`epoch` grows each time a process takes the shard up; it is 0 while none has it. `slots` a shard owns of the
    16,384 that ids are spread over; of `moving_in` others may hold timers yet, of `moving_out`, which it has given
    away, it may itself."""

    shards: list[ShardItem]


class ShardScale(msgspec.Struct, forbid_unknown_fields=True):
    """How many shards there are to be."""

    shards: Annotated[int, msgspec.Meta(ge=1, le=1_024)]


class ShardScaled(msgspec.Struct):
    """`moving`: slots are on their way between shards. Everything is served meanwhile."""

    shards: int
    ring_version: int
    moving: bool


def add_routes(router: APIRouter, service: Service, intake: Intake) -> None:
    """Add the routes of shards."""
    form = Form(ShardScale)

    @router.get("/v1/shards")
    async def shards(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        return answer(
            request, ShardList([ShardItem(**structs.asdict(shard)) for shard in granted(await service.shards())])
        )

    @router.post("/v1/shards:scale")
    async def scale_shards(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        headers = dict(request.scope["headers"])
        expiry, packed = expires_at(headers), is_packed(headers)
        body = await intake.read(headers, request.receive)
        try:
            asked = form.read(body, packed)
        finally:
            intake.release(body)
        about(request, f"{asked.shards} shards")
        done = granted(await service.scale(asked.shards, expiry))
        return answer(request, ShardScaled(done.shards, done.ring_version, done.moving))
