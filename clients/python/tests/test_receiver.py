"""Receiving: signatures, shapes, and the ASGI app."""

import asyncio
import base64
import json
import threading
import time
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook

from timerd_client import (
    Batch,
    Callback,
    DueTimer,
    InvalidDelivery,
    InvalidSignature,
    Receiver,
    ok,
    processor,
    rearm,
    reply,
    retry,
)

SECRET = "whsec_" + base64.b64encode(b"a" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"b" * 32).decode()
BODY = json.dumps(
    {
        "type": "poll",
        "batch_id": "b1",
        "dispatched_at": "2026-11-30T08:00:00.000Z",
        "timers": [
            {"id": id, "generation": 1, "fire_at": "2026-11-30T08:00:00.000Z", "attempt": 1, "later": "field"}
            for id in ("x", "y")
        ],
    }
).encode()


def signed(secret: str, body: bytes = BODY, at: float | None = None) -> dict[str, str]:
    when = datetime.fromtimestamp(at or time.time(), UTC)
    return {
        "Webhook-Id": "b1",
        "Webhook-Timestamp": str(int(when.timestamp())),
        "Webhook-Signature": Webhook(secret).sign("b1", when, body.decode()),
    }


def test_what_the_reference_signs_is_taken() -> None:
    assert Receiver(SECRET).receive(signed(SECRET), BODY).batch_id == "b1"


def test_secrets_can_be_rotated_on_either_side() -> None:
    both = signed(SECRET)
    both["Webhook-Signature"] = "v1a,zzz " + signed(OTHER)["Webhook-Signature"] + " " + both["Webhook-Signature"]
    assert Receiver(SECRET).receive(both, BODY)
    assert Receiver([OTHER, SECRET]).receive(signed(SECRET), BODY)


def test_headers_come_as_any_framework_gives_them() -> None:
    pairs = [(name.encode(), value.encode()) for name, value in signed(SECRET).items()]
    assert Receiver(SECRET).receive(pairs, BODY)
    assert Receiver(SECRET).receive({name.lower(): value for name, value in signed(SECRET).items()}, BODY)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        signed(OTHER),
        signed(SECRET, at=time.time() - 100_000),
        signed(SECRET, at=time.time() + 100_000),
        signed(SECRET, BODY + b" "),
        {**signed(SECRET), "Webhook-Id": "b2"},
        {**signed(SECRET), "Webhook-Timestamp": "now"},
        {**signed(SECRET), "Webhook-Signature": "v1,"},
        {**signed(SECRET), "Webhook-Signature": "v1,é"},
    ],
)
def test_what_is_not_genuine_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidSignature):
        Receiver(SECRET).receive(headers, BODY)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", BODY.replace(b".000Z", b"")])
def test_what_is_no_delivery_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidDelivery):
        Receiver().receive({}, body)


def test_secrets_that_are_none() -> None:
    wrong: list[str | list[str]] = ["whsec_", "whsec_!", []]
    for secrets in wrong:
        with pytest.raises(ValueError, match="secret"):
            Receiver(secrets)


def test_a_rearm_keeps_its_payload_unless_there_is_a_new_one() -> None:
    kept, none = (json.loads(reply([answer])[2]) for answer in (rearm("x", delay=1), rearm("x", delay=1, payload=None)))
    assert "payload" not in kept["results"][0]
    assert none["results"][0]["payload"] is None


def test_answers_of_a_wrong_kind_are_named() -> None:
    due: Any = DueTimer("x", 1, datetime(2026, 11, 30, 8, tzinfo=UTC))
    for make in (ok, retry, lambda id: rearm(id, delay=1)):
        with pytest.raises(TypeError, match="an id is a str, not DueTimer"):
            make(due)
    wrong: Any = [("x", "retry")]
    with pytest.raises(TypeError, match="expected an answer of ok, retry, drop, dead or rearm, got tuple"):
        reply(wrong)


# ---- the app


async def post(app: Any, body: bytes = BODY, method: str = "POST", headers: Any = None) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://p") as client:
        return await client.request(method, "/poll", content=body, headers=headers)


@pytest.mark.parametrize(
    ("returned", "body"),
    [
        (None, {}),
        ([], {}),
        ([ok("x"), retry("y", error="e")], {"results": [{"id": "y", "status": "retry", "error": "e"}]}),
        ({"x": "drop", "y": ok("y")}, {"results": [{"id": "x", "status": "drop"}]}),
    ],
)
@pytest.mark.parametrize("kind", ["async", "plain", "object"])
async def test_a_handler_of_any_kind(kind: str, returned: Any, body: Any) -> None:
    seen: list[Batch] = []

    async def by_task(batch: Batch) -> Any:
        seen.append(batch)
        return returned

    def by_thread(batch: Batch) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(batch)
        return returned

    class Handler:
        async def __call__(self, batch: Batch) -> Any:
            return await by_task(batch)

    handler: Any = {"async": by_task, "plain": by_thread, "object": Handler()}[kind]
    response = await post(processor(handler))
    assert (response.status_code, response.json()) == (200, body)
    assert seen[0].timers[1] == DueTimer("y", 1, datetime(2026, 11, 30, 8, tzinfo=UTC))


async def test_a_generator_runs_in_the_thread() -> None:
    def handler(batch: Batch) -> Any:
        for timer in batch.timers:
            assert threading.current_thread() is not threading.main_thread()
            yield rearm(timer.id, delay=5)

    response = await post(processor(handler))
    assert [result["delay"] for result in response.json()["results"]] == [5, 5]


@pytest.mark.parametrize("wrong", [ValueError("secret detail"), ["x"], {"x": "done"}, {"x": ok("y")}, 3])
async def test_a_handler_that_fails_has_the_batch_retried(wrong: Any) -> None:
    def handler(batch: Batch) -> Any:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    response = await post(processor(handler))
    assert response.status_code == 500
    assert "secret" not in response.text


async def test_what_is_not_for_the_handler() -> None:
    def never(batch: Batch) -> None:
        raise AssertionError

    assert (await post(processor(never, secrets=SECRET))).status_code == 401
    assert (await post(processor(never), b"{}")).status_code == 400
    assert (await post(processor(never), method="GET")).headers["allow"] == "POST"
    assert (await post(processor(never, path="/elsewhere"))).status_code == 404
    assert (await post(processor(never, max_body=10))).status_code == 413
    assert (
        await post(processor(lambda batch: None, secrets=[OTHER, SECRET]), headers=signed(SECRET))
    ).status_code == 200


async def test_a_body_without_a_length_is_bounded_too() -> None:
    parts = iter([{"type": "http.request", "body": b"x" * 8, "more_body": True}] * 100)
    sent: list[Any] = []

    async def receive() -> Any:
        return next(parts)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await processor(lambda batch: None, max_body=20)(scope, receive, send)
    assert sent[0]["status"] == 413


async def test_lifespan() -> None:
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await asyncio.wait_for(processor(lambda batch: None)({"type": "lifespan"}, receive, send), 1)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_a_callback_is_taken_if_it_is_signed() -> None:
    headers = {
        **signed(SECRET, b"{"),
        "Timerd-Timer-Id": "k%C3%A4se%2F1",
        "Timerd-Generation": "17",
        "Timerd-Attempt": "2",
        "Timerd-Possible-Duplicate": "true",
    }
    callback = Receiver(SECRET).receive_callback(headers, b"{")
    assert callback == Callback("käse/1", 17, 2, True, "b1")
    with pytest.raises(InvalidSignature):
        Receiver(SECRET).receive_callback(headers, b"}")
    with pytest.raises(InvalidSignature):
        Receiver(SECRET, tolerance=10, clock=lambda: time.time() + 60).receive_callback(headers, b"{")
    assert Receiver().receive_callback(headers, b"anything").id == "käse/1"
    for missing in ("Timerd-Timer-Id", "Timerd-Generation", "Timerd-Attempt"):
        less = {name: value for name, value in headers.items() if name != missing}
        with pytest.raises(InvalidDelivery):
            Receiver(SECRET).receive_callback(less, b"{")
