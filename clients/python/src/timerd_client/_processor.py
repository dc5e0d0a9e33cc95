"""A processor as an ASGI app: `app = processor(handler)`, and any ASGI server runs it.

The handler is a plain or async function of a `Batch`. It returns None (all went well) or what became of the timers that
need a word: an iterable of answers, or a mapping from id to an answer or a status. If it raises, the whole batch is
retried. Plain functions run in a thread, so they may block.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Literal

from timerd_client._receiver import (
    Batch,
    InvalidDelivery,
    InvalidSignature,
    ItemResult,
    Receiver,
    dead,
    drop,
    ok,
    reply,
)
from timerd_client._receiver import retry as retry_later

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Results = Iterable[ItemResult] | Mapping[str, ItemResult | Literal["ok", "retry", "drop", "dead"]] | None
Handler = Callable[[Batch], Results | Awaitable[Results]]

BODY_BYTES_MAX: Final = 64 << 20  # 1,000 timers with the largest payload by default
_log = logging.getLogger("timerd_client")


class _TooLarge(Exception):
    pass


class _Gone(Exception):
    """timerd hung up before it had sent all."""


def processor(
    handler: Handler,
    *,
    secrets: str | Sequence[str] | None = None,
    path: str | None = None,
    max_body: int = BODY_BYTES_MAX,
) -> App:
    """An ASGI app that hands deliveries to `handler`. With a `path`, all others are 404."""
    return _Processor(handler, Receiver(secrets), path, max_body)


class _Processor:
    """An object, not a function: Starlette and FastAPI take a function that is routed to for one of a request."""

    def __init__(self, handler: Handler, receiver: Receiver, path: str | None, max_body: int) -> None:
        self._handler = handler
        self._receiver = receiver
        self._path = path
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            try:
                status, headers, body = await self._answer(scope, receive)
            except _Gone:
                return
            fields = [(name.encode(), value.encode()) for name, value in headers.items()]
            fields.append((b"content-length", str(len(body)).encode()))
            await send({"type": "http.response.start", "status": status, "headers": fields})
            await send({"type": "http.response.body", "body": body})
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise NotImplementedError(scope["type"])

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, dict[str, str], bytes]:
        if self._path is not None and scope["path"] != self._path:
            return _text(404, "not found")
        if scope["method"] != "POST":
            status, headers, body = _text(405, "deliveries are POSTed")
            return status, {**headers, "allow": "POST"}, body
        try:
            batch = self._receiver.receive(scope["headers"], await _read(scope["headers"], receive, self._max_body))
        except _TooLarge:
            return _text(413, "the delivery is too large")
        except InvalidSignature as error:
            return _text(401, str(error))
        except InvalidDelivery as error:
            return _text(400, str(error))
        try:
            return reply(await _handle(self._handler, batch))
        except Exception as error:
            _log.exception("handler failed", extra={"type": batch.type, "batch_id": batch.batch_id})
            return _text(500, f"handler failed: {type(error).__name__}")


async def _handle(handler: Handler, batch: Batch) -> list[ItemResult]:
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        results: Any = handler(batch)
    else:
        results = await asyncio.to_thread(_in_thread, handler, batch)
    if inspect.isawaitable(results):
        results = await results
    return _answers(results)


def _in_thread(handler: Handler, batch: Batch) -> Any:
    results = handler(batch)
    # A generator has not run yet; it must not run on the event loop.
    return list(results) if inspect.isgenerator(results) else results


def _answers(results: Results) -> list[ItemResult]:
    if results is None:
        return []
    if not isinstance(results, Mapping):
        return list(results)
    return [_one(id, answer) for id, answer in results.items()]


def _one(id: str, answer: ItemResult | str) -> ItemResult:
    match answer:
        case ItemResult():
            if answer.id != id:
                raise ValueError(f"the answer for {id!r} names {answer.id!r}")
            return answer
        case "ok":
            return ok(id)
        case "retry":
            return retry_later(id)
        case "drop":
            return drop(id)
        case "dead":
            return dead(id, "given up by the handler")
    raise ValueError(f"not an answer: {answer!r}")


async def _read(headers: Iterable[tuple[bytes, bytes]], receive: Receive, limit: int) -> bytes:
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise _TooLarge
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _TooLarge
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _text(status: int, text: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"content-type": "text/plain; charset=utf-8"}, text.encode()
