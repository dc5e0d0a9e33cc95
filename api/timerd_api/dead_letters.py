"""Dead letters: the routes of timers that were given up."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request, Response
from msgspec import UNSET, UnsetType

from timerd.engine.instant import format_instant
from timerd.engine.message import Refused, TimerView
from timerd_api.access import weigh
from timerd_api.body import Form, Intake, answer
from timerd_api.guard import about
from timerd_api.problem import Fault, faulty, granted
from timerd_api.schema import (
    PAGE_SIZE,
    PAGE_SIZE_MAX,
    DeadLetter,
    DeadLetterPage,
    DeadLetterRequest,
    PurgeAnswer,
    ReplayAnswer,
)
from timerd_api.service import Service
from timerd_api.timers import checked_ids, payload_shown, request_shown
from timerd_api.turns import Turns
from timerd_api.values import TYPE_NAME_FAULT, Query, expires_at, is_type_name

Act = Callable[[list[str] | None, str | None, int | None], Awaitable[int | Refused]]


def dead_letter(view: TimerView) -> DeadLetter:
    """A dead letter as it is shown."""
    assert view.payload is None or isinstance(view.payload, bytes), "the service gives payloads resolved"
    assert view.died_at is not None, "only the dead are dead letters"
    return DeadLetter(
        id=view.id,
        type=view.type,
        generation=view.generation,
        fire_at=format_instant(view.fire_at),
        attempts=view.attempt,
        last_error=view.last_error or "",
        died_at=format_instant(view.died_at),
        payload=payload_shown(view.payload),
        request=request_shown(view.payload),
    )


def _chosen(asked: DeadLetterRequest) -> tuple[list[str] | None, str | None]:
    """The ids or the type that a body names. Raises Problem."""
    ids = None if isinstance(asked.ids, UnsetType) else asked.ids
    type = None if isinstance(asked.type, UnsetType) else asked.type
    if ids is None and type is None:
        raise faulty([Fault("/ids", "is missing, and so is type")])
    if ids is not None and type is not None:
        raise faulty([Fault("/type", "can't be given together with ids")])
    if type is not None and not is_type_name(type):
        raise faulty([Fault("/type", TYPE_NAME_FAULT)])
    return (None if ids is None else checked_ids(ids)), type


def add_routes(router: APIRouter, service: Service, intake: Intake, turns: Turns) -> None:
    """Add the routes of dead letters."""
    form = Form(DeadLetterRequest)

    async def act(request: Request, action: Act) -> int:
        Query(request.scope["query_string"]).check()
        expiry = expires_at(dict(request.scope["headers"]))
        ids, type = _chosen(await intake.read_form(request, form))
        about(request, f"type {type}" if ids is None else f"{len(ids)} ids")
        weigh(request.scope, len(ids or ()))
        return granted(await action(ids, type, expiry))

    @router.get("/v1/dead-letters")
    async def list_dead_letters(request: Request) -> Response:
        query = Query(request.scope["query_string"], "type", "page_size", "page_token")
        type = query.type_name("type")
        page_size = query.number("page_size", 1, PAGE_SIZE_MAX, PAGE_SIZE)
        query.check()
        async with turns:
            views, token = granted(await service.list_dead(type, page_size, query.text("page_token")))
            letters = [dead_letter(view) for view in views]
            return answer(request, DeadLetterPage(letters, UNSET if token is None else token))

    @router.post("/v1/dead-letters:replay")
    async def replay_dead_letters(request: Request) -> Response:
        return answer(request, ReplayAnswer(await act(request, service.replay_dead)))

    @router.post("/v1/dead-letters:purge")
    async def purge_dead_letters(request: Request) -> Response:
        return answer(request, PurgeAnswer(await act(request, service.purge_dead)))
