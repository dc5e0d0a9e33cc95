"""Ids: what can be armed can be reached, byte for byte, and what can't be reached can't be armed."""

from urllib.parse import quote

import msgspec
import pytest

from tests.api.asgi import call
from tests.api.fake_service import NOW_MS, FakeService
from timerd_api.app import create_app
from timerd_api.settings import ApiSettings

SOON = NOW_MS + 60_000
GOOD = [
    "a/b", "a%2Fb", "a b", "a+b", "a?b#c", "a;b", "a//b", "/a", "a/", "/", "a:b", "a%", "%", "%00", "%2e", "...", ".a",
    '"', "'", "\\", "{}", "é", "e\u0301", "日本", "🙂", "\u0085", "\u200b", "\ufeff", "x" * 255, "x" * 256, "é" * 128,
    "🙂" * 64, "a:fire", ":fire", "fire", "a:fire:fire", "next", ":next", " ", "~", "null", "a\u2028b",
]  # fmt: skip
BAD = [".", "..", "x" * 257, "x" * 4096, "é" * 129, "a\x00b", "\x1f", "a\x7f", "a\tb", "\r\n"]


def segment(id: str) -> str:
    return quote(id, safe="")


@pytest.mark.parametrize("id", GOOD, ids=ascii)
async def test_a_good_id_is_fully_usable(service: FakeService, id: str) -> None:
    app = create_app(service, ApiSettings())
    body = msgspec.json.encode({"timers": [{"id": id, "type": "poll", "fire_at": SOON}]})
    armed = await call(app, "POST", "/v1/timers", body)
    assert armed.status == 200
    assert armed.json()["results"][0]["id"] == id
    assert list(service.timers) == [id]
    path = f"/v1/timers/{segment(id)}"
    assert (await call(app, "GET", path)).json()["id"] == id
    again = await call(app, "PUT", path, b'{"type":"poll","delay":"1h"}')
    assert (again.status, again.json()["id"], again.json()["status"]) == (200, id, "moved")
    fired = await call(app, "POST", f"{path}:fire")
    assert (fired.status, fired.json()["id"]) == (200, id)
    cancelled = await call(app, "POST", "/v1/timers:cancel", msgspec.json.encode({"ids": [id]}))
    assert cancelled.json()["results"] == [{"id": id, "status": "cancelled", "in_flight": False}]
    assert (await call(app, "PUT", path, b'{"type":"poll","delay":"1h"}')).status == 201
    assert (await call(app, "DELETE", path)).json()["id"] == id
    assert service.timers == {}


@pytest.mark.parametrize("id", BAD, ids=lambda id: ascii(id)[:20])
async def test_a_bad_id_is_refused_everywhere(service: FakeService, id: str) -> None:
    app = create_app(service, ApiSettings())
    path = f"/v1/timers/{quote(id, safe='').replace('.', '%2E')}"
    item = {"id": id, "type": "poll", "fire_at": SOON}
    for method, target, body in [
        ("POST", "/v1/timers", {"timers": [item]}),
        ("POST", "/v1/timers", {"timers": [item | {"mode": "keep"}]}),
        ("POST", "/v1/timers:cancel", {"ids": [id]}),
        ("POST", "/v1/dead-letters:replay", {"ids": [id]}),
        ("POST", "/v1/dead-letters:purge", {"ids": [id]}),
        ("GET", path, None),
        ("PUT", path, {"type": "poll", "fire_at": SOON}),
        ("DELETE", path, None),
        ("POST", f"{path}:fire", None),
    ]:
        answer = await call(app, method, target, b"" if body is None else msgspec.json.encode(body))
        assert (answer.status, answer.problem) == (422, "validation"), target
        assert len(answer.pointers) == 1
    assert service.asked == []


async def test_spellings_of_one_id_and_of_two(service: FakeService) -> None:
    app = create_app(service, ApiSettings())
    for target, id in [
        ("/v1/timers/a%2Fb", "a/b"),
        ("/v1/timers/a%2fb", "a/b"),
        ("/v1/timers/%61%2Fb", "a/b"),
        ("/v1/timers/a%252Fb", "a%2Fb"),
        ("/v1/timers/a+b", "a+b"),
        ("/v1/timers/a%20b", "a b"),
        ("/v1/timers/a:fire", "a:fire"),
        ("/v1/timers/a%3Afire", "a:fire"),
        ("/v1/timers/..%2F..%2Fhealthz", "../../healthz"),
        ("/v1/timers/\xc3\xa9", "é"),
    ]:
        put = await call(app, "PUT", target, b'{"type":"poll","delay":"1h"}')
        assert put.status in (200, 201), target
        assert put.json()["id"] == id
        assert (await call(app, "GET", target)).json()["id"] == id


async def test_fire_is_an_action_only_when_written_as_one(service: FakeService) -> None:
    app = create_app(service, ApiSettings())
    for id in ("a", "a%3Afire"):
        await call(app, "PUT", f"/v1/timers/{id}", b'{"type":"poll","delay":"1h"}')
    assert (await call(app, "POST", "/v1/timers/a:fire")).json()["id"] == "a"
    assert (await call(app, "POST", "/v1/timers/a%3Afire")).problem == "method-not-allowed"
    assert (await call(app, "POST", "/v1/timers/a%3Afire:fire")).json()["id"] == "a:fire"
    assert (await call(app, "POST", "/v1/timers/a:fire:fire")).json()["id"] == "a:fire"
    assert (await call(app, "POST", "/v1/timers/:fire")).status == 405  # an empty id is none
    assert [asked[1] for asked in service.asked if asked[0] == "fire"] == ["a", "a:fire", "a:fire"]


UNREADABLE = ["%", "a%2", "%zz", "%ff", "%c3", "%ed%a0%80", "\xff"]


@pytest.mark.parametrize("target", [f"/v1/timers/{segment}" for segment in UNREADABLE])
async def test_a_path_that_can_not_be_read(service: FakeService, target: str) -> None:
    app = create_app(service, ApiSettings())
    for method in ("GET", "PUT", "DELETE"):
        answer = await call(app, method, target, b'{"type":"poll","delay":"1h"}')
        assert (answer.status, answer.problem) == (400, "malformed")


@pytest.mark.parametrize(
    "target", ["/v1/timers/", "/v1/timers/a/", "/v1/timers/a/b", "/v1//timers", "/", "/v2/timers", "*"]
)
async def test_no_such_path(service: FakeService, target: str) -> None:
    answer = await call(create_app(service, ApiSettings()), "GET", target)
    assert (answer.status, answer.problem) == (404, "not-found")
