"""Problems: every way a request can fail, in one table, and how a failure is written (RFC 9457).

The table below is the only place in the API where a problem's name stands. Routes raise `Problem`; refusals of the
node come in by name through `refused`. A problem is always `application/problem+json`, whatever the request accepts.

`not-found`, `method-not-allowed` and `internal-error` are no part of the timer contract: they say that no route was
met, or that timerd itself is at fault.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec
from starlette.responses import Response

from timerd.engine.message import Refused

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "https://timerd.dev/problems/"
MAX_ERRORS: Final = 100  # of 10,000 bad items a caller needs the first few; the answer stays small


class Kind(NamedTuple):
    """One row of the table."""

    name: str
    status: int
    title: str


VALIDATION: Final = Kind("validation", 422, "Something in the request is not as it must be")
UNKNOWN_TYPE: Final = Kind("unknown-type", 422, "There is no timer type of this name")
HORIZON_EXCEEDED: Final = Kind("horizon-exceeded", 422, "The fire time lies too far ahead")
TARGET_FORBIDDEN: Final = Kind("target-forbidden", 422, "Requests to this address are not allowed")
BODY_TOO_LARGE: Final = Kind("body-too-large", 413, "The request body is too large")
UNSUPPORTED_MEDIA_TYPE: Final = Kind("unsupported-media-type", 415, "The request body is of no supported type")
MALFORMED: Final = Kind("malformed", 400, "The request can't be read")
TIMER_NOT_FOUND: Final = Kind("timer-not-found", 404, "There is no timer of this id")
KEY_NOT_FOUND: Final = Kind("key-not-found", 404, "There is no API key of this id")
TYPE_NOT_FOUND: Final = Kind("type-not-found", 404, "There is no timer type of this name")
GENERATION_MISMATCH: Final = Kind("generation-mismatch", 412, "The timer is not at the generation asked for")
TYPE_IN_USE: Final = Kind("type-in-use", 409, "Timers of this type are live")
TIMER_DEAD: Final = Kind("timer-dead", 409, "The timer is a dead letter")
SHARDS_MOVING: Final = Kind("shards-moving", 409, "The last change of the number of shards is still under way")
SHARDS_FIXED: Final = Kind("shards-fixed", 409, "The number of shards can't be changed")
EXPIRED: Final = Kind("expired", 409, "The request came in after its own expiry")
UNAUTHORIZED: Final = Kind("unauthorized", 401, "A valid key is needed")
FORBIDDEN: Final = Kind("forbidden", 403, "This is not allowed")
RATE_LIMITED: Final = Kind("rate-limited", 429, "This key asks for more than it may")
OVERLOADED: Final = Kind("overloaded", 503, "There is more to do than room to do it; try again")
SHARD_UNAVAILABLE: Final = Kind("shard-unavailable", 503, "Not to be had just now; try again")
STORAGE_FULL: Final = Kind("storage-full", 507, "There is no room to store this")
NOT_FOUND: Final = Kind("not-found", 404, "There is nothing at this path")
METHOD_NOT_ALLOWED: Final = Kind("method-not-allowed", 405, "This path does not know this method")
INTERNAL_ERROR: Final = Kind("internal-error", 500, "timerd failed at this request")

KINDS: Final[Mapping[str, Kind]] = {kind.name: kind for kind in tuple(globals().values()) if isinstance(kind, Kind)}

RETRY_AFTER_S: Final = 1  # a queue that is full now has usually moved on by then
_RETRYABLE: Final = (OVERLOADED, SHARD_UNAVAILABLE)


class Fault(NamedTuple):
    """One thing wrong with a request.

    `pointer` is a JSON pointer into the body, or the plain name of a header, query or path parameter.
    """

    pointer: str
    detail: str
    kind: Kind = VALIDATION


class FaultView(msgspec.Struct, frozen=True):
    """One entry of a problem's `errors`."""

    pointer: str
    detail: str


class ProblemView(msgspec.Struct, frozen=True, omit_defaults=True, rename={"type_": "type"}):
    """A problem as it is sent."""

    type_: str
    title: str
    status: int
    detail: str
    errors: list[FaultView] | msgspec.UnsetType = msgspec.UNSET


class Problem(Exception):
    """A request that is answered with a problem, and of which nothing was done."""

    def __init__(
        self,
        kind: Kind,
        detail: str,
        faults: Sequence[Fault] = (),
        *,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{kind.name}: {detail}")
        self.kind = kind
        self.detail = detail
        self.faults = faults
        self.headers = dict(headers or {})
        if retry_after_s is None and kind in _RETRYABLE:
            retry_after_s = RETRY_AFTER_S
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)

    def response(self) -> Response:
        view = ProblemView(
            type_=TYPE_PREFIX + self.kind.name,
            title=self.kind.title,
            status=self.kind.status,
            detail=self.detail,
            errors=[FaultView(f.pointer, f.detail) for f in self.faults[:MAX_ERRORS]] or msgspec.UNSET,
        )
        return Response(msgspec.json.encode(view), self.kind.status, self.headers, MEDIA_TYPE)


def faulty(faults: Sequence[Fault]) -> Problem:
    """The problem that these faults (at least one) make: a single one gives its own kind, several are `validation`."""
    first = faults[0]
    kind = first.kind if len(faults) == 1 else VALIDATION
    detail = first.detail if not first.pointer else f"{first.pointer}: {first.detail}"
    if len(faults) > 1:
        detail += f" (and {len(faults) - 1} more)"
    return Problem(kind, detail, faults)


def refused(refusal: Refused) -> Problem:
    """The node's refusal as a problem. A name outside the table is a programmer's error."""
    kind = KINDS[refusal.name]
    faults = [Fault(pointer, detail) for pointer, detail in refusal.errors]
    return Problem(kind, refusal.detail, faults, retry_after_s=refusal.retry_after_s)


T = TypeVar("T")


def granted(answer: T | Refused) -> T:
    """The node's answer, unless it is a refusal: that is raised as a Problem."""
    if isinstance(answer, Refused):
        raise refused(answer)
    return answer


def away(items: int, why: str = "") -> Problem:
    """So many items were not acknowledged, since their owners can't be had, or for what one of these says. An owner
    whose log has not answered may have stored them, or store them yet."""
    why = why or "an owner is away"
    said = f"{items} not acknowledged: {why}. What became of that is not known; sending it again is safe"
    return Problem(SHARD_UNAVAILABLE, said)


def partly(items: int, done: msgspec.Struct, why: str = "") -> Response:
    """The same, with what was done about the other items: a problem that has the members of the answer as well."""
    response = away(items, why).response()
    body = msgspec.json.decode(bytes(response.body), type=dict[str, msgspec.Raw])
    told = {name: value for name, value in msgspec.structs.asdict(done).items() if value is not msgspec.UNSET}
    headers = {"Retry-After": response.headers["retry-after"]}
    return Response(msgspec.json.encode({**body, **told}), response.status_code, headers, MEDIA_TYPE)


def pointer_token(name: str) -> str:
    """One token of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
