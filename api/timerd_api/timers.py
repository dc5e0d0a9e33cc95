"""Timers: the routes of single timers, lists and cancels. (Arms are in `arms`.)

They turn requests into calls of the service and its values into answers; every decision is made behind the service.
"""

from typing import Literal

from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Raw, UnsetType

from timerd.engine.callback import is_request
from timerd.engine.instant import format_instant
from timerd.engine.message import CancelResult, Filter, TimerView
from timerd_api.access import weigh
from timerd_api.arms import result_item
from timerd_api.body import Form, Intake, answer, is_packed
from timerd_api.problem import TIMER_NOT_FOUND, Fault, Problem, away, faulty, granted, partly
from timerd_api.request_schema import RequestItem
from timerd_api.requests import request_item
from timerd_api.schema import (
    PAGE_SIZE,
    PAGE_SIZE_MAX,
    CancelAnswer,
    CancelItem,
    CancelRequest,
    DeleteAnswer,
    NoBody,
    TimerItem,
    TimerPage,
)
from timerd_api.service import Service
from timerd_api.turns import Turns
from timerd_api.values import Query, expires_at, id_fault, path_id

STATES = ("armed", "due", "in_flight", "retrying", "paused", "dead")

_CANCEL = Form(CancelRequest)
_NOTHING = Form(NoBody)


def timer_item(view: TimerView) -> TimerItem:
    """A timer as it is shown."""
    assert view.payload is None or isinstance(view.payload, bytes), "the service gives payloads resolved"
    return TimerItem(
        id=view.id,
        type=view.type,
        state=view.state,  # type: ignore[arg-type]  # the engine's words are the wire's
        fire_at=format_instant(view.fire_at),
        generation=view.generation,
        attempt=view.attempt,
        created_at=format_instant(view.created_at),
        updated_at=format_instant(view.updated_at),
        shard=view.shard,
        payload=payload_shown(view.payload),
        request=request_shown(view.payload),
        last_error=UNSET if view.last_error is None else view.last_error,
        next_attempt_at=UNSET if view.next_attempt_at is None else format_instant(view.next_attempt_at),
    )


def payload_shown(payload: bytes | None) -> Raw | UnsetType:
    """A payload as it is shown, unless it is a callback's request."""
    return UNSET if payload is None or is_request(payload) else Raw(payload)


def request_shown(payload: bytes | None) -> RequestItem | UnsetType:
    """A callback's request as it is shown."""
    return request_item(payload) if payload is not None and is_request(payload) else UNSET


def checked_ids(ids: list[str]) -> list[str]:
    """The ids of a body's `ids`. Raises Problem if there is one that no timer can have."""
    faults = [Fault(f"/ids/{index}", fault) for index, id in enumerate(ids) if (fault := id_fault(id))]
    if faults:
        raise faulty(faults)
    return ids


def cancel_status(result: CancelResult) -> Literal["cancelled", "not_found", "unavailable"]:
    """What became of one id, in the wire's words."""
    return "unavailable" if result.unavailable else "cancelled" if result.found else "not_found"


def not_found(id: str) -> Problem:
    return Problem(TIMER_NOT_FOUND, f"there is no timer with the id {id!r}")


async def read_nothing(request: Request, intake: Intake) -> None:
    """Refuse a body that asks for something in a call that takes nothing. Raises Problem."""
    headers = dict(request.scope["headers"])
    body = await intake.read(headers, request.receive)
    intake.release(body)
    if body:
        _NOTHING.read(body, is_packed(headers))


def add_routes(router: APIRouter, service: Service, intake: Intake, turns: Turns) -> None:
    """Add the routes of timers."""

    @router.get("/v1/timers")
    async def list_timers(request: Request) -> Response:
        names = ("type", "state", "fire_after", "fire_before", "id_prefix", "page_size", "page_token")
        query = Query(request.scope["query_string"], *names)
        chosen = Filter(
            type=query.type_name("type"),
            state=query.choice("state", STATES),
            fire_after=query.instant("fire_after"),
            fire_before=query.instant("fire_before"),
            id_prefix=query.id_prefix("id_prefix"),
        )
        page_size = query.number("page_size", 1, PAGE_SIZE_MAX, PAGE_SIZE)
        query.check()
        async with turns:
            views, token = granted(await service.list(chosen, page_size, query.text("page_token")))
            return answer(request, TimerPage([timer_item(view) for view in views], UNSET if token is None else token))

    @router.get("/v1/timers:next")
    async def next_timers(request: Request) -> Response:
        query = Query(request.scope["query_string"], "type", "limit")
        type = query.type_name("type")
        limit = query.number("limit", 1, PAGE_SIZE_MAX, PAGE_SIZE)
        query.check()
        async with turns:
            views = granted(await service.next(type, limit))
            return answer(request, TimerPage([timer_item(view) for view in views]))

    @router.post("/v1/timers:cancel")
    async def cancel_timers(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        headers = dict(request.scope["headers"])
        expiry, packed = expires_at(headers), is_packed(headers)
        body = await intake.read(headers, request.receive)
        try:
            ids = checked_ids(_CANCEL.read(body, packed).ids)
            weigh(request.scope, len(ids))
            results = granted(await service.cancel(ids, expiry))
        finally:
            intake.release(body)
        items = [
            CancelItem(id, cancel_status(result), result.in_flight) for id, result in zip(ids, results, strict=True)
        ]
        done = CancelAnswer(sum(result.found for result in results), items)
        if any(result.unavailable for result in results):
            return partly(sum(result.unavailable for result in results), done)
        return answer(request, done)

    @router.post("/v1/timers/{id}:fire")
    async def fire_timer(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        id = path_id(request.path_params["id"])
        expiry = expires_at(dict(request.scope["headers"]))
        await read_nothing(request, intake)
        result = granted(await service.fire(id, expiry))
        if result is None:
            raise not_found(id)
        return answer(request, result_item(id, result))

    @router.get("/v1/timers/{id}")
    async def show_timer(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        id = path_id(request.path_params["id"])
        view = granted(await service.get(id))
        if view is None:
            raise not_found(id)
        return answer(request, timer_item(view), headers={"ETag": f'"{view.generation}"'})

    @router.delete("/v1/timers/{id}")
    async def delete_timer(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        id = path_id(request.path_params["id"])
        expiry = expires_at(dict(request.scope["headers"]))
        result = granted(await service.cancel([id], expiry))[0]
        if result.unavailable:
            raise away(1)
        if not result.found:
            raise not_found(id)
        return answer(request, DeleteAnswer(id, result.generation, result.in_flight))
