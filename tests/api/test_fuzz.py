"""Anything at all, on every route: never a fault of ours, and every refusal in its form."""

import asyncio
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.asgi import HOST, Answer, call
from tests.api.fake_service import NOW_MS, FakeService
from timerd.engine.timer import Timer
from timerd_api import openapi
from timerd_api.app import create_app
from timerd_api.settings import ApiSettings

NAMES = st.sampled_from(
    [
        "timers",
        "id",
        "ids",
        "type",
        "fire_at",
        "delay",
        "payload",
        "mode",
        "if_generation",
        "url",
        "kind",
        "batch_size",
        "max_lag",
        "request_timeout",
        "headers",
        "max_in_flight",
        "max_per_second",
        "retry",
        "misfire",
        "signing_secrets",
        "state",
        "policy",
        "grace",
        "min_backoff",
        "jitter",
        "multiplier",
    ]
)
WORDS = st.sampled_from(
    [
        "poll",
        "nope",
        "a",
        ".",
        "10s",
        "2026-12-01T00:00:00Z",
        "9999-12-31T23:59:59.9999999Z",
        "0000-00-00T00:00:00Z",
        "keep",
        "http://h/p",
        "http://[",
        "processor",
        "callback",
        "drop",
        "whsec_AAAA",
        "active",
        "\x00",
        "é",
        "",
    ]
)
NUMBERS = st.sampled_from([0, 1, -1, NOW_MS, NOW_MS + 10**6, 10**11, 2**53, 2**63, 2**64 - 1, 1e308, -0.0, 0.5, 5e-324])
LEAVES = st.none() | st.booleans() | NUMBERS | WORDS | st.text(max_size=8) | st.integers(-(2**63), 2**64 - 1)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=5),
    max_leaves=12,
)
ITEM = st.fixed_dictionaries(
    {"id": WORDS | LEAVES, "type": st.just("poll") | LEAVES},
    optional={"fire_at": LEAVES, "delay": LEAVES, "payload": VALUES, "mode": WORDS | LEAVES, "if_generation": LEAVES},
)
TYPE = st.dictionaries(NAMES, VALUES, max_size=6).map(lambda body: {"url": "http://h/p"} | body)
BODIES = (
    VALUES
    | ITEM
    | ITEM.map(lambda item: {k: v for k, v in item.items() if k != "id"})
    | st.lists(ITEM, max_size=4).map(lambda items: {"timers": items})
    | st.lists(LEAVES, max_size=4).map(lambda ids: {"ids": ids})
    | TYPE
)
RAW = st.binary(max_size=40) | BODIES.map(msgspec.json.encode) | BODIES.map(msgspec.msgpack.encode)
BROKEN = st.tuples(RAW, st.integers(0, 200), st.binary(min_size=1, max_size=3)).map(
    lambda broken: broken[0][: broken[1]] + broken[2] + broken[0][broken[1] :]
)
MEDIA_TYPES = st.sampled_from([b"application/json", b"application/msgpack", b"text/plain", b""])
SEGMENTS = st.sampled_from(["a", "poll", "%2F", "%", "%ff", "%C3%A9", ".", "..", "a:fire", "%00", "x" * 300, "\xff"])
QUERIES = st.sampled_from(
    ["", "page_size=1", "page_size=x", "type=poll", "x=%ff", "&&", "=", "state=due&state=due", "%"]
)
HEADERS = st.lists(
    st.sampled_from(
        [
            (b"timerd-expires", b"2026-12-01T00:00:00Z"),
            (b"timerd-expires", b"\xff"),
            (b"if-match", b'"5"'),
            (b"if-none-match", b"*"),
            (b"if-match", b"\xff"),
            (b"prefer", b"return=minimal,,;=\xff"),
            (b"accept", b";q=,\xff"),
            (b"accept", b"application/msgpack"),
            (b"content-length", b"abc"),
            (b"content-length", b"\xb2"),
        ]
    ),
    max_size=3,
    unique_by=lambda header: header[0],
)


SERVICE = FakeService()
APP = create_app(SERVICE, ApiSettings())
LOOP = asyncio.new_event_loop()


def judge(answer: Answer) -> None:
    assert answer.status < 500, answer
    if answer.status >= 400:
        assert answer.problem
        if answer.status == 422:
            assert answer.pointers or answer.problem != "validation"


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from(openapi.CALLS),
    SEGMENTS,
    QUERIES,
    MEDIA_TYPES,
    RAW | BROKEN,
    HEADERS,
)
def test_anything_on_every_route(
    target: openapi.Call, segment: str, query: str, media_type: bytes, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    SERVICE.__init__()  # type: ignore[misc]  # as new, in front of it the app that was made once
    path = target.path.replace("{id}", segment).replace("{name}", segment)
    all_headers = [HOST, (b"content-type", media_type), *headers]
    announce = not any(name == b"content-length" for name, _ in headers)
    answer = LOOP.run_until_complete(
        call(APP, target.method.upper(), f"{path}?{query}", body, all_headers, announce=announce)
    )
    judge(answer)
    for timer in SERVICE.timers.values():
        assert 0 < len(timer.id.encode()) <= 256
        assert timer.type == "poll"
        if timer.payload is not None:
            assert isinstance(timer.payload, bytes)
            msgspec.json.decode(timer.payload)


@settings(max_examples=300, deadline=None)
@given(st.lists(ITEM, min_size=1, max_size=5))
def test_both_encodings_and_all_ways_through_agree(items: list[dict[str, Any]]) -> None:
    """An arm means the same in JSON and in MessagePack, and each item means the same alone and among others."""

    def arm(body: bytes, media_type: bytes) -> tuple[Answer, dict[str, Timer]]:
        SERVICE.__init__()  # type: ignore[misc]
        headers = [HOST, (b"content-type", media_type)]
        return LOOP.run_until_complete(call(APP, "POST", "/v1/timers", body, headers)), SERVICE.timers

    request = {"timers": items}
    as_json, by_json = arm(msgspec.json.encode(request), b"application/json")
    as_packed, by_packed = arm(msgspec.msgpack.encode(request), b"application/msgpack")
    assert as_json.status == as_packed.status
    if as_json.status == 200:
        assert by_json == by_packed
        assert len(as_json.json()["results"]) == len(items)
    alone = [arm(msgspec.json.encode({"timers": [item]}), b"application/json")[0] for item in items]
    bad = {number for number, answer in enumerate(alone) if answer.status != 200}
    assert (as_json.status == 200) is not bool(bad)
    if bad:
        assert {int(pointer.split("/")[2]) for pointer in as_json.pointers} == bad
