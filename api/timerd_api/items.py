"""Items: from the body of an arm to the timers it asks for, or to a list of everything that is wrong with it.

This is where most of the API's time goes, so there are three ways through, each taken when the one before gives up:
*plain* (id, type, time and payload only, all valid) looks at all items together; *careful* looks at one after the
other, whatever they hold; *separate* decodes one after the other as well, so that an item of the wrong shape does not
hide what is wrong with the rest. They accept the same requests and make the same timers of them.

Invariants: either every item becomes a timer, or Problem is raised and names the bad ones. A timer's payload is a
copy, never a view that would keep the whole request alive; its type is the one string that the type itself holds, so
that a million timers don't hold a million copies of its name. Duplicate ids are left in order; the engine decides.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from timerd.engine.address import Targets
from timerd.engine.callback import encode_request
from timerd.engine.instant import parse_duration, parse_instant
from timerd.engine.message import Condition
from timerd.engine.now import Now
from timerd.engine.timer import MIN_FIRE_AT, Timer, TimerType
from timerd_api.body import Form
from timerd_api.problem import (
    HORIZON_EXCEEDED,
    MALFORMED,
    MAX_ERRORS,
    UNKNOWN_TYPE,
    Fault,
    Problem,
    faulty,
    pointer_token,
)
from timerd_api.requests import callback_request
from timerd_api.schema import NO_PAYLOAD, ArmBody, ArmItem, ArmRequest, PlainRequest, RawRequest
from timerd_api.values import TYPE_NAME_FAULT, id_fault, ids_are_plain, is_type_name

Wanted = tuple[list[Timer], list[Condition] | None]
"""What a request asks for; conditions are parallel to the timers, or None if no item has one."""

_PLAIN: Final = Form(PlainRequest)
_CAREFUL: Final = Form(ArmRequest)
_SEPARATE: Final = Form(RawRequest)
_ITEM: Final = Form(ArmItem)
_NO_CONDITION: Final = Condition()
_NO_LIST: Final = 'expected {"timers": [...]}; one timer: PUT /v1/timers/{id}'
_UNIT_DOUBT_MS: Final = 20 * 366 * 86_400_000  # read in the right unit, what people arm lies within twenty years of now
_PACKED_BYTES_MAX: Final = 9  # times its JSON: what MessagePack writes in nine bytes takes JSON at least one


class Items:
    """Reads items, given the types there are, the time it is, and the limits."""

    def __init__(
        self, types: Callable[[], Mapping[str, TimerType]], horizon_ms: int, payload_bytes_max: int, targets: Targets
    ) -> None:
        self._types = types
        self._horizon_ms = horizon_ms
        self._payload_bytes_max = payload_bytes_max
        self._targets = targets

    def read(self, body: bytes, packed: bool, now: Now) -> Wanted:
        """The timers of a whole request. Raises Problem."""
        if not packed and (timers := self._plain(body, now)) is not None:
            return timers, None
        try:
            items: Sequence[ArmItem | msgspec.Raw] = _CAREFUL.decode(body, packed).timers
        except msgspec.ValidationError:
            items = self._separate(body, packed)
        faults: list[Fault] = []
        timers, conditions = [], []
        for index, raw in enumerate(items):
            at = f"/timers/{index}"
            if isinstance(raw, ArmItem):
                item = raw
            else:
                try:
                    item = _ITEM.decode(bytes(raw), packed)
                except msgspec.ValidationError as error:
                    faults.append(_ITEM.fault(error, at))
                    continue
            if fault := id_fault(item.id):
                faults.append(Fault(f"{at}/id", fault))
            if (timer := self._timer(item.id, item, at, packed, now, faults)) is not None:
                timers.append(timer)
                conditions.append(_condition(item))
            if len(faults) > MAX_ERRORS:
                break
        if faults:
            raise faulty(faults)
        return timers, None if all(c is _NO_CONDITION for c in conditions) else conditions

    def one(self, id: str, item: ArmBody, packed: bool, now: Now) -> Timer:
        """The timer that the body of a single arm asks for. Raises Problem."""
        faults: list[Fault] = []
        timer = self._timer(id, item, "", packed, now, faults)
        if timer is None:
            raise faulty(faults)
        return timer

    def _separate(self, body: bytes, packed: bool) -> list[msgspec.Raw]:
        """The items, each as it came. Raises Problem."""
        try:
            return _SEPARATE.decode(body, packed).timers
        except msgspec.ValidationError as error:
            fault = _SEPARATE.fault(error)
            if fault.pointer[1:] in ("", "timers", *ArmItem.__struct_fields__) and "length" not in fault.detail:
                fault = fault._replace(detail=f"{fault.detail}: {_NO_LIST}")
            raise faulty([fault]) from None

    def _plain(self, body: bytes, now: Now) -> list[Timer] | None:
        """The timers of a JSON request that is plain and right; None for any other, whatever it is."""
        try:
            items = _PLAIN.decode(body, False).timers
        except msgspec.ValidationError:
            return None
        ids = [item.id for item in items]
        if not ids_are_plain(ids) and any(map(id_fault, ids)):
            return None
        types = self._types()
        names = {item.type for item in items}
        if not names <= types.keys() or any(types[name].kind == "callback" for name in names):
            return None
        fire_ats = _all_instants([item.fire_at for item in items])
        if fire_ats is None or max(fire_ats) > now.wall_ms + self._horizon_ms:
            return None
        payloads = [None if item.payload is NO_PAYLOAD else bytes(item.payload) or None for item in items]
        if len(names) == 1:
            name = types[names.pop()].name
            timers = [
                Timer(at, 0, item.id, name, payload)
                for at, item, payload in zip(fire_ats, items, payloads, strict=True)
            ]
        else:
            timers = [
                Timer(at, 0, item.id, types[item.type].name, payload)
                for at, item, payload in zip(fire_ats, items, payloads, strict=True)
            ]
        if len(body) > self._payload_bytes_max:
            limit = self._payload_bytes_max
            if any(t.payload is not None and len(t.payload) > limit for t in timers):  # type: ignore[arg-type]
                return None
        return timers

    def _timer(self, id: str, item: ArmBody, at: str, packed: bool, now: Now, faults: list[Fault]) -> Timer | None:
        """The timer of one item; else None, and what is wrong with it goes to `faults`."""
        before = len(faults)
        type = self._types().get(item.type)
        if type is None:
            faults.append(Fault(f"{at}/type", _unknown(item.type), UNKNOWN_TYPE))
        fire_at = self._fire_at(item, at, now, faults)
        payload: bytes | None = None
        if type is not None and type.kind == "callback":
            payload = self._request(item, at, packed, faults)
        elif type is not None and not isinstance(item.request, msgspec.UnsetType):
            faults.append(Fault(f"{at}/request", f"is not for type {item.type}: a processor's timers have a payload"))
        elif isinstance(item.payload, msgspec.Raw):
            try:
                payload = self._json_of(item.payload, f"{at}/payload") if packed else bytes(item.payload)
                if len(payload) > self._payload_bytes_max:
                    raise _Unfit(f"{at}/payload", f"a payload may have at most {self._payload_bytes_max} bytes")
            except _Unfit as unfit:
                faults.append(unfit.fault)
        if type is None or len(faults) > before:
            return None
        return Timer(fire_at, 0, id, type.name, payload)

    def _request(self, item: ArmBody, at: str, packed: bool, faults: list[Fault]) -> bytes | None:
        """The request of a callback, as it is kept; None after a fault."""
        if item.payload is not msgspec.UNSET:
            faults.append(Fault(f"{at}/payload", f"is not for type {item.type}: a callback has a request"))
        if isinstance(item.request, msgspec.UnsetType):
            faults.append(Fault(f"{at}/request", "is missing: the type is of kind callback"))
            return None

        def json_of(raw: msgspec.Raw, pointer: str) -> bytes:
            return self._json_of(raw, pointer) if packed else bytes(raw)

        try:
            at = f"{at}/request"
            request = callback_request(item.request, at, self._targets, self._payload_bytes_max, json_of, faults)
        except _Unfit as unfit:
            faults.append(unfit.fault)
            return None
        return None if request is None else encode_request(request)

    def _json_of(self, packed: msgspec.Raw, at: str) -> bytes:
        """A MessagePack payload as JSON. The encoder alone would write NaN as null and bytes as a string."""
        data = bytes(packed)
        if len(data) > _PACKED_BYTES_MAX * self._payload_bytes_max:
            raise _Unfit(at, f"a payload may have at most {self._payload_bytes_max} bytes")
        try:
            payload = msgspec.msgpack.decode(data)
            for pointer, value in _values(payload, at):
                if isinstance(value, float) and not math.isfinite(value):
                    raise _Unfit(pointer, f"JSON has no {value}")
                if value is not None and not isinstance(value, bool | int | float | str | list | dict):
                    raise _Unfit(pointer, f"JSON has no {type(value).__name__}")
            return msgspec.json.encode(payload)
        except msgspec.DecodeError as error:
            raise Problem(MALFORMED, str(error)) from None
        except RecursionError:
            raise _Unfit(at, "is nested too deeply") from None

    def _fire_at(self, item: ArmBody, at: str, now: Now, faults: list[Fault]) -> int:
        """Unix ms; 0 after a fault."""
        name, fire_at = "fire_at", 0
        try:
            if not isinstance(item.delay, msgspec.UnsetType):
                name = "delay"
                if not isinstance(item.fire_at, msgspec.UnsetType):
                    raise ValueError("can't be given together with fire_at")
                # From now on, rounded up: not a fraction of a millisecond less than was asked for.
                fire_at = -(-now.wall_us // 1000) + parse_duration(item.delay)
            elif isinstance(item.fire_at, msgspec.UnsetType):
                raise ValueError("is missing, and so is delay")
            else:
                fire_at = _instant(item.fire_at)
        except ValueError as error:
            faults.append(Fault(f"{at}/{name}", str(error)))
        if fire_at > now.wall_ms + self._horizon_ms:
            days = self._horizon_ms // 86_400_000
            hint = _finer_unit(fire_at, now) if name == "fire_at" else ""
            faults.append(Fault(f"{at}/{name}", f"lies more than {days} days ahead{hint}", HORIZON_EXCEEDED))
        return fire_at


def _all_instants(times: list[int | str]) -> list[int] | None:
    """Unix ms of each, if they are all integers or all strings and all right; else None."""
    try:
        # A list of both raises TypeError here, and so does no other; the decoder lets no bool through.
        if isinstance(least := min(times), str):
            return [parse_instant(time) for time in times]
    except (TypeError, ValueError):
        return None
    return None if least < MIN_FIRE_AT else times  # type: ignore[return-value]


def _instant(value: Any) -> int:
    """Unix ms of a fire_at. Raises ValueError."""
    if isinstance(value, float) and 0 <= value < MIN_FIRE_AT:
        value = int(value)  # a reading of a clock in seconds: the reason is the one that an integer gets
    return parse_instant(value)


def _finer_unit(fire_at: int, now: Now) -> str:
    """What a time far beyond the horizon was perhaps meant as."""
    for thousands, unit in ((1_000, "microseconds"), (1_000_000, "nanoseconds")):
        if abs(fire_at // thousands - now.wall_ms) < _UNIT_DOUBT_MS:
            return f"; was it {unit}?"
    return ""


def _unknown(type: str) -> str:
    """Why a type can't be armed, with the way out."""
    if not is_type_name(type):
        return f"there is no type {type[:64]!r}: {TYPE_NAME_FAULT}"
    return f"there is no type {type!r}: PUT /v1/types/{type} first"


def _condition(item: ArmBody) -> Condition:
    generation = None if isinstance(item.if_generation, msgspec.UnsetType) else item.if_generation
    if item.mode == "replace" and generation is None:
        return _NO_CONDITION
    return Condition(item.mode, generation)


class _Unfit(Exception):
    """A payload that can't be taken."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(detail)
        self.fault = Fault(pointer, detail)


def _values(payload: Any, at: str) -> Iterator[tuple[str, Any]]:
    """Every value within, and keys that are no strings, with pointers; without recursion, for payloads nest deeply."""
    waiting = [(at, payload)]
    while waiting:
        pointer, value = waiting.pop()
        yield pointer, value
        if isinstance(value, list):
            waiting += [(f"{pointer}/{index}", member) for index, member in enumerate(value)]
        elif isinstance(value, dict):
            for key, member in value.items():
                if not isinstance(key, str):
                    raise _Unfit(pointer, "a JSON object's keys are strings")
                waiting.append((f"{pointer}/{pointer_token(key)}", member))
