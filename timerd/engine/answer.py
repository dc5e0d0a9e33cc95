"""What a processor's answer means for the timers of its batch.

A pure reading of one HTTP exchange by the table in the contract. It does not know what becomes of a timer afterwards
(flow and shard decide that), only what was said. The rule behind the table: what can't be understood is a retry,
never a success. A body that claims to be JSON and is not what it should be fails the batch as a whole; one item that
is wrong in itself makes that item retry and leaves the others as they say.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from timerd.engine.instant import parse_duration, parse_http_date, parse_instant
from timerd.engine.message import ItemResult
from timerd.engine.now import Now

ERROR_BYTES_MAX: Final = 200  # of `last_error`, by the contract
PAUSE_MS_MIN: Final = 1_000  # a shorter Retry-After (0 is usual) says that one should come again, and not when
_DOWN: Final = frozenset({502, 503, 504})  # what a proxy says for a target that is not there
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]+")


class Limits(msgspec.Struct, frozen=True):
    """The service's limits that an answer is held against."""

    max_payload_bytes: int = 64 * 1024
    max_horizon_ms: int = 315_360_000_000
    max_retry_after_ms: int = 3_600_000


class Accepted(msgspec.Struct, frozen=True):
    """The batch was taken. Every member that `results` does not name is ok."""

    results: dict[str, ItemResult] = {}
    unnamed: int = 0
    """Results for ids that are not in the batch; ignored."""


class Failed(msgspec.Struct, frozen=True):
    """The batch as a whole was not taken."""

    error: str
    """At most `ERROR_BYTES_MAX` bytes."""
    suspect: bool = False
    """A sign that the target is down, and not that something in the batch is bad."""
    sent: bool = True
    """False: nothing was sent, so nothing in the batch can be the cause."""
    unknown: bool = False
    """No answer came, so the processor may have seen the batch."""
    retry_after_ms: int | None = None
    """The target asked for this long a pause; or we do, see `ours`."""
    no_retry: bool = False
    """The target asked not to be sent these timers again."""
    refused: bool = False
    """The target says that it is given too much (429, 503)."""
    gone: bool = False
    """The target is not there any more: nothing should be sent to it until an operator says so."""
    ours: bool = False
    """Nothing was sent for a reason of ours, which says nothing of the target."""

    @property
    def wants_pause(self) -> bool:
        """Whether the target asked for a pause that is one, whatever in the batch may have been the cause."""
        return self.retry_after_ms is not None and self.retry_after_ms >= PAUSE_MS_MIN


Outcome = Accepted | Failed


class _Item(msgspec.Struct, gc=False):
    # Only `id` has a type: anything else that is wrong concerns its own item, not the whole answer.
    id: str
    status: Any = None
    fire_at: Any = None
    delay: Any = None
    payload: msgspec.Raw = msgspec.Raw()
    error: Any = None


class _BatchItemFailure(msgspec.Struct, gc=False):
    itemIdentifier: str


class _Body(msgspec.Struct):
    results: list[_Item] | msgspec.UnsetType = msgspec.UNSET
    batchItemFailures: list[_BatchItemFailure] | msgspec.UnsetType = msgspec.UNSET


_decode: Final = msgspec.json.Decoder(_Body).decode


def read_answer(
    now: Now,
    members: Collection[str],
    limits: Limits,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    overlong: bool = False,
    error: str | None = None,
    detail: str = "",
) -> Outcome:
    """The outcome of one exchange: `status`, `headers` (lower-case names) and `body`, or else `error`.

    `members` are the ids of the batch; give something with a fast `in`. An id named twice is as it is named last.
    """
    if status is None or error is not None:
        error = error or "lost"
        if error == "forbidden":
            return Failed(clip(detail or error), sent=False, no_retry=True)
        sent = error != "connect"
        return Failed(clip(f"{error}: {detail}" if detail else error), suspect=True, sent=sent, unknown=sent)
    headers = headers or {}
    if 200 <= status < 300:
        if not body or not _claims_json(headers.get("content-type", "")):
            return Accepted()
        if overlong:
            return Failed(f"HTTP {status}: the answer is too long")
        return _read_body(now, members, limits, status, body)
    said = _CONTROLS.sub(" ", body[:ERROR_BYTES_MAX].decode(errors="replace")).strip()
    text = clip(f"HTTP {status}: {said}" if said else f"HTTP {status}")
    if 300 <= status < 400 and (where := _CONTROLS.sub(" ", headers.get("location", "")[:ERROR_BYTES_MAX])):
        text = clip(f"HTTP {status} to {where}; redirects are not followed")
    if status == 410:
        return Failed(text, gone=True)
    if headers.get("timerd-no-retry", "").strip().lower() == "true":
        return Failed(text, no_retry=True)
    if status in (429, 503):
        wait_ms = _read_retry_after(now, headers.get("retry-after", ""))
        if wait_ms is not None:
            wait_ms = min(wait_ms, limits.max_retry_after_ms)
            return Failed(text, suspect=status in _DOWN, refused=True, retry_after_ms=wait_ms)
        return Failed(text, suspect=status in _DOWN, refused=True)
    return Failed(text, suspect=status in _DOWN)


def read_callback_answer(
    now: Now,
    limits: Limits,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    error: str | None = None,
    detail: str = "",
) -> Outcome:
    """The outcome of a callback: the same table, but any 2xx is success, whatever is in its body."""
    if status is not None and error is None and 200 <= status < 300:
        return Accepted()
    return read_answer(now, (), limits, status=status, headers=headers, body=body, error=error, detail=detail)


def clip(text: str) -> str:
    """At most `ERROR_BYTES_MAX` bytes of it, cut between two characters."""
    data = text.encode(errors="replace")
    return text if len(data) == len(text) <= ERROR_BYTES_MAX else data[:ERROR_BYTES_MAX].decode(errors="ignore")


def _claims_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type in ("application/json", "text/json") or media_type.endswith("+json")


def _read_body(now: Now, members: Collection[str], limits: Limits, status: int, body: bytes) -> Outcome:
    try:
        body.decode()  # raw payloads are passed over without a look at their text, and handed on as they are
        answer = _decode(body)
        nothing_known = answer.results is answer.batchItemFailures is msgspec.UNSET
        empty = nothing_known and msgspec.json.decode(body) == {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        return Failed(clip(f"HTTP {status} with a body that can't be read: {wrong}"))
    results: dict[str, ItemResult] = {}
    unnamed = 0
    if answer.results is not msgspec.UNSET:
        if answer.batchItemFailures is not msgspec.UNSET:
            return Failed(f"HTTP {status} with both results and batchItemFailures")
        # Rounded up: a delay counted from before now could end early.
        now_ms = -(-now.wall_us // 1000)
        latest = now_ms + limits.max_horizon_ms
        for item in answer.results:
            if item.id not in members:
                unnamed += 1
            elif item.status == "rearm":
                results[item.id] = _rearm(item, now_ms, latest, limits.max_payload_bytes)
            elif item.status == "ok":
                results.pop(item.id, None)
            elif item.status in ("retry", "drop", "dead"):
                text = item.error if isinstance(item.error, str) else ""
                results[item.id] = ItemResult(item.status, error=clip(text))
            else:
                results[item.id] = ItemResult("retry", error="the answer has an unknown status for it")
    elif answer.batchItemFailures is not msgspec.UNSET:
        failed = ItemResult("retry", error="named in batchItemFailures")
        for failure in answer.batchItemFailures:
            if failure.itemIdentifier in members:
                results[failure.itemIdentifier] = failed
            else:
                unnamed += 1
    elif not empty:
        return Failed(f"HTTP {status} with a body of another shape")
    return Accepted(results, unnamed)


def _rearm(item: _Item, now_ms: int, latest: int, max_payload_bytes: int) -> ItemResult:
    """The re-arm that an item asks for, or the retry that an invalid one is."""
    try:
        if item.delay is None:
            # The plain integer is what busy processors send; everything else, and every doubt, takes the long way.
            fire_at = item.fire_at
            if type(fire_at) is not int or fire_at < now_ms:
                fire_at = parse_instant(fire_at)
        elif item.fire_at is None:
            fire_at = now_ms + parse_duration(item.delay)
        else:
            return ItemResult("retry", error="re-arm has both fire_at and delay")
    except ValueError as wrong:
        field = "delay" if item.fire_at is None and item.delay is not None else "fire_at"
        return ItemResult("retry", error=f"re-arm: {field} {wrong}")
    if fire_at > latest:
        return ItemResult("retry", error="re-arm: beyond the horizon")
    raw = item.payload
    if not raw:
        return ItemResult("rearm", fire_at)
    payload = bytes(raw)
    if len(payload) > max_payload_bytes:
        return ItemResult("retry", error="re-arm: payload too large")
    return ItemResult("rearm", fire_at, payload)


def _read_retry_after(now: Now, value: str) -> int | None:
    """Milliseconds, or None for nonsense. A date that has passed is 0."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return int(value[:18]) * 1000  # 18 digits are beyond any cap, and int() refuses thousands of them
    try:
        return max(0, parse_http_date(value) - now.wall_ms)
    except ValueError:
        return None
