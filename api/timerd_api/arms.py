"""Arms: `POST /v1/timers`, the call that everything else waits for. Plain ASGI, without the framework's way there.

It knows the wire and the clock. It does not know what becomes of the timers: it hands them on all together and writes
down what it is told. The same `results` serve the arms of a single timer elsewhere.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET
from starlette.types import Receive, Scope, Send

from timerd.engine.instant import format_instant
from timerd.engine.message import ArmResult
from timerd.engine.timer import Timer
from timerd_api.body import JSON, MSGPACK, Intake, is_packed, wants_msgpack
from timerd_api.items import Items
from timerd_api.problem import granted
from timerd_api.schema import ArmAnswer, ArmResultItem
from timerd_api.service import Service
from timerd_api.values import expires_at, prefers_minimal

PATH: Final = b"/v1/timers"
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
    return [result_item(timer.id, result) for timer, result in zip(timers, results, strict=True)]


class Arms:
    """The ASGI application behind `POST /v1/timers`. Raises Problem."""

    def __init__(self, service: Service, items: Items, intake: Intake) -> None:
        self._service = service
        self._items = items
        self._intake = intake
        self._json = msgspec.json.Encoder()
        self._msgpack = msgspec.msgpack.Encoder()

    async def __call__(self, headers: Mapping[bytes, bytes], scope: Scope, receive: Receive, send: Send) -> None:
        expiry = expires_at(headers)
        packed = is_packed(headers)
        minimal = b"prefer" in headers and prefers_minimal(scope["headers"])
        body = await self._intake.read(headers, receive)
        try:
            timers, conditions = self._items.read(body, packed, self._service.clock.now())
            done = granted(await self._service.arm(timers, conditions, not minimal, expiry))
        finally:
            self._intake.release(body)
        answer = ArmAnswer(format_instant(self._service.clock.now().wall_ms), done.armed, done.conflicts)
        if not minimal and done.results is not None:
            answer.results = result_items(timers, done.results)
        accept = headers.get(b"accept")
        if accept is not None and wants_msgpack(accept):
            data, media_type = self._msgpack.encode(answer), _MSGPACK
        else:
            data, media_type = self._json.encode(answer), _JSON
        lines = [media_type, (b"content-length", b"%d" % len(data))]
        if minimal:
            lines.append(_MINIMAL)
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        await send({"type": "http.response.body", "body": data})
