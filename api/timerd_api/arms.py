"""Arms: `POST /v1/timers` and `PUT /v1/timers/{id}`, the calls that everything else waits for.

Plain ASGI, without the framework's way there, which costs as much as all the rest of an arm of one. It knows the wire
and the clock. It does not know what becomes of the timers: it hands them on all together and writes down what it is
told.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET
from starlette.types import Receive, Scope, Send

from timerd.engine.instant import format_instant, format_instants
from timerd.engine.message import ArmResult, Condition
from timerd.engine.now import Now
from timerd.engine.timer import Timer
from timerd_api.access import weigh
from timerd_api.admission import Admission
from timerd_api.body import JSON, MSGPACK, Form, Intake, is_packed, wants_msgpack
from timerd_api.items import Items
from timerd_api.problem import (
    GENERATION_MISMATCH,
    OVERLOADED,
    UNKNOWN_TYPE,
    Fault,
    Problem,
    away,
    faulty,
    granted,
    partly,
    refused,
)
from timerd_api.schema import ArmAnswer, ArmBody, ArmResultItem
from timerd_api.service import Cluster, Service
from timerd_api.values import expires_at, if_generation, path_id, prefers_minimal

T = TypeVar("T")

PATH: Final = b"/v1/timers"
_ONE: Final = re.compile(rb"/v1/timers/([^/]+)")
_BODY: Final = Form(ArmBody)
_NO_CONDITION: Final = Condition()
_JSON: Final = (b"content-type", JSON.encode())
_MSGPACK: Final = (b"content-type", MSGPACK.encode())
_MINIMAL: Final = (b"preference-applied", b"return=minimal")


def result_item(id: str, result: ArmResult) -> ArmResultItem:
    """What became of one timer, as it is shown."""
    status, generation, fire_at, previous = result.status, result.generation, result.fire_at, result.previous_fire_at
    return ArmResultItem(
        id,
        status,  # type: ignore[arg-type]  # the engine's words are the wire's
        generation,
        format_instant(fire_at) if generation else None,
        UNSET if previous is None else format_instant(previous),
    )


def result_items(timers: Sequence[Timer], results: Sequence[ArmResult]) -> list[ArmResultItem]:
    fire_ats = format_instants([result.fire_at for result in results])
    return [
        ArmResultItem(
            timer.id,
            result.status,  # type: ignore[arg-type]  # the engine's words are the wire's
            result.generation,
            fire_at if result.generation else None,
            UNSET if result.previous_fire_at is None else format_instant(result.previous_fire_at),
        )
        for timer, result, fire_at in zip(timers, results, fire_ats, strict=True)
    ]


def id_segment(path: bytes) -> bytes | None:
    """The last segment of the path of a single timer, as it was sent; None for any other path."""
    found = _ONE.fullmatch(path)
    return found[1] if found else None


class Arms:
    """What answers arms, of many and of one. Raises Problem."""

    def __init__(self, service: Service, items: Items, intake: Intake, cluster: Cluster | None = None) -> None:
        self._service = service
        self._cluster = cluster
        self._items = items
        self._intake = intake
        self._admission = Admission()
        self._json = msgspec.json.Encoder()
        self._msgpack = msgspec.msgpack.Encoder()

    async def post(self, headers: Mapping[bytes, bytes], scope: Scope, receive: Receive, send: Send) -> None:
        """`POST /v1/timers`."""
        expiry = expires_at(headers)
        packed = is_packed(headers)
        minimal = b"prefer" in headers and prefers_minimal(scope["headers"])
        # What can't be taken up is not worth the reading.
        if self._admission.is_full():
            raise Problem(OVERLOADED, "more is being asked than can be taken up in a second", retry_after_s=1)
        if (busy := self._service.busy()) is not None:
            raise refused(busy)
        body = await self._intake.read(headers, receive)
        try:
            await self._admission.enter(len(body))
            timers, conditions = await self._checked(lambda now: self._items.read(body, packed, now))
            weigh(scope, len(timers))
            done = granted(await self._service.arm(timers, conditions, not minimal, expiry))
        finally:
            self._intake.release(body)
        answer = ArmAnswer(format_instant(self._service.clock.now().wall_ms), done.armed, done.conflicts)
        if done.results is not None and (not minimal or done.unavailable):
            answer.results = result_items(timers, done.results)
        if done.unavailable:
            await partly(len(done.unavailable), answer, done.why)(scope, receive, send)
            return
        await self._send(headers, send, 200, answer, [_MINIMAL] if minimal else [])

    async def put(self, segment: bytes, headers: Mapping[bytes, bytes], receive: Receive, send: Send) -> None:
        """`PUT /v1/timers/{id}`."""
        id = path_id(segment.decode("latin-1"))
        expiry, packed, wanted = expires_at(headers), is_packed(headers), if_generation(headers)
        body = await self._intake.read(headers, receive)
        try:
            item = _BODY.read(body, packed)
            if wanted is not None and item.if_generation is not UNSET:
                raise faulty([Fault("/if_generation", "can't be given together with If-Match or If-None-Match")])
            timer = await self._checked(lambda now: self._items.one(id, item, packed, now))
            condition = Condition(item.mode, wanted if item.if_generation is UNSET else item.if_generation)
            conditions = None if condition == _NO_CONDITION else [condition]
            done = granted(await self._service.arm([timer], conditions, True, expiry))
        finally:
            self._intake.release(body)
        assert done.results is not None, "results were asked for"
        result = done.results[0]
        if done.unavailable:
            raise away(1, done.why)
        if result.status == "conflict" and wanted is not None:
            raise Problem(GENERATION_MISMATCH, f"the timer's generation is {result.generation}")
        status = 201 if result.status == "created" else 200
        await self._send(headers, send, status, result_item(id, result), [(b"etag", b'"%d"' % result.generation)])

    async def _checked(self, read: Callable[[Now], T]) -> T:
        """What a body asks for. A type that is not known here may have been put at another node a moment ago."""
        try:
            return read(self._service.clock.now())
        except Problem as problem:
            if self._cluster is None or all(fault.kind is not UNKNOWN_TYPE for fault in problem.faults):
                raise
        if (refusal := await self._cluster.learn_types()) is not None:
            raise refused(refusal)
        return read(self._service.clock.now())

    async def _send(
        self,
        headers: Mapping[bytes, bytes],
        send: Send,
        status: int,
        answer: ArmAnswer | ArmResultItem,
        lines: list[tuple[bytes, bytes]],
    ) -> None:
        accept = headers.get(b"accept")
        if accept is not None and wants_msgpack(accept):
            data, media_type = self._msgpack.encode(answer), _MSGPACK
        else:
            data, media_type = self._json.encode(answer), _JSON
        lines += [media_type, (b"content-length", b"%d" % len(data))]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": data})
