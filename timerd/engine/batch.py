"""A batch, and how it looks on the wire: its identity, its body, its headers.

Identity is derived, never stored: the same members have the same batch id in every attempt, after a restart too, so
a processor can use it as an idempotency key. What a batch does not know: its target, its secrets (signing is the
shell's), and where payloads lie that are kept apart; those are given in.

Encoding is the busiest code of a delivery; it makes one small struct a timer and lets the codec do the rest.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from xxhash import xxh3_128_hexdigest

from timerd.engine.instant import format_instant, format_instants
from timerd.engine.timer import BodyRef, Timer

ANSWER_BYTES_MIN: Final = 1024 * 1024  # an answer may always be this long,
ANSWER_BYTES_A_TIMER: Final = 1024  # or this much for each timer and its payload: a result that re-arms has to fit

OWN_HEADERS: Final = frozenset(
    {
        "content-type",
        "content-length",
        "transfer-encoding",
        "user-agent",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
        "idempotency-key",
    }
)
"""Lower-case names that a type's own headers can't replace: the contract promises their values."""


class Batch(msgspec.Struct, frozen=True):
    """Timers that are handed over together, in one attempt."""

    batch_no: int
    """Names this attempt within the process."""
    type: str
    timers: list[Timer]
    """At least one; no id twice."""
    flagged: frozenset[str] = frozenset()
    """Ids that may have been delivered before."""
    tried_at: int = 0
    """Boot ms of the oldest last attempt among them; 0 = none was tried."""
    whole: int = 1
    """The largest batch that they may travel in."""


class _Timer(msgspec.Struct, gc=False):
    id: str
    generation: int
    fire_at: str
    attempt: int
    possible_duplicate: bool | msgspec.UnsetType = msgspec.UNSET
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Body(msgspec.Struct, gc=False):
    type: str
    batch_id: str
    dispatched_at: str
    timers: list[_Timer]


_encode: Final = msgspec.json.Encoder().encode


def batch_id(timers: Sequence[Timer]) -> str:
    """32 hex digits that depend on the set of (id, generation) alone."""
    # An id holds no control character, so the join can be taken apart in one way only.
    members = sorted([f"{timer.generation} {timer.id}" for timer in timers])
    return xxh3_128_hexdigest("\n".join(members).encode())


def encode_body(batch: Batch, batch_id: str, dispatched_at_ms: int, bodies: Mapping[str, bytes] | None = None) -> bytes:
    """The body of the POST. `bodies` holds, by id, the payload of every member whose payload is a BodyRef."""
    raw, unset = msgspec.Raw, msgspec.UNSET
    timers = batch.timers
    fire_ats = format_instants([timer.fire_at for timer in timers])
    payloads: list[Any] = [timer.payload for timer in timers]
    if bodies:
        payloads = [bodies[t.id] if isinstance(t.payload, BodyRef) else t.payload for t in timers]
    shown = [
        _Timer(timer.id, timer.generation, fire_at, 1, unset, unset if payload is None else raw(payload))
        for timer, fire_at, payload in zip(timers, fire_ats, payloads, strict=True)
    ]
    if batch.flagged or [timer for timer in timers if timer.failure is not None]:
        for timer, each in zip(timers, shown, strict=True):
            each.attempt = 1 if timer.failure is None else timer.failure.attempts + 1
            each.possible_duplicate = True if timer.id in batch.flagged else unset
    return _encode(_Body(batch.type, batch_id, format_instant(dispatched_at_ms), shown))


def plain_headers(batch_id: str, timestamp_s: int, version: str, own: Mapping[str, str]) -> dict[str, str]:
    """The headers of the POST without a signature. `own` are the type's."""
    headers = {name: value for name, value in own.items() if name.lower() not in OWN_HEADERS}
    headers["Content-Type"] = "application/json"
    headers["User-Agent"] = f"timerd/{version}"
    headers["webhook-id"] = batch_id
    headers["webhook-timestamp"] = str(timestamp_s)
    headers["Idempotency-Key"] = f'"{batch_id}"'
    return headers


def answer_bytes_max(timers: Sequence[Timer]) -> int:
    """Up to here an answer to these timers is read."""
    payloads = 0
    for timer in timers:
        payload = timer.payload
        if payload is not None:
            payloads += payload.length if isinstance(payload, BodyRef) else len(payload)
    return max(ANSWER_BYTES_MIN, ANSWER_BYTES_A_TIMER * len(timers) + payloads)
