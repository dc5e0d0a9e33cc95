"""The shapes on the wire as a caller writes them down from the contract, apart from the product's own.

Values only. Instants are written and read here by the standard library, since the product's way is under test.
"""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from timerd.engine.message import ArmResult, TimerView
from timerd.engine.timer import TimerType

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def from_instant(ms: int) -> str:
    """Unix milliseconds as the contract writes them."""
    moment = _EPOCH + timedelta(milliseconds=ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_instant(text: str) -> int:
    """Unix milliseconds of what the contract writes."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)


class ResultForm(msgspec.Struct):
    """What became of an item."""

    id: str
    status: str
    generation: int
    fire_at: str | None
    previous_fire_at: str | None = None

    def value(self) -> ArmResult:
        previous = None if self.previous_fire_at is None else to_instant(self.previous_fire_at)
        return ArmResult(self.status, self.generation, to_instant(self.fire_at) if self.fire_at else 0, previous)


class ArmForm(msgspec.Struct):
    now: str
    armed: int
    conflicts: int
    results: list[ResultForm] | None = None


class CancelItemForm(msgspec.Struct):
    id: str
    status: str
    in_flight: bool


class CancelForm(msgspec.Struct):
    cancelled: int
    results: list[CancelItemForm]


class DeleteForm(msgspec.Struct):
    id: str
    generation: int
    in_flight: bool


class TimerForm(msgspec.Struct):
    """A timer as it is shown."""

    id: str
    type: str
    state: str
    fire_at: str
    generation: int
    attempt: int
    created_at: str
    updated_at: str
    shard: int
    payload: Any = msgspec.UNSET
    request: Any = msgspec.UNSET
    last_error: str | None = None
    next_attempt_at: str | None = None

    def value(self) -> TimerView:
        return TimerView(
            self.id,
            self.type,
            self.state,
            to_instant(self.fire_at),
            self.generation,
            self.attempt,
            to_instant(self.created_at),
            to_instant(self.updated_at),
            self.shard,
            _payload(self.payload, self.request),
            self.last_error,
        )


class PageForm(msgspec.Struct):
    timers: list[TimerForm]
    next_page_token: str | None = None


class LetterForm(msgspec.Struct):
    """A dead letter."""

    id: str
    type: str
    generation: int
    fire_at: str
    attempts: int
    last_error: str
    died_at: str
    payload: Any = msgspec.UNSET
    request: Any = msgspec.UNSET

    def value(self) -> TimerView:
        at, died_at = to_instant(self.fire_at), to_instant(self.died_at)
        payload = _payload(self.payload, self.request)
        attempts = self.attempts
        return TimerView(
            self.id, self.type, "dead", at, self.generation, attempts, 0, 0, 0, payload, self.last_error, None, died_at
        )


class DeadPageForm(msgspec.Struct):
    dead_letters: list[LetterForm]
    next_page_token: str | None = None


class CountForm(msgspec.Struct):
    """How many dead letters were replayed, or purged."""

    replayed: int = 0
    purged: int = 0

    def __iter__(self) -> Any:
        return iter((self.replayed, self.purged))


class TypeForm(msgspec.Struct, kw_only=True):
    name: str
    url: str = ""
    kind: str
    batch_size: int
    max_in_flight: int
    max_per_second: float | None
    retry: dict[str, Any]
    misfire: dict[str, Any]
    state: str


class StatsForm(msgspec.Struct):
    types: dict[str, dict[str, Any]]


class ErrorForm(msgspec.Struct):
    pointer: str
    detail: str


class ProblemForm(msgspec.Struct):
    type: str
    title: str
    status: int
    detail: str
    errors: list[ErrorForm] = []


def type_body(type: TimerType) -> dict[str, Any]:
    """What a `PUT` of the type sends."""
    retry = type.retry
    target = {"kind": type.kind} if type.kind == "callback" else {"url": type.url}
    return {
        **target,
        "batch_size": type.batch_size,
        "max_lag": f"{type.max_lag_ms}ms",
        "request_timeout": type.request_timeout_ms / 1000,
        "max_in_flight": type.max_in_flight,
        "max_per_second": type.max_per_second,
        "retry": {
            "max_attempts": retry.max_attempts,
            "min_backoff": f"{retry.min_backoff_ms}ms",
            "max_backoff": f"{retry.max_backoff_ms}ms",
            "multiplier": retry.multiplier,
            "jitter": retry.jitter,
        },
        "misfire": {
            "policy": type.misfire.policy,
            "grace": f"{type.misfire.grace_ms}ms",
            "max_per_second": type.misfire.max_per_second,
        },
        "signing_secrets": list(type.signing_secrets),
        "state": type.state,
    }


def request_body(payload: bytes) -> dict[str, Any]:
    """How a caller writes the request of a callback that is kept like this."""
    method, url, headers, form, body = msgspec.msgpack.decode(payload)
    shown = base64.b64encode(body).decode() if form == "body_base64" else body.decode()
    return {"url": url, "method": method, "headers": dict(headers), form: shown}


def _payload(shown: Any, request: Any) -> bytes | None:
    """A payload's bytes. All payloads of a run are written without spaces, as is done here."""
    if request is not msgspec.UNSET:
        (form,) = request.keys() - {"url", "method", "headers"}
        body = base64.b64decode(request[form]) if form == "body_base64" else request[form].encode()
        return msgspec.msgpack.encode([request["method"], request["url"], list(request["headers"].items()), form, body])
    return None if shown is msgspec.UNSET else msgspec.json.encode(shown)
