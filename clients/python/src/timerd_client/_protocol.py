"""The wire contract, without I/O: what a request and a reply are, and how values are checked, written and read.

This module knows no sockets, no clocks and no retries. `_calls` makes the requests, `_exchange` is what happens
between a request and its reply.
"""

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from timerd_client._errors import ItemError, ProblemError, TimerdError, UnexpectedAnswer, problem
from timerd_client._instants import duration, fire_at_ms
from timerd_client._values import (
    Arm,
    ArmResult,
    CallbackRequest,
    Mode,
)

T = TypeVar("T")
Key = str | tuple[str, str]
"""What writes are kept in order by: a timer's id, or ("type", name)."""

ITEMS_MAX: Final = 10_000  # of one request, by the contract
BODY_BYTES_MAX: Final = 8 << 20  # half of the server's default: one setting lower than that still takes it
PROBLEM_PREFIX: Final = "/problems/"
_ID: Final = re.compile(r"[^\x00-\x1f\x7f]{1,256}")
_TYPE: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_MODES: Final = frozenset(Mode.__args__)  # type: ignore[attr-defined]


class Request(msgspec.Struct, frozen=True):
    """One HTTP request, as far as the contract goes. `write`: it changes something, so a repeat must expire."""

    method: str
    path: str
    body: bytes = b""
    write: bool = False
    base: str = ""
    """The address of a node to send it to; empty: whichever the client was given."""


class Reply(msgspec.Struct, frozen=True):
    """One HTTP answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    at: float = 0.0
    """When all of it had arrived, on the monotonic clock."""


class Call(msgspec.Struct, Generic[T], frozen=True):
    """A request, how its final reply is read, and the keys it must stay in order with if it writes."""

    request: Request
    read: Callable[[Reply], T]
    keys: tuple[Key, ...] = ()
    some: Callable[[Sequence[int]], "Call[T]"] | None = None
    """Of a call about many: the same about some of them, by number. Its result is a list, parallel to what it is about,
    and a 503 may have brought a part of that."""


class EncodedArm(msgspec.Struct, frozen=True, gc=False):
    """An arm that was checked, as bytes; many of them are joined into one request without being encoded again."""

    id: str
    data: bytes
    conditional: bool
    """It has `if_generation`: sent twice, the second finds the first's generation and reports a conflict."""


# ---- values


def check_id(id: str) -> str:
    if not isinstance(id, str):
        raise TypeError(f"an id is a str, not {type(id).__name__}")
    if not _ID.fullmatch(id) or id in (".", "..") or len(id.encode()) > 256:
        raise ValueError(f"not a timer id: {id!r} (1..256 bytes of UTF-8, no control characters, not '.' or '..')")
    return id


def check_type(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a type's name is a str, not {type(name).__name__}")
    if not _TYPE.fullmatch(name):
        raise ValueError(f"not a type name: {name!r}")
    return name


def listed(values: Iterable[str], what: str) -> list[str]:
    """As a list. Refuses a string, which would be taken for its characters."""
    if isinstance(values, (str, bytes)):
        raise TypeError(f"expected a list of {what}, got {type(values).__name__}")
    return list(values)


class _ArmItem(msgspec.Struct, omit_defaults=True):
    id: str
    type: str
    fire_at: int | None = None
    delay: int | str | None = None
    payload: Any = None
    mode: str = "replace"
    if_generation: int | None = None
    request: "_Request | None" = None


class _Request(msgspec.Struct, omit_defaults=True):
    url: str
    method: str = "POST"
    headers: Mapping[str, str] = {}
    body: str | None = None
    body_base64: str | None = None
    json: Any = msgspec.UNSET


_encode = msgspec.json.Encoder().encode


def encode_json(value: Any) -> bytes:
    """JSON, refusing NaN and infinities: the encoder writes them as null, and null is another value."""
    data = _encode(value)
    if b"null" in data:
        _refuse_non_finite(msgspec.to_builtins(value))
    return data


def _refuse_non_finite(value: Any) -> None:
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError("NaN and infinity are not JSON")
    elif isinstance(value, dict):
        for inner in value.values():
            _refuse_non_finite(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _refuse_non_finite(inner)


def encode_arm(arm: Arm) -> EncodedArm:
    if not isinstance(arm, Arm):
        raise TypeError(f"expected Arm, got {type(arm).__name__}")
    check_id(arm.id)
    check_type(arm.type)
    if arm.mode not in _MODES:
        raise ValueError(f"not a mode: {arm.mode!r}")
    if arm.if_generation is not None:
        if not isinstance(arm.if_generation, int):
            raise TypeError(f"if_generation is an int, not {type(arm.if_generation).__name__}")
        if not 0 <= arm.if_generation < 2**53:
            raise ValueError("if_generation is 0..2^53-1")
    item = _ArmItem(
        arm.id,
        arm.type,
        None if arm.fire_at is None else fire_at_ms(arm.fire_at),
        None if arm.delay is None else duration(arm.delay),
        arm.payload,
        arm.mode,
        arm.if_generation,
        None if arm.request is None else _request(arm.request),
    )
    return EncodedArm(arm.id, encode_json(item), arm.if_generation is not None)


def _request(given: CallbackRequest) -> _Request:
    if not isinstance(given, CallbackRequest):
        raise TypeError(f"expected CallbackRequest, got {type(given).__name__}")
    item = _Request(given.url, given.method, given.headers, json=given.json)
    if isinstance(given.body, bytes):
        item.body_base64 = base64.b64encode(given.body).decode()
    elif given.body is not None:
        item.body = given.body
    return item


# ---- reading replies


class _Problem(msgspec.Struct):
    type: str = ""
    detail: str = ""
    errors: list[ItemError] = []


class _Armed(msgspec.Struct):
    results: list[ArmResult] = []


class _Some(msgspec.Struct):
    results: list[Any] = []


def problem_of(reply: Reply) -> TimerdError:
    """The error that a reply which is no success stands for."""
    if "problem+json" in reply.headers.get("content-type", ""):
        try:
            doc = msgspec.json.decode(reply.body, type=_Problem)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        else:
            if PROBLEM_PREFIX in doc.type:
                name = doc.type.rpartition("/")[2]
                return problem(name, reply.status, doc.detail, doc.errors, retry_after(reply))
    return UnexpectedAnswer(f"status {reply.status} without a problem of timerd's")


def retry_after(reply: Reply) -> float | None:
    """Seconds of `Retry-After`. timerd sends seconds; a date would need a wall clock and counts as nothing said."""
    text = reply.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None


def expect(reply: Reply, type: type[T]) -> T:
    """The body of a success as `type`; raises what the reply says otherwise."""
    if not 200 <= reply.status < 300:
        raise problem_of(reply)
    return decode(reply, type)


def decode(reply: Reply, type: type[T]) -> T:
    try:
        return msgspec.json.decode(reply.body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnexpectedAnswer(f"an answer of another shape: {error}") from error


def absent(error: TimerdError, name: str) -> bool:
    return isinstance(error, ProblemError) and error.name == name


# ---- requests

HEALTHZ: Final = Request("GET", "/healthz")


def arm_request(items: Sequence[EncodedArm]) -> Request:
    body = b'{"timers":[' + b",".join([item.data for item in items]) + b"]}"
    return Request("POST", "/v1/timers", body, write=True)


def read_armed(reply: Reply, count: int) -> list[ArmResult]:
    """The results of an arm, also of one that was stored only in part (503 with results)."""
    results = decode(reply, _Armed).results
    if len(results) != count:
        raise UnexpectedAnswer(f"{len(results)} results for {count} timers")
    return results


def is_partial(reply: Reply) -> bool:
    """Whether a refusal says what became of each item, as a 503 does of which some were stored."""
    return bool(decode(reply, _Some).results)
