"""The calls: one function each, the same for both clients. What is sent, and how the reply is read.

An id travels in a path as one percent-encoded segment. What could not travel so (an empty id, `.` and `..`, which any
party on the way may resolve as a path) is refused by `check_id`, before it could reach another timer than the one
meant.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

import msgspec

from timerd_client._errors import ProblemError, UnexpectedAnswer
from timerd_client._instants import Duration, duration, instant_ms, to_rfc3339
from timerd_client._protocol import (
    Call,
    Key,
    Reply,
    Request,
    absent,
    check_id,
    check_type,
    decode,
    encode_json,
    expect,
    listed,
    problem_of,
)
from timerd_client._values import ArmResult, CancelResult, DeadLetter, Status, TimerInfo, TypeInfo, TypeSpec, TypeStats

CANCEL_IDS_MAX: Final = 10_000


class _Cancelled(msgspec.Struct):
    results: list[CancelResult] = []


class TimerPage(msgspec.Struct):
    timers: list[TimerInfo] = []
    next_page_token: str | None = None


class DeadLetterPage(msgspec.Struct):
    dead_letters: list[DeadLetter] = []
    next_page_token: str | None = None


class _Types(msgspec.Struct):
    types: list[TypeInfo] = []


class _Stats(msgspec.Struct):
    types: dict[str, TypeStats] = {}


class _Count(msgspec.Struct):
    replayed: int = 0
    purged: int = 0


def timer_path(id: str) -> str:
    return "/v1/timers/" + quote(check_id(id), safe="")


def type_path(name: str) -> str:
    return "/v1/types/" + check_type(name)


def cancel(id: str) -> Call[CancelResult]:
    def read(reply: Reply) -> CancelResult:
        try:
            return expect(reply, CancelResult)
        except ProblemError as error:
            if not absent(error, "timer-not-found"):
                raise
            return CancelResult(id, "not_found")

    return Call(Request("DELETE", timer_path(id), write=True), read, (id,))


def _cancelled(reply: Reply, count: int) -> list[CancelResult]:
    """Also of one of which some is not done (503 with results)."""
    if reply.status != 503:
        return expect(reply, _Cancelled).results
    results = decode(reply, _Cancelled).results
    if len(results) != count:
        raise UnexpectedAnswer(f"{len(results)} results for {count} ids")
    return results


def cancel_many(ids: Iterable[str]) -> list[Call[list[CancelResult]]]:
    checked = [check_id(id) for id in listed(ids, "ids")]

    def one(part: Sequence[str]) -> Call[list[CancelResult]]:
        body = encode_json({"ids": part})
        return Call(
            Request("POST", "/v1/timers:cancel", body, write=True),
            lambda reply: _cancelled(reply, len(part)),
            tuple(part),
            lambda numbers: one([part[number] for number in numbers]),
        )

    return [one(checked[at : at + CANCEL_IDS_MAX]) for at in range(0, len(checked), CANCEL_IDS_MAX)]


def fire(id: str) -> Call[ArmResult]:
    request = Request("POST", timer_path(id) + ":fire", write=True)
    return Call(request, lambda reply: expect(reply, ArmResult), (id,))


def get(id: str) -> Call[TimerInfo | None]:
    def read(reply: Reply) -> TimerInfo | None:
        try:
            return expect(reply, TimerInfo)
        except ProblemError as error:
            if not absent(error, "timer-not-found"):
                raise
            return None

    return Call(Request("GET", timer_path(id)), read)


def query(path: str, **parameters: object) -> str:
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    return path + ("?" + urlencode(given, quote_via=quote) if given else "")


def instant(value: datetime | None) -> str | None:
    return None if value is None else to_rfc3339(instant_ms(value))


def timers_page(
    *,
    type: str | None,
    state: str | None,
    fire_after: datetime | None,
    fire_before: datetime | None,
    id_prefix: str | None,
    page_size: int | None,
    page_token: str | None = None,
) -> Call[TimerPage]:
    path = query(
        "/v1/timers",
        type=type,
        state=state,
        fire_after=instant(fire_after),
        fire_before=instant(fire_before),
        id_prefix=id_prefix,
        page_size=page_size,
        page_token=page_token,
    )
    return Call(Request("GET", path), lambda reply: expect(reply, TimerPage))


def next_timers(*, type: str | None, limit: int | None) -> Call[list[TimerInfo]]:
    path = query("/v1/timers:next", type=type, limit=limit)
    return Call(Request("GET", path), lambda reply: expect(reply, TimerPage).timers)


def put_type(
    name: str,
    *,
    url: str | None,
    kind: Literal["processor", "callback"] | None,
    batch_size: int | None,
    max_lag: Duration | str | None,
    request_timeout: Duration | str | None,
    max_in_flight: int | None,
    max_per_second: float | None,
    retry: Mapping[str, Any] | None,
    misfire: Mapping[str, Any] | None,
    signing_secrets: Sequence[str] | None,
    headers: Mapping[str, str] | None,
    state: Literal["active", "paused"] | None,
) -> Call[TypeInfo]:
    spec = TypeSpec(
        url,
        kind,
        batch_size,
        None if max_lag is None else duration(max_lag),
        None if request_timeout is None else duration(request_timeout),
        max_in_flight,
        max_per_second,
        _plain_durations(retry),
        _plain_durations(misfire),
        None if signing_secrets is None else listed(signing_secrets, "secrets"),
        headers,
        state,
    )
    return _type_call("PUT", name, body=encode_json(spec))


def _plain_durations(settings: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if settings is None:
        return None
    if not isinstance(settings, Mapping):
        raise TypeError(f"expected a mapping, got {type(settings).__name__}")
    named = ("min_backoff", "max_backoff", "grace")
    return {key: duration(value) if key in named else value for key, value in settings.items()}


def _type_call(method: str, name: str, verb: str = "", body: bytes = b"") -> Call[TypeInfo]:
    def read(reply: Reply) -> TypeInfo:
        info = expect(reply, TypeInfo)
        return info if info.name else msgspec.structs.replace(info, name=name)

    return Call(Request(method, type_path(name) + verb, body, write=True), read, (("type", name),))


def pause_type(name: str) -> Call[TypeInfo]:
    return _type_call("POST", name, ":pause")


def resume_type(name: str) -> Call[TypeInfo]:
    return _type_call("POST", name, ":resume")


def get_type(name: str) -> Call[TypeInfo | None]:
    def read(reply: Reply) -> TypeInfo | None:
        try:
            info = expect(reply, TypeInfo)
        except ProblemError as error:
            if not absent(error, "type-not-found"):
                raise
            return None
        return info if info.name else msgspec.structs.replace(info, name=name)

    return Call(Request("GET", type_path(name)), read)


def list_types() -> Call[list[TypeInfo]]:
    return Call(Request("GET", "/v1/types"), lambda reply: expect(reply, _Types).types)


def delete_type(name: str) -> Call[None]:
    def read(reply: Reply) -> None:
        if not 200 <= reply.status < 300:
            raise problem_of(reply)

    return Call(Request("DELETE", type_path(name), write=True), read, (("type", name),))


def dead_letters_page(
    *, type: str | None, page_size: int | None, page_token: str | None = None
) -> Call[DeadLetterPage]:
    path = query("/v1/dead-letters", type=type, page_size=page_size, page_token=page_token)
    return Call(Request("GET", path), lambda reply: expect(reply, DeadLetterPage))


def replay_dead_letters(ids: Iterable[str] | None, type: str | None) -> Call[int]:
    return _dead_letters("replay", ids, type, lambda reply: expect(reply, _Count).replayed)


def purge_dead_letters(ids: Iterable[str] | None, type: str | None) -> Call[int]:
    return _dead_letters("purge", ids, type, lambda reply: expect(reply, _Count).purged)


def _dead_letters(verb: str, ids: Iterable[str] | None, type: str | None, read: Callable[[Reply], int]) -> Call[int]:
    if (ids is None) == (type is None):
        raise ValueError("give ids or type")
    keys: tuple[Key, ...]
    body: dict[str, object]
    if ids is not None:
        named = [check_id(id) for id in listed(ids, "ids")]
        keys, body = tuple(named), {"ids": named}
    else:
        assert type is not None
        keys, body = (("type", check_type(type)),), {"type": type}
    return Call(Request("POST", f"/v1/dead-letters:{verb}", encode_json(body), write=True), read, keys)


def status() -> Call[Status]:
    return Call(Request("GET", "/v1/status"), lambda reply: expect(reply, Status))


def stats() -> Call[dict[str, TypeStats]]:
    return Call(Request("GET", "/v1/stats"), lambda reply: expect(reply, _Stats).types)
