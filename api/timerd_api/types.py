"""Types: the routes of timer types, and the way between a type on the wire and the engine's `TimerType`.

A type is shown without what it guards: secrets as hints, header values masked. Neither a hint nor a mask is taken
back as a value, so that writing down what was read can't destroy what was hidden. A reference to a secret is none, and
is shown as it is.
"""

from typing import Final

from fastapi import APIRouter, Request, Response
from msgspec import UNSET, UnsetType

from timerd.engine.instant import parse_duration
from timerd.engine.message import Refused
from timerd.engine.secrecy import MASK
from timerd.engine.timer import (
    BACKOFF_MS_MAX,
    GRACE_MS_MAX,
    LAG_MS_MAX,
    TIMEOUT_MS_MAX,
    Misfire,
    RetryPolicy,
    TimerType,
)
from timerd.signing import PREFIX, is_reference, reference_fault, secret_fault
from timerd_api.body import Form, Intake, answer
from timerd_api.headers import CONNECTION_HEADERS, header_faults
from timerd_api.problem import TYPE_NOT_FOUND, Fault, Problem, faulty, granted, pointer_token
from timerd_api.schema import MisfireItem, RetryItem, TypeBody, TypeItem, TypeList
from timerd_api.service import Service
from timerd_api.timers import read_nothing
from timerd_api.urls import url_fault
from timerd_api.values import TYPE_NAME_FAULT, Query, expires_at, is_type_name, path_name

_HINT_BYTES_MIN: Final = 16  # a shorter secret is not shown in part: four characters would be too much of it

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_UNITS: Final = (("d", _DAY_MS), ("h", _HOUR_MS), ("m", 60_000), ("s", 1_000), ("ms", 1))

# What a delivery says of itself, beside what the connection needs.
_OWN_HEADERS: Final = CONNECTION_HEADERS | {
    *("content-type", "idempotency-key", "user-agent", "webhook-id", "webhook-signature", "webhook-timestamp")
}
_CALLBACK_ATTEMPTS: Final = 10  # by default; nobody watches one callback as an operator watches a processor


def duration_text(ms: int) -> str:
    """A duration in the largest unit that says it exactly: `36h`, `60d`, `90s`, `250ms`."""
    if ms == 0:
        return "0s"
    unit, unit_ms = next((unit, unit_ms) for unit, unit_ms in _UNITS if ms % unit_ms == 0)
    return f"{ms // unit_ms}{unit}"


def type_item(type: TimerType) -> TypeItem:
    """A type as it is shown."""
    retry, misfire = type.retry, type.misfire
    return TypeItem(
        name=type.name,
        url=UNSET if type.kind == "callback" else type.url,
        kind=type.kind,
        batch_size=type.batch_size,
        max_lag=duration_text(type.max_lag_ms),
        request_timeout=duration_text(type.request_timeout_ms),
        max_in_flight=type.max_in_flight,
        max_per_second=type.max_per_second,
        retry=RetryItem(
            max_attempts=retry.max_attempts,
            min_backoff=duration_text(retry.min_backoff_ms),
            max_backoff=duration_text(retry.max_backoff_ms),
            multiplier=retry.multiplier,
            jitter=retry.jitter,
        ),
        misfire=MisfireItem(misfire.policy, duration_text(misfire.grace_ms), misfire.max_per_second),
        signing_secrets=[_hint(secret) for secret in type.signing_secrets],
        headers=dict.fromkeys(type.headers, MASK),
        state=type.state,  # type: ignore[arg-type]  # the engine's words are the wire's
    )


def _hint(secret: str) -> str:
    if is_reference(secret):
        return secret
    # Base64 ends in padding, which tells nothing apart.
    shown = secret.removeprefix(PREFIX).rstrip("=")
    return f"{PREFIX}…{shown[-4:] if len(shown) * 3 // 4 >= _HINT_BYTES_MIN else ''}"


def timer_type(name: str, body: TypeBody) -> TimerType:
    """The type that a body describes. Raises Problem, with everything that is wrong."""
    faults: list[Fault] = []

    def check(pointer: str, fault: str | None) -> None:
        if fault:
            faults.append(Fault(pointer, fault))

    def duration(pointer: str, value: float | str, least_ms: int, most_ms: int) -> int:
        try:
            ms = parse_duration(value)
        except ValueError as error:
            faults.append(Fault(pointer, str(error)))
            return least_ms
        if not least_ms <= ms <= most_ms:
            check(pointer, f"must be from {duration_text(least_ms)} to {duration_text(most_ms)}")
        return ms

    callback = body.kind == "callback"
    if callback:
        check("/url", None if body.url is UNSET else "is not of a type of kind callback: each timer has its own")
        check("/headers", "are not of a type of kind callback: each request has its own" if body.headers else None)
    elif isinstance(body.url, UnsetType):
        check("/url", "is missing")
    else:
        check("/url", url_fault(body.url))
    attempts = body.retry.max_attempts
    if isinstance(attempts, UnsetType):
        attempts = _CALLBACK_ATTEMPTS if callback else 0
    retry = RetryPolicy(
        max_attempts=attempts,
        min_backoff_ms=duration("/retry/min_backoff", body.retry.min_backoff, 1, BACKOFF_MS_MAX),
        max_backoff_ms=duration("/retry/max_backoff", body.retry.max_backoff, 1, BACKOFF_MS_MAX),
        multiplier=body.retry.multiplier,
        jitter=body.retry.jitter,
    )
    if retry.min_backoff_ms > retry.max_backoff_ms:
        check("/retry/min_backoff", "is above max_backoff")
    secrets = [] if isinstance(body.signing_secrets, UnsetType) else body.signing_secrets
    for index, secret in enumerate(secrets):
        check(f"/signing_secrets/{index}", reference_fault(secret) if is_reference(secret) else secret_fault(secret))
    for pointer, fault in header_faults(body.headers, "/headers", _OWN_HEADERS.__contains__):
        check(pointer, fault)
    for header, value in body.headers.items():
        if value == MASK:
            check(f"/headers/{pointer_token(header)}", "is the mask of a value, not a value")
    type = TimerType(
        name=name,
        url="" if isinstance(body.url, UnsetType) else body.url,
        kind=body.kind,
        batch_size=body.batch_size,
        max_lag_ms=duration("/max_lag", body.max_lag, 0, LAG_MS_MAX),
        request_timeout_ms=duration("/request_timeout", body.request_timeout, 1, TIMEOUT_MS_MAX),
        max_in_flight=body.max_in_flight,
        max_per_second=body.max_per_second,
        retry=retry,
        misfire=Misfire(
            body.misfire.policy,
            duration("/misfire/grace", body.misfire.grace, 0, GRACE_MS_MAX),
            body.misfire.max_per_second,
        ),
        signing_secrets=tuple(secrets),
        headers=body.headers,
        state=body.state,
    )
    if faults:
        raise faulty(faults)
    return type


def add_routes(router: APIRouter, service: Service, intake: Intake) -> None:
    """Add the routes of types."""
    form = Form(TypeBody)

    def absent(name: str) -> Problem:
        return Problem(TYPE_NOT_FOUND, f"there is no type {name!r}")

    def named(request: Request) -> str:
        """The type's name in the path, if it is a possible one. Raises Problem."""
        Query(request.scope["query_string"]).check()
        name = path_name(request.path_params["name"])
        if not is_type_name(name):
            raise absent(name)
        return name

    @router.get("/v1/types")
    async def list_types(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        return answer(request, TypeList([type_item(type) for _, type in sorted(service.types.items())]))

    @router.get("/v1/types/{name}")
    async def show_type(request: Request) -> Response:
        name = named(request)
        type = service.types.get(name)
        if type is None:
            raise absent(name)
        return answer(request, type_item(type))

    @router.put("/v1/types/{name}")
    async def put_type(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        name = path_name(request.path_params["name"])
        if not is_type_name(name):
            raise faulty([Fault("name", TYPE_NAME_FAULT)])
        expiry = expires_at(dict(request.scope["headers"]))
        given = await intake.read_form(request, form)
        stored, created = granted(
            await service.put_type(timer_type(name, given), given.signing_secrets is UNSET, expiry)
        )
        return answer(request, type_item(stored), 201 if created else 200)

    @router.delete("/v1/types/{name}")
    async def delete_type(request: Request) -> Response:
        name = named(request)
        refusal = await service.delete_type(name, expires_at(dict(request.scope["headers"])))
        if isinstance(refusal, Refused):
            granted(refusal)
        return Response(status_code=204)

    async def set_state(request: Request, state: str) -> Response:
        name = named(request)
        expiry = expires_at(dict(request.scope["headers"]))
        await read_nothing(request, intake)
        return answer(request, type_item(granted(await service.set_type_state(name, state, expiry))))

    @router.post("/v1/types/{name}:pause")
    async def pause_type(request: Request) -> Response:
        return await set_state(request, "paused")

    @router.post("/v1/types/{name}:resume")
    async def resume_type(request: Request) -> Response:
        return await set_state(request, "active")
