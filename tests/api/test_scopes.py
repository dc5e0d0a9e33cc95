"""Scopes: every call with every kind of key, and that the one table is what is enforced, served and written down."""

import re
from pathlib import Path

import pytest

from tests.api.asgi import HOST, JSON, call
from tests.api.fake_service import FakeService
from timerd_api import openapi
from timerd_api.app import create_app
from timerd_api.scopes import ADMIN, ANY, ARM, NEEDS, OPEN, READ, SCOPES
from timerd_api.settings import ApiSettings

DOCS = Path(__file__).parents[2] / "docs" / "access.md"
CALLS = sorted(NEEDS)
BODIES = {
    "/v1/timers": b'{"timers":[{"id":"a","type":"poll","delay":1}]}',
    "/v1/timers/{id}": b'{"type":"poll","delay":1}',
    "/v1/timers:cancel": b'{"ids":["a"]}',
    "/v1/types/{name}": b'{"url":"http://h/"}',
    "/v1/dead-letters:replay": b'{"ids":["a"]}',
    "/v1/dead-letters:purge": b'{"ids":["a"]}',
    "/v1/keys": b'{"name":"n","scopes":["read"]}',
    "/v1/clock:advance": b'{"by":1}',
    "/v1/shards:scale": b'{"shards":16}',
}


class Stopped:
    """A clock that can be asked to turn."""

    async def turn_to(self, wall_ms: int) -> int:
        return 0


def test_the_table_is_about_the_calls_there_are() -> None:
    assert set(NEEDS) == {(c.method, c.path) for c in (*openapi.CALLS, *openapi.CLOCK_CALLS)}
    assert set(NEEDS.values()) == {ARM, READ, ADMIN, ANY, OPEN}


def test_nothing_that_changes_anything_is_had_for_reading() -> None:
    for (method, _), need in NEEDS.items():
        assert (method == "get") or need in (ARM, ADMIN)


@pytest.mark.parametrize("scope", [ARM, READ, ADMIN])
@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_every_call_with_every_scope(service: FakeService, method: str, path: str, scope: str) -> None:
    need = NEEDS[method, path]
    app = create_app(service, ApiSettings(api_key="owner"), Stopped())
    made = await service.keys.create("n", (scope,), None, None, None)
    assert isinstance(made, tuple)
    target = path.replace("{id}", "abcdefgh").replace("{name}", "poll")
    body = BODIES.get(path, b"") if method in ("post", "put") else b""
    asked = len(service.asked)

    async def status(*headers: tuple[bytes, bytes]) -> int:
        answer = await call(app, method.upper(), target, body, [HOST, JSON, *headers])
        if answer.status == 403:
            assert answer.problem == "forbidden"
            assert f"'{need}'" in answer.json()["detail"]
            assert answer.headers["www-authenticate"] == f'Bearer error="insufficient_scope", scope="{need}"'
        return answer.status

    assert await status() == (401 if need != OPEN else 200)
    assert await status((b"authorization", b"Bearer td_abcdefgh_wrong")) == (401 if need != OPEN else 200)
    assert len(service.asked) == asked
    with_it = await status((b"authorization", f"Bearer {made[1]}".encode()))
    if need in (scope, ANY, OPEN) or scope == ADMIN:
        assert with_it in (200, 201, 204, 404)
    else:
        assert with_it == 403
        assert len(service.asked) == asked
    assert await status((b"authorization", b"Bearer owner")) in (200, 201, 204, 404)
    if method == "get":
        head = await call(app, "HEAD", target, headers=[HOST, (b"authorization", f"Bearer {made[1]}".encode())])
        assert head.status == with_it


async def test_what_is_not_there_is_not_there_for_any_key_and_unknown_to_none(service: FakeService) -> None:
    app = create_app(service, ApiSettings(api_key="owner"))
    made = await service.keys.create("n", ("arm",), None, None, None)
    assert isinstance(made, tuple)
    headers = [HOST, (b"authorization", f"Bearer {made[1]}".encode())]
    assert (await call(app, "GET", "/v1/nothing", headers=headers)).problem == "not-found"
    assert (await call(app, "PATCH", "/v1/types/poll", headers=headers)).problem == "method-not-allowed"
    for path in ("/v1/nothing", "/healthz/", "/readyz/x", "//healthz", "/%68ealthz", "/healthz%00"):
        assert (await call(app, "GET", path, headers=[HOST])).problem == "unauthorized"


def test_the_contract_says_which() -> None:
    paths = openapi.document(virtual=True)["paths"]
    for (method, path), need in NEEDS.items():
        operation = paths[path][method]
        if need == OPEN:
            assert operation["security"] == []
        elif need == ANY:
            assert operation["description"] == "Scope: any."
            assert "security" not in operation
        else:
            assert operation["description"] == f"Scope: {need}."
            assert operation["security"] == [{"key": [need]}, {}]


async def test_the_page_says_which(service: FakeService) -> None:
    text = (await call(create_app(service, ApiSettings()), "GET", "/docs")).body.decode()
    assert text.count("Scope: arm.") == sum(need == ARM for need in NEEDS.values())


def test_the_pages_say_which() -> None:
    rows = re.findall(r"^\| `([A-Z]+) ([^`]+)` \| ([a-z]+) \|$", DOCS.read_text(), re.MULTILINE)
    assert {(method.lower(), path): need for method, path, need in rows} == dict(NEEDS)
    for scope, what in SCOPES.items():
        assert f"| `{scope}` | {what} |" in DOCS.read_text()
