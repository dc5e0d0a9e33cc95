"""What the log says of who did what, and what it does not say."""

from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from tests.api.asgi import HOST, JSON, call
from tests.api.fake_service import FakeService
from timerd.engine.message import Refused
from timerd_api.app import create_app
from timerd_api.settings import ApiSettings

Line = dict[str, Any]
SECRET = "whsec_" + "QUJD" * 8
TYPE = b'{"url":"http://h/","signing_secrets":["%s"],"headers":{"X":"hidden"}}' % SECRET.encode()


async def lines(service: FakeService, method: str, path: str, body: bytes = b"", key: str = "owner") -> list[Line]:
    app = create_app(service, ApiSettings(api_key="owner"))
    with capture_logs() as logs:
        await call(app, method, path, body, [HOST, JSON, (b"authorization", f"Bearer {key}".encode())])
    for line in logs:
        for hidden in (SECRET, "hidden", "Bearer"):
            assert hidden not in str(line)
        assert key not in str({**line, "on": ""})
    return [dict(line) for line in logs]


async def audited(service: FakeService, method: str, path: str, body: bytes = b"", key: str = "owner") -> Line:
    [line] = [line for line in await lines(service, method, path, body, key) if line["event"] == "audit"]
    assert (line.pop("event"), line.pop("log_level")) == ("audit", "info")
    assert line.pop("peer") == "127.0.0.1:50000"
    return line


@pytest.mark.parametrize(
    ("method", "path", "body", "call", "on", "outcome"),
    [
        ("PUT", "/v1/types/new", TYPE, "PUT /v1/types/{name}", "new", "201"),
        ("PUT", "/v1/types/poll", b"{", "PUT /v1/types/{name}", "poll", "400 malformed"),
        ("PUT", "/v1/types/a%0Ab", TYPE, "PUT /v1/types/{name}", "a%0Ab", "422 validation"),
        ("DELETE", "/v1/types/poll", b"", "DELETE /v1/types/{name}", "poll", "204"),
        ("DELETE", "/v1/types/none", b"", "DELETE /v1/types/{name}", "none", "404 type-not-found"),
        ("POST", "/v1/types/poll:pause", b"", "POST /v1/types/{name}:pause", "poll", "200"),
        ("POST", "/v1/types/poll:resume", b"", "POST /v1/types/{name}:resume", "poll", "200"),
        ("POST", "/v1/dead-letters:replay", b'{"type":"poll"}', "POST /v1/dead-letters:replay", "type poll", "200"),
        ("POST", "/v1/dead-letters:purge", b'{"ids":["a","b"]}', "POST /v1/dead-letters:purge", "2 ids", "200"),
        ("GET", "/v1/keys", b"", "GET /v1/keys", "-", "200"),
        ("DELETE", "/v1/keys/aaaaaaaa", b"", "DELETE /v1/keys/{id}", "aaaaaaaa", "404 key-not-found"),
        ("DELETE", "/v1/keys/nothing-like-it", b"", "DELETE /v1/keys/{id}", "no id", "404 key-not-found"),
    ],
)
async def test_an_admin_call_leaves_a_line(
    service: FakeService, method: str, path: str, body: bytes, call: str, on: str, outcome: str
) -> None:
    line = await audited(service, method, path, body)
    assert line == {"key": "bootstrap", "key_name": "TIMERD_API_KEY", "call": call, "on": on, "outcome": outcome}


async def test_a_key_is_named_by_id_and_name_never_by_its_text(service: FakeService) -> None:
    body = b'{"name":"ops","scopes":["admin","read"]}'
    line = await audited(service, "POST", "/v1/keys", body)
    [key] = service.keys.known.values()
    assert (line["on"], line["outcome"]) == (f"{key.id} ops admin+read", "201")
    line = await audited(service, "DELETE", f"/v1/keys/{key.id}")
    assert line["on"] == f"{key.id} ops"
    made = await service.keys.create("mail", ("arm",), None, None, None)
    assert isinstance(made, tuple)
    line = await audited(service, "PUT", "/v1/types/poll", TYPE, made[1])
    assert (line["key"], line["key_name"], line["outcome"]) == (made[0].id, "mail", "403 forbidden")


async def test_a_failure_of_ours_and_a_refusal_of_the_node_are_outcomes(service: FakeService) -> None:
    service.refusal = Refused("storage-full", "no room")
    assert (await audited(service, "PUT", "/v1/types/poll", TYPE))["outcome"] == "507 storage-full"
    service.failure = RuntimeError("boom")
    assert (await audited(service, "PUT", "/v1/types/poll", TYPE))["outcome"] == "failed"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/timers", b'{"timers":[{"id":"a","type":"poll","delay":1}]}'),
        ("GET", "/v1/timers", b""),
        ("GET", "/metrics", b""),
        ("DELETE", "/v1/timers/a", b""),
    ],
)
async def test_what_is_no_admin_call_leaves_none(service: FakeService, method: str, path: str, body: bytes) -> None:
    assert await lines(service, method, path, body) == []


async def test_without_keys_it_is_nobody_who_did_it(service: FakeService) -> None:
    app = create_app(service, ApiSettings())
    with capture_logs() as logs:
        await call(app, "POST", "/v1/types/poll:pause", headers=[HOST])
    assert [(line["key"], line["key_name"], line["outcome"]) for line in logs] == [("-", "-", "200")]


async def test_who_shows_no_good_key_is_noted_once_a_second(service: FakeService) -> None:
    app = create_app(service, ApiSettings(api_key="owner"))
    with capture_logs() as logs:
        for _ in range(3):
            await call(app, "GET", "/v1/timers", headers=[HOST, (b"authorization", b"Bearer guess")])
        service.clock.waited_ms += 1_000
        await call(app, "PUT", "/v1/timers/a", headers=[HOST])
    assert [(line["event"], line["peer"], line["unnoted"]) for line in logs] == [
        ("access_refused", "127.0.0.1:50000", 0),
        ("access_refused", "127.0.0.1:50000", 2),
    ]
    assert "guess" not in str(logs)
    assert msgspec.json.encode(logs)
