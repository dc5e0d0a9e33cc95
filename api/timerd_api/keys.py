"""Keys: the routes of API keys, and their shapes on the wire.

A key's text is in one answer, that of the call that made it, and nowhere else.
"""

import re
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, UnsetType

from timerd.engine.instant import format_instant, parse_duration, parse_instant
from timerd.engine.message import Refused
from timerd.engine.secrecy import scrub
from timerd.ports import ApiKey
from timerd_api.access import CALLER, NOBODY, Access
from timerd_api.body import Form, Intake, answer
from timerd_api.guard import about
from timerd_api.limits import PER_SECOND_MAX, PER_SECOND_MIN
from timerd_api.problem import FORBIDDEN, KEY_NOT_FOUND, Fault, Problem, faulty, granted
from timerd_api.schema import Duration, FireAt, Instant
from timerd_api.scopes import Scope
from timerd_api.service import Service
from timerd_api.values import Query, expires_at, path_name

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_ID: Final = re.compile(r"[a-z2-7]{8}")
_LIFE_MS_MAX: Final = 3_660 * 86_400_000
_NOT_STORED: Final = {"Cache-Control": "no-store"}


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """A key to make. At most one of `expires_at` and `expires_in` is given; without both it lives till revoked."""

    name: Annotated[str, Meta(description="a label, [A-Za-z0-9][A-Za-z0-9_.@-]{0,63}; several keys may have the same")]
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=3)]
    expires_at: FireAt | UnsetType = UNSET
    expires_in: Duration | UnsetType = UNSET
    max_per_second: (
        Annotated[
            float,
            Meta(
                ge=PER_SECOND_MIN,
                le=PER_SECOND_MAX,
                description="timers that its requests may name in a second, at least one a request; null = no limit",
            ),
        ]
        | None
    ) = None


class KeyItem(msgspec.Struct, omit_defaults=True):
    """A key as it is shown. `last_used_at` is this process's knowledge: it is left out before the first use."""

    id: str
    name: str
    scopes: list[Scope]
    created_at: Instant
    max_per_second: float | UnsetType = UNSET
    expires_at: Instant | UnsetType = UNSET
    last_used_at: Instant | UnsetType = UNSET


class NewKey(KeyItem, kw_only=True):
    """A key that was just made. `key` is never shown again."""

    key: str


class KeyList(msgspec.Struct):
    """All keys but the bootstrap key, which is in the environment and not stored; the oldest first."""

    keys: list[KeyItem]


def key_item(key: ApiKey, seen_at: int | None = None) -> KeyItem:
    """A key as it is shown."""
    return KeyItem(
        id=key.id,
        name=key.name,
        scopes=list(key.scopes),  # type: ignore[arg-type]  # they came in as scopes
        created_at=format_instant(key.created_at),
        max_per_second=UNSET if key.max_per_second is None else key.max_per_second,
        expires_at=UNSET if key.expires_at is None else format_instant(key.expires_at),
        last_used_at=UNSET if seen_at is None else format_instant(seen_at),
    )


def _ends_at(given: KeyBody, now_ms: int) -> int | None:
    """Unix ms at which the key is to end. Raises Problem."""
    pointer, value = "/expires_at", given.expires_at
    if not isinstance(given.expires_in, UnsetType):
        if value is not UNSET:
            raise faulty([Fault("/expires_in", "can't be given together with expires_at")])
        pointer, value = "/expires_in", given.expires_in
    if value is UNSET:
        return None
    try:
        ends_at = parse_instant(value) if pointer == "/expires_at" else now_ms + parse_duration(value)
    except ValueError as error:
        raise faulty([Fault(pointer, str(error))]) from None
    if not now_ms < ends_at <= now_ms + _LIFE_MS_MAX:
        raise faulty([Fault(pointer, "must lie ahead, by at most 3660 days")])
    return ends_at


def add_routes(router: APIRouter, service: Service, intake: Intake, access: Access) -> None:
    """Add the routes of keys."""
    form = Form(KeyBody)

    @router.get("/v1/keys")
    async def list_keys(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        keys = sorted(service.keys.known.values(), key=lambda key: (key.created_at, key.id))
        return answer(request, KeyList([key_item(key, access.seen_at(key.id)) for key in keys]))

    @router.post("/v1/keys")
    async def create_key(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        expiry = expires_at(dict(request.scope["headers"]))
        given = await intake.read_form(request, form)
        if not _NAME.fullmatch(given.name):
            raise faulty([Fault("/name", f"a key's name is {_NAME.pattern}")])
        if scrub(given.name) != given.name:
            raise faulty([Fault("/name", "must be a label, and is a secret")])
        if request.scope[CALLER] is NOBODY:
            # With the first key everybody else is locked out, who made it perhaps as well.
            raise Problem(FORBIDDEN, "keys are made with a key: start timerd with TIMERD_API_KEY set, and use that one")
        ends_at = _ends_at(given, service.clock.now().wall_ms)
        scopes = tuple(dict.fromkeys(given.scopes))
        key, text = granted(await service.keys.create(given.name, scopes, ends_at, given.max_per_second, expiry))
        about(request, f"{key.id} {key.name} {'+'.join(key.scopes)}")
        made = NewKey(**msgspec.structs.asdict(key_item(key)), key=text)
        return answer(request, made, 201, _NOT_STORED)

    @router.delete("/v1/keys/{id}")
    async def revoke_key(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        id = path_name(request.path_params["id"])
        if not _ID.fullmatch(id):  # and it is not shown: it may be a whole key
            about(request, "no id")
            raise Problem(KEY_NOT_FOUND, "this is no id of a key: an id is the 8 characters behind td_")
        revoked = await service.keys.revoke(id, expires_at(dict(request.scope["headers"])))
        if isinstance(revoked, Refused):
            granted(revoked)
        else:
            about(request, f"{id} {revoked.name}")
        return Response(status_code=204)
