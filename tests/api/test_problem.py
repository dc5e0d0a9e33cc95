"""Problems: the table is the contract's, and every failure takes its form."""

import httpx
import pytest
from structlog.testing import capture_logs

from tests.api.asgi import call
from tests.api.fake_service import FakeService
from timerd.engine.message import Refused
from timerd_api.app import create_app
from timerd_api.problem import KINDS, Kind
from timerd_api.settings import ApiSettings

CONTRACT = {
    "validation": 422, "unknown-type": 422, "horizon-exceeded": 422, "target-forbidden": 422, "body-too-large": 413,
    "unsupported-media-type": 415, "malformed": 400, "timer-not-found": 404, "type-not-found": 404,
    "generation-mismatch": 412, "type-in-use": 409, "timer-dead": 409, "expired": 409, "unauthorized": 401,
    "forbidden": 403, "overloaded": 503, "shard-unavailable": 503, "storage-full": 507,
}  # fmt: skip
BESIDE = {
    "not-found": 404, "method-not-allowed": 405, "internal-error": 500, "key-not-found": 404, "rate-limited": 429,
    "shards-moving": 409, "shards-fixed": 409,
}  # fmt: skip


def test_the_table() -> None:
    assert {name: kind.status for name, kind in KINDS.items()} == CONTRACT | BESIDE
    assert len({kind.title for kind in KINDS.values()}) >= len(KINDS) - 1


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: str(kind.name))
async def test_every_refusal_of_the_node(service: FakeService, kind: Kind) -> None:
    service.refusal = Refused(kind.name, "for a reason")
    app = create_app(service, ApiSettings())
    for method, target, body in [
        ("POST", "/v1/timers", b'{"timers":[{"id":"a","type":"poll","delay":1}]}'),
        ("PUT", "/v1/timers/a", b'{"type":"poll","delay":1}'),
        ("DELETE", "/v1/timers/a", b""),
        ("POST", "/v1/timers/a:fire", b""),
        ("POST", "/v1/timers:cancel", b'{"ids":["a"]}'),
        ("GET", "/v1/timers", b""),
        ("PUT", "/v1/types/a", b'{"url":"http://h"}'),
        ("DELETE", "/v1/types/a", b""),
        ("POST", "/v1/types/a:pause", b""),
        ("POST", "/v1/types/a:resume", b""),
        ("GET", "/v1/dead-letters", b""),
        ("POST", "/v1/dead-letters:replay", b'{"ids":["a"]}'),
        ("POST", "/v1/dead-letters:purge", b'{"ids":["a"]}'),
    ]:
        answer = await call(app, method, target, body)
        assert (answer.status, answer.problem) == (kind.status, kind.name), target
        assert answer.json()["detail"] == "for a reason"
        assert answer.headers.get("retry-after") == ("1" if kind.status == 503 else None)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PATCH", "/v1/timers", "GET, POST"),
        ("DELETE", "/v1/timers", "GET, POST"),
        ("HEAD", "/v1/timers:cancel", "POST"),
        ("PATCH", "/v1/timers/a", "DELETE, GET, PUT"),
        ("OPTIONS", "/v1/timers/a", "DELETE, GET, PUT"),
        ("POST", "/v1/types/a", "DELETE, GET, PUT"),
        ("PUT", "/healthz", "GET"),
        ("PATCH", "/v1/timers/a:fire", "DELETE, GET, POST, PUT"),
    ],
)
async def test_other_methods(client: httpx.AsyncClient, method: str, path: str, allow: str) -> None:
    response = await client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == allow
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("method", "target", "body"), [("GET", "/v1/timers/a", b""), ("POST", "/v1/timers", b'{"timers":[%s]}')]
)
async def test_a_fault_of_ours_tells_the_log_and_not_the_caller(
    service: FakeService, method: str, target: str, body: bytes
) -> None:
    service.failure = RuntimeError("the password is hunter2")
    app = create_app(service, ApiSettings(api_key="k3y"))
    headers = [(b"authorization", b"Bearer k3y"), (b"content-type", b"application/json")]
    if body:
        body %= b'{"id":"a","type":"poll","delay":1}'
    with capture_logs() as logs:
        answer = await call(app, method, target, body, headers)
    assert (answer.status, answer.problem) == (500, "internal-error")
    assert b"hunter2" not in answer.body
    assert [entry["event"] for entry in logs] == ["request_failed"]
    assert "hunter2" in logs[0]["exception"]
    assert "k3y" not in str(logs)


async def test_refusals_are_logged_once_a_second(service: FakeService) -> None:
    app = create_app(service, ApiSettings())
    service.refusal = Refused("storage-full", "no room")
    arm = b'{"timers":[{"id":"a","type":"poll","delay":1}]}'
    with capture_logs() as logs:
        for _ in range(50):
            assert (await call(app, "POST", "/v1/timers", arm)).status == 507
            assert (await call(app, "DELETE", "/v1/timers/a")).status == 507
    assert [(entry["event"], entry["problem"]) for entry in logs] == [("request_refused", "storage-full")]


async def test_what_callers_do_wrong_is_not_logged(service: FakeService) -> None:
    app = create_app(service, ApiSettings())
    with capture_logs() as logs:
        assert (await call(app, "GET", "/v1/timers/a")).status == 404
        assert (await call(app, "GET", "/v1/nothing")).status == 404
        assert (await call(app, "POST", "/v1/timers", b"{")).status == 400
        assert (await call(app, "GET", "/v1/timers")).status == 200
    assert logs == []


async def test_a_refusal_by_an_unknown_name_is_a_fault_of_ours(service: FakeService) -> None:
    service.refusal = Refused("tired", "later")
    with capture_logs():
        assert (await call(create_app(service, ApiSettings()), "DELETE", "/v1/timers/a")).status == 500
