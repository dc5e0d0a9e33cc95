"""Receiving: a delivery becomes a `Batch`, and what became of its timers becomes the answer. For any web framework.

    batch = receiver.receive(request.headers, body)
    return reply([retry(timer.id, error="...") for timer in batch.timers if ...])

A timer that an answer does not name has succeeded. Signatures follow Standard Webhooks; see `_signature`.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from urllib.parse import unquote

import msgspec

from timerd_client._errors import TimerdError
from timerd_client._instants import Duration, duration, fire_at_ms
from timerd_client._protocol import check_id, encode_json
from timerd_client._signature import InvalidSignature, parse_secret, verify

Headers = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]


class InvalidDelivery(TimerdError):
    """The body is no delivery of timerd's."""


class DueTimer(msgspec.Struct, frozen=True):
    """A timer that is due. The same (id, generation) may come twice; `possible_duplicate` says when that is likely."""

    id: str
    generation: int
    fire_at: datetime
    attempt: int = 1
    possible_duplicate: bool = False
    payload: Any = None


class Batch(msgspec.Struct, frozen=True):
    """One delivery. `batch_id` is the same for every attempt with the same members."""

    type: str
    batch_id: str
    dispatched_at: datetime
    timers: list[DueTimer]


class Callback(msgspec.Struct, frozen=True):
    """A scheduled callback that came in, as far as timerd speaks of it; its body is the caller's own.

    The same (id, generation) may come twice; `possible_duplicate` says when that is likely.
    """

    id: str
    generation: int
    attempt: int
    possible_duplicate: bool
    webhook_id: str
    """The same in every attempt of the same generation: a key to know repeats by."""


class ItemResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one timer of a batch; made by `ok`, `retry`, `drop`, `dead` and `rearm`."""

    id: str
    status: Literal["ok", "retry", "drop", "dead", "rearm"]
    fire_at: int | None = None
    delay: int | str | None = None
    payload: Any = msgspec.UNSET
    error: str | None = None


def ok(id: str) -> ItemResult:
    """It is done."""
    return ItemResult(check_id(id), "ok")


def retry(id: str, *, error: str | None = None) -> ItemResult:
    """Deliver it again, later; this counts as one of its attempts."""
    return ItemResult(check_id(id), "retry", error=error)


def drop(id: str) -> ItemResult:
    """Forget it; it is counted as dropped."""
    return ItemResult(check_id(id), "drop")


def dead(id: str, error: str) -> ItemResult:
    """Give it up: it becomes a dead letter."""
    return ItemResult(check_id(id), "dead", error=error)


def rearm(
    id: str, *, fire_at: datetime | None = None, delay: Duration | None = None, payload: Any = msgspec.UNSET
) -> ItemResult:
    """It is done, and comes again. It keeps its payload unless there is a new one."""
    if (fire_at is None) == (delay is None):
        raise ValueError("give fire_at or delay")
    return ItemResult(
        check_id(id),
        "rearm",
        fire_at=None if fire_at is None else fire_at_ms(fire_at),
        delay=None if delay is None else duration(delay),
        payload=payload,
    )


def reply(results: Iterable[ItemResult] | None = None) -> tuple[int, dict[str, str], bytes]:
    """The answer to a delivery: status, headers, body. What is `ok` need not be said and is left out."""
    given = list(results or ())
    for answer in given:
        if not isinstance(answer, ItemResult):
            raise TypeError(f"expected an answer of ok, retry, drop, dead or rearm, got {type(answer).__name__}")
    named = [answer for answer in given if answer.status != "ok"]
    body = encode_json({"results": named}) if named else b"{}"
    return 200, {"content-type": "application/json"}, body


class Receiver:
    """Reads deliveries. With `secrets` (one or several, for rotation) it takes only what is signed with one of them.

    `clock` gives Unix seconds; it is compared with the timestamp of a delivery, within `tolerance` seconds.
    """

    def __init__(
        self,
        secrets: str | Sequence[str] | None = None,
        *,
        tolerance: float = 300.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        given = [secrets] if isinstance(secrets, str) else secrets
        if given is not None and not given:
            raise ValueError("secrets is empty; None means that deliveries are not signed")
        self._secrets = None if given is None else [parse_secret(secret) for secret in given]
        self._tolerance = tolerance
        self._clock = clock

    def receive(self, headers: Headers, body: bytes) -> Batch:
        """The batch in a delivery. Raises InvalidSignature (answer 401) or InvalidDelivery (answer 400)."""
        given = _lower(headers)
        if self._secrets is not None:
            verify(self._secrets, given, body, now=self._clock(), tolerance=self._tolerance)
        try:
            batch = msgspec.json.decode(body, type=Batch)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidDelivery(str(error)) from error
        if given.get("webhook-id", batch.batch_id) != batch.batch_id:
            raise InvalidDelivery("webhook-id names another batch than the body")
        if any(at.utcoffset() is None for at in [batch.dispatched_at, *[timer.fire_at for timer in batch.timers]]):
            raise InvalidDelivery("a time without an offset")
        return batch

    def receive_callback(self, headers: Headers, body: bytes) -> Callback:
        """What a scheduled callback says of itself; any answer of 2xx says that it is done.

        Raises InvalidSignature (answer 401) or InvalidDelivery (answer 400).
        """
        given = _lower(headers)
        if self._secrets is not None:
            verify(self._secrets, given, body, now=self._clock(), tolerance=self._tolerance)
        try:
            return Callback(
                unquote(given["timerd-timer-id"], errors="strict"),
                int(given["timerd-generation"]),
                int(given["timerd-attempt"]),
                given.get("timerd-possible-duplicate") == "true",
                given["webhook-id"],
            )
        except (KeyError, ValueError) as error:
            raise InvalidDelivery(f"no callback of timerd's: {error!r}") from error


def _lower(headers: Headers) -> dict[str, str]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return {_text(name).lower(): _text(value) for name, value in pairs}


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


__all__ = [
    "Batch",
    "Callback",
    "DueTimer",
    "InvalidDelivery",
    "InvalidSignature",
    "ItemResult",
    "Receiver",
    "dead",
    "drop",
    "ok",
    "rearm",
    "reply",
    "retry",
]
