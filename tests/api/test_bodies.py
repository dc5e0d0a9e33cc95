"""Bodies: what can't be read, what is too large, and the two encodings."""

import asyncio
import math
from typing import Any

import msgspec
import pytest
from starlette.types import Message

from tests.api.asgi import HOST, JSON, call
from tests.api.fake_service import NOW_MS, FakeService
from timerd_api.app import create_app
from timerd_api.body import SMALL_BYTES, SMALL_SHARE, Intake, wants_msgpack
from timerd_api.problem import Problem
from timerd_api.settings import ApiSettings

SOON = NOW_MS + 60_000
MSGPACK = (b"content-type", b"application/msgpack")
ACCEPT_MSGPACK = (b"accept", b"application/msgpack")

WITH_BODY = [
    ("POST", "/v1/timers"),
    ("PUT", "/v1/timers/a"),
    ("POST", "/v1/timers:cancel"),
    ("PUT", "/v1/types/poll"),
    ("POST", "/v1/dead-letters:replay"),
    ("POST", "/v1/dead-letters:purge"),
]
GOOD = b'{"id":"good","type":"poll","fire_at":%d}' % SOON
NOT_JSON = [
    b"",
    b"{",
    b"nonsense",
    b"\xef\xbb\xbf{}",
    b"{}{}",
    b"{'a':1}",
    b'{"timers":[],}',
    b'{"a":NaN}',
    b"\xff",
    b'{"\xff":1}',
    '{"timers":[]}'.encode("utf-16"),
    b"[" * 100_000,
]


@pytest.mark.parametrize(("method", "target"), WITH_BODY)
async def test_what_is_no_json(service: FakeService, method: str, target: str) -> None:
    app = create_app(service, ApiSettings())
    for body in NOT_JSON:
        answer = await call(app, method, target, body)
        assert answer.status in (400, 422), body
        assert answer.problem in ("malformed", "validation"), body
    assert (await call(app, method, target, b"{")).status == 400
    assert service.asked == []


# A22: values that lenient readers take and strict writers can't give back.
@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-0.0",
        "true",
        "null",
        "''",
        '""',
        "[]",
        "{}",
        '"NaN"',
        "+1",
        "01",
        "0x10",
    ],
)
@pytest.mark.parametrize("member", ['"fire_at":VALUE', '"delay":VALUE'])
async def test_no_time_at_all(service: FakeService, value: str, member: str) -> None:
    if (value, member) == ("-0.0", '"delay":VALUE'):
        pytest.skip("no seconds from now are a delay")
    app = create_app(service, ApiSettings())
    bad = f'{{"id":"bad","type":"poll",{member.replace("VALUE", value)}}}'.encode()
    for body in (b'{"timers":[%s]}' % bad, b'{"timers":[%s,%s,%s]}' % (GOOD, bad, GOOD)):
        answer = await call(app, "POST", "/v1/timers", body)
        assert answer.problem in ("malformed", "validation")
        assert answer.status in (400, 422)
    put = await call(app, "PUT", "/v1/timers/bad", bad.replace(b'"id":"bad",', b""))
    assert put.status in (400, 422)
    assert service.asked == []
    assert (await call(app, "GET", "/v1/timers")).json() == {"timers": []}


@pytest.mark.parametrize(
    "payload",
    [
        b"NaN",
        b"[Infinity]",
        b'{"a":-Infinity}',
        b"nan",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\\ud800"',
        b'"\\x"',
        b'"\n"',
        b"[1,]",
        b"01",
        b"1.",
        b"tru",
        b"{1:2}",
        b"[" * 5_000 + b"]" * 5_000,
    ],
    ids=lambda payload: ascii(payload)[:20],
)
async def test_a_payload_that_is_no_json(service: FakeService, payload: bytes) -> None:
    app = create_app(service, ApiSettings())
    for extra in (b"", b',"mode":"keep"'):
        bad = b'{"id":"bad","type":"poll","fire_at":%d,"payload":%s%s}' % (SOON, payload, extra)
        answer = await call(app, "POST", "/v1/timers", b'{"timers":[%s,%s]}' % (GOOD, bad))
        assert (answer.status, answer.problem) == (400, "malformed")
    answer = await call(app, "PUT", "/v1/timers/bad", b'{"type":"poll","delay":1,"payload":%s}' % payload)
    assert (answer.status, answer.problem) == (400, "malformed")
    assert service.asked == []


@pytest.mark.parametrize(("method", "target"), WITH_BODY)
@pytest.mark.parametrize(
    "media_type",
    [None, b"", b"text/plain", b"application/x-www-form-urlencoded", b"application/jsonx", b"json", b"*/*"],
)
async def test_other_media_types(service: FakeService, method: str, target: str, media_type: bytes | None) -> None:
    headers = [HOST] if media_type is None else [HOST, (b"content-type", media_type)]
    answer = await call(create_app(service, ApiSettings()), method, target, b"{}", headers)
    assert (answer.status, answer.problem) == (415, "unsupported-media-type")


@pytest.mark.parametrize(
    "media_type", [b"application/json; charset=utf-8", b"Application/JSON", b" application/json ;x"]
)
async def test_media_types_with_parameters(service: FakeService, media_type: bytes) -> None:
    headers = [HOST, (b"content-type", media_type)]
    answer = await call(create_app(service, ApiSettings()), "POST", "/v1/timers", b'{"timers":[%s]}' % GOOD, headers)
    assert answer.status == 200


@pytest.mark.parametrize(
    ("method", "target"), [*WITH_BODY, ("POST", "/v1/timers/a:fire"), ("POST", "/v1/types/poll:pause")]
)
async def test_a_body_that_is_too_large(service: FakeService, method: str, target: str) -> None:
    app = create_app(service, ApiSettings(max_body_bytes=1_000))
    whole = await call(app, method, target, b" " * 1_001)
    assert (whole.status, whole.problem) == (413, "body-too-large")
    unannounced = await call(app, method, target, b" " * 1_001, announce=False)
    assert unannounced.status == 413
    assert (await call(app, method, target, [b" " * 100] * 11)).status == 413
    assert service.asked == []


async def test_the_rest_of_a_body_that_is_too_large_is_not_read() -> None:
    intake, taken = Intake(1_000, 10_000), []

    async def receive() -> Message:
        taken.append(100)
        return {"type": "http.request", "body": b" " * 100, "more_body": True}

    with pytest.raises(Problem, match="body-too-large"):
        await intake.read({}, receive)
    assert sum(taken) == 1_100
    assert intake.held_bytes == 0


async def test_an_announced_length_is_believed_only_upwards(service: FakeService) -> None:
    app = create_app(service, ApiSettings(max_body_bytes=1_000))
    for length, status in ((b"1001", 413), (b"9" * 40, 413), (b"1", 413)):
        headers = [HOST, JSON, (b"content-length", length)]
        assert (await call(app, "POST", "/v1/timers", [b" " * 600, b" " * 600], headers)).status == status


async def test_a_body_in_many_pieces(service: FakeService) -> None:
    body = b'{"timers":[%s]}' % GOOD
    answer = await call(
        create_app(service, ApiSettings()), "POST", "/v1/timers", [body[n : n + 1] for n in range(len(body))]
    )
    assert answer.status == 200


async def test_bodies_in_progress_are_bounded_together() -> None:
    intake = Intake(600, 1_000)
    more = asyncio.Event()

    def sending(*chunks: bytes, wait: bool) -> Any:
        left = list(chunks)

        async def receive() -> Message:
            if len(left) == 1 and wait:
                await more.wait()
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        return receive

    slow = asyncio.create_task(intake.read({}, sending(b"x" * 500, b"y", wait=True)))
    while intake.held_bytes < 500:
        await asyncio.sleep(0)
    with pytest.raises(Problem, match="overloaded") as refused:
        await intake.read({}, sending(b"x" * 501, wait=False))
    assert refused.value.headers["Retry-After"] == "1"
    small = await intake.read({}, sending(b"x" * 200, wait=False))
    assert intake.held_bytes == 700
    more.set()
    body = await slow
    assert intake.held_bytes == 701
    intake.release(small)
    intake.release(body)
    assert intake.held_bytes == 0

    more.clear()
    cut = asyncio.create_task(intake.read({}, sending(b"x" * 500, b"y", wait=True)))
    while intake.held_bytes < 500:
        await asyncio.sleep(0)
    cut.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut
    assert intake.held_bytes == 0


async def test_large_bodies_leave_room_for_small_ones() -> None:
    intake = Intake(1 << 20, 1 << 22)

    def sending(size: int) -> Any:
        async def receive() -> Message:
            return {"type": "http.request", "body": b" " * size, "more_body": False}

        return receive

    held: list[bytes] = []

    async def fill(size: int) -> int:
        before = len(held)
        while True:
            try:
                held.append(await intake.read({}, sending(size)))
            except Problem as problem:
                if problem.kind.name != "overloaded":
                    raise
                return len(held) - before

    assert await fill(1 << 20) == 3
    assert await fill(SMALL_BYTES + 1) < 8
    assert await fill(SMALL_BYTES) >= (1 << 22) // SMALL_SHARE // SMALL_BYTES
    assert intake.held_bytes <= 1 << 22
    for body in held:
        intake.release(body)
    assert len(await intake.read({}, sending(1 << 20))) == 1 << 20


async def test_the_largest_body_comes_in_whatever_is_kept() -> None:
    intake = Intake(1 << 20, 1 << 20)

    async def receive() -> Message:
        return {"type": "http.request", "body": b" " * (1 << 20), "more_body": False}

    assert len(await intake.read({}, receive)) == 1 << 20


@pytest.mark.parametrize(
    ("size", "every_s", "pieces", "in_time"),
    [
        (1, 0.0, 100, True),  # at once
        (1_000, 0.05, 8, True),  # 20,000 bytes a second, twice the pace, and longer than the grace in all
        (1, 0.05, 100, False),  # never stops, and hardly comes
        (0, 0.05, 100, False),
        (10_000, 0.05, 1, True),
        (10_000, 5.0, 2, False),  # a second's worth at once, which buys no more than the grace
        (0, 5.0, 1, False),  # nothing at all
    ],
)
async def test_a_body_has_to_keep_its_pace(size: int, every_s: float, pieces: int, in_time: bool) -> None:
    intake = Intake(1 << 20, 1 << 20, grace_ms=200, bytes_per_s=10_000)
    left, first = pieces, True

    async def receive() -> Message:
        nonlocal left, first
        if not first or size == 0:
            await asyncio.sleep(every_s)
        left, first = left - 1, False
        return {"type": "http.request", "body": b" " * size, "more_body": left > 0}

    started = asyncio.get_running_loop().time()
    if in_time:
        body = await intake.read({}, receive)
        assert len(body) == size * pieces
        intake.release(body)
    else:
        with pytest.raises(Problem, match="malformed: the body came too slowly"):
            await intake.read({}, receive)
        assert asyncio.get_running_loop().time() - started < 1
    assert intake.held_bytes == 0


async def test_a_client_that_goes_away() -> None:
    intake = Intake(600, 1_000)
    messages: list[Message] = [{"type": "http.request", "body": b"xx", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        return messages.pop(0)

    with pytest.raises(Problem, match="ended before"):
        await intake.read({}, receive)
    assert intake.held_bytes == 0


@pytest.mark.parametrize("fails", [False, True])
async def test_the_count_of_bodies_comes_back_to_nothing(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    made: list[Intake] = []
    monkeypatch.setattr("timerd_api.app.Intake", lambda *limits: made.append(Intake(*limits)) or made[0])
    app = create_app(service, ApiSettings())
    service.failure = RuntimeError() if fails else None
    for method, target in [*WITH_BODY, ("POST", "/v1/timers/a:fire"), ("POST", "/v1/types/poll:pause")]:
        for body in (
            b"{",
            b"{}",
            b'{"timers":[%s]}' % GOOD,
            b'{"ids":["a"]}',
            b'{"type":"poll","delay":1}',
            b'{"url":"http://h"}',
        ):
            await call(app, method, target, body)
    assert made[0].held_bytes == 0


async def test_msgpack_both_ways(service: FakeService) -> None:
    app = create_app(service, ApiSettings())
    payload = {"a": [1, -1, 2**63, 0.5, None, True, "é"], "b": {}, "": []}
    items = [
        {"id": "a", "type": "poll", "fire_at": SOON, "payload": payload},
        {"id": "b", "type": "poll", "delay": "10s"},
    ]
    headers = [HOST, MSGPACK, ACCEPT_MSGPACK]
    answer = await call(app, "POST", "/v1/timers", msgspec.msgpack.encode({"timers": items}), headers)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/msgpack")
    results = msgspec.msgpack.decode(answer.body)["results"]
    assert [r["status"] for r in results] == ["created", "created"]
    stored = service.timers["a"].payload
    assert isinstance(stored, bytes)
    assert msgspec.json.decode(stored) == payload
    for target in ("/v1/timers/a", "/v1/timers", "/v1/types", "/v1/types/poll", "/v1/stats", "/v1/status", "/v1/shards",
                   "/v1/timers:next", "/v1/dead-letters", "/healthz", "/readyz"):  # fmt: skip
        plain = await call(app, "GET", target)
        packed = await call(app, "GET", target, headers=[HOST, ACCEPT_MSGPACK])
        assert packed.headers["content-type"] == "application/msgpack"
        assert msgspec.msgpack.decode(packed.body) == plain.json()
    for method, target, value in [
        ("PUT", "/v1/timers/c", {"type": "poll", "delay": 5}),
        ("POST", "/v1/timers:cancel", {"ids": ["a", "zz"]}),
        ("PUT", "/v1/types/other", {"url": "http://h/p", "headers": {"X-A": "b"}}),
        ("POST", "/v1/dead-letters:replay", {"type": "poll"}),
        ("POST", "/v1/dead-letters:purge", {"ids": ["a"]}),
    ]:
        answer = await call(app, method, target, msgspec.msgpack.encode(value), headers)
        assert answer.status in (200, 201), target
        assert msgspec.msgpack.decode(answer.body)
    refused = await call(app, "GET", "/v1/timers/none", headers=[HOST, ACCEPT_MSGPACK])
    assert refused.problem == "timer-not-found"


@pytest.mark.parametrize(
    ("payload", "pointer"),
    [
        (math.nan, ""),
        ([1, math.inf], "/1"),
        ({"a": {"b/c": -math.inf}}, "/a/b~1c"),
        (b"bytes", ""),
        ({"a": b"bytes"}, "/a"),
        ({1: 2}, ""),
        ({"a": [{None: 2}]}, "/a/0"),
        (msgspec.msgpack.Ext(5, b"x"), ""),
        ([msgspec.msgpack.decode(b"\xd6\xff\x00\x00\x00\x00")], "/0"),
        ("x" * 65_535, ""),
        ([0] * 700_000, ""),
    ],
    ids=lambda value: ascii(value)[:30],
)
async def test_a_msgpack_payload_that_json_can_not_say(service: FakeService, payload: object, pointer: str) -> None:
    app = create_app(service, ApiSettings())
    items = [
        {"id": "a", "type": "poll", "fire_at": SOON},
        {"id": "b", "type": "poll", "fire_at": SOON, "payload": payload},
    ]
    answer = await call(app, "POST", "/v1/timers", msgspec.msgpack.encode({"timers": items}), [HOST, MSGPACK])
    assert (answer.status, answer.problem, answer.pointers) == (422, "validation", [f"/timers/1/payload{pointer}"])
    del items[1]["id"], items[1]["fire_at"]
    answer = await call(app, "PUT", "/v1/timers/b", msgspec.msgpack.encode(items[1] | {"delay": 1}), [HOST, MSGPACK])
    assert (answer.status, answer.pointers) == (422, [f"/payload{pointer}"])
    assert service.asked == []


@pytest.mark.parametrize(
    "payload", [b"\xa1\xff", b"\x81\x80\x01", b"\x91" * 5_000 + b"\x00"], ids=["text", "key", "deep"]
)
async def test_a_msgpack_payload_that_can_not_be_read(service: FakeService, payload: bytes) -> None:
    head = msgspec.msgpack.encode({"type": "poll", "delay": 1})[1:]
    body = b"\x83" + head + b"\xa7payload" + payload
    answer = await call(create_app(service, ApiSettings()), "PUT", "/v1/timers/b", body, [HOST, MSGPACK])
    assert answer.status in (400, 422)
    assert service.asked == []


@pytest.mark.parametrize("payload", [b"[1e400]", b"[18446744073709551616]", b"[" * 400 + b"]" * 400])
async def test_an_answer_that_msgpack_has_no_room_for_stays_json(service: FakeService, payload: bytes) -> None:
    app = create_app(service, ApiSettings())
    await call(app, "PUT", "/v1/timers/a", b'{"type":"poll","delay":1,"payload":%s}' % payload)
    answer = await call(app, "GET", "/v1/timers/a", headers=[HOST, ACCEPT_MSGPACK])
    assert answer.status == 200
    if payload.startswith(b"[1"):
        assert answer.headers["content-type"] == "application/json"
        assert payload in answer.body


@pytest.mark.parametrize(
    ("accept", "packed"),
    [
        ("", False),
        ("*/*", False),
        ("text/html", False),
        ("application/json", False),
        ("application/msgpack", True),
        ("Application/MsgPack", True),
        ("application/*", False),
        ("application/msgpack, application/json", True),
        ("application/json, application/msgpack", False),
        ("application/json;q=0.5, application/msgpack", True),
        ("application/msgpack;q=0.5, application/json", False),
        ("application/msgpack;q=0", False),
        ("application/msgpack;q=x", False),
        ("application/msgpack; q=0.3, */*;q=0.1", True),
        ("text/html, application/msgpack;v=1;q=0.9", True),
    ],
)
def test_accept(accept: str, packed: bool) -> None:
    assert wants_msgpack(accept.encode()) is packed


@pytest.mark.parametrize(
    ("method", "target", "body", "pointer"),
    [
        ("PUT", "/v1/timers/a", {"type": "poll", "delay": 1, "id": "a"}, "/id"),
        ("PUT", "/v1/timers/a", {"type": "poll", "delay": 1, "x": 1}, "/x"),
        ("POST", "/v1/timers:cancel", {"ids": ["a"], "id": 1}, "/id"),
        ("POST", "/v1/timers:cancel", {"ids": []}, "/ids"),
        ("POST", "/v1/timers/a:fire", {"at": 1}, "/at"),
        ("PUT", "/v1/types/a", {"url": "http://h", "name": "a"}, "/name"),
        ("PUT", "/v1/types/a", {"url": "http://h", "retry": {"x": 1}}, "/retry/x"),
        ("PUT", "/v1/types/a", {"url": "http://h", "misfire": {"x": 1}}, "/misfire/x"),
        ("POST", "/v1/types/poll:pause", {"x": 1}, "/x"),
        ("POST", "/v1/types/poll:resume", {"x": 1}, "/x"),
        ("POST", "/v1/dead-letters:replay", {"type": "poll", "x": 1}, "/x"),
        ("POST", "/v1/dead-letters:purge", {"type": "poll", "x": 1}, "/x"),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["json", "msgpack"])
async def test_unknown_members(
    service: FakeService, method: str, target: str, body: object, pointer: str, packed: bool
) -> None:
    data = msgspec.msgpack.encode(body) if packed else msgspec.json.encode(body)
    answer = await call(create_app(service, ApiSettings()), method, target, data, [HOST, MSGPACK if packed else JSON])
    assert (answer.status, answer.problem, answer.pointers) == (422, "validation", [pointer])
    assert service.asked == []
