"""What is refused says what would have been taken, where that can be guessed."""

import httpx
import msgspec
import pytest

from tests.api.fake_service import NOW_MS


async def refusal(client: httpx.AsyncClient, method: str, path: str, body: object) -> tuple[int, str, str, str]:
    """(status, problem, pointer, detail) of the only error."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    response = await client.request(method, path, content=content, headers={"Content-Type": "application/json"})
    problem = response.json()
    assert len(problem["errors"]) == 1, problem
    [error] = problem["errors"]
    return response.status_code, problem["type"].rpartition("/")[2], error["pointer"], error["detail"]


@pytest.mark.parametrize("body", [b"", b" \n"])
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/timers"), ("PUT", "/v1/timers/a"), ("PUT", "/v1/types/t")])
async def test_an_empty_body(client: httpx.AsyncClient, method: str, path: str, body: bytes) -> None:
    response = await client.request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["detail"] == "the body is empty"


async def test_an_unknown_type_is_named_with_the_way_out(client: httpx.AsyncClient) -> None:
    for method, path, more in (("PUT", "/v1/timers/a", {}), ("POST", "/v1/timers", {"id": "a"})):
        item = {"type": "mail", "delay": 1, **more}
        body = item if method == "PUT" else {"timers": [item]}
        status, name, pointer, detail = await refusal(client, method, path, body)
        assert (status, name, pointer) == (422, "unknown-type", "/type" if method == "PUT" else "/timers/0/type")
        assert detail == "there is no type 'mail': PUT /v1/types/mail first"


async def test_an_impossible_type_is_not_to_be_put(client: httpx.AsyncClient) -> None:
    status, name, _, detail = await refusal(client, "PUT", "/v1/timers/a", {"type": "M" * 1000, "delay": 1})
    assert (status, name) == (422, "unknown-type")
    assert "PUT" not in detail
    assert "[a-z]" in detail
    assert len(detail) < 200


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"id": "a", "type": "poll", "delay": 1}, "/id"),
        ([{"id": "a", "type": "poll", "delay": 1}], ""),
        ({"timers": {"id": "a", "type": "poll", "delay": 1}}, "/timers"),
        ({}, "/timers"),
    ],
)
async def test_a_timer_without_its_list(client: httpx.AsyncClient, body: object, pointer: str) -> None:
    status, name, at, detail = await refusal(client, "POST", "/v1/timers", body)
    assert (status, name, at) == (422, "validation", pointer)
    assert detail.endswith('expected {"timers": [...]}; one timer: PUT /v1/timers/{id}')


async def test_an_empty_list_is_a_list(client: httpx.AsyncClient) -> None:
    assert "PUT" not in (await refusal(client, "POST", "/v1/timers", {"timers": []}))[3]


@pytest.mark.parametrize(
    ("method", "path", "body", "pointer", "words"),
    [
        ("PUT", "/v1/timers/a", {"type": "poll", "delay": 1, "mode": "x"}, "/mode", ["earliest", "keep", "replace"]),
        (
            "POST",
            "/v1/timers",
            {"timers": [{"id": "a", "type": "poll", "delay": 1, "mode": "x"}]},
            "/timers/0/mode",
            ["latest"],
        ),
        ("PUT", "/v1/types/t", {"url": "http://a", "state": "x"}, "/state", ["active, paused"]),
        ("PUT", "/v1/types/t", {"url": "http://a", "kind": "x"}, "/kind", ["callback, processor"]),
        ("PUT", "/v1/types/t", {"url": "http://a", "kind": "callback"}, "/url", ["each timer has its own"]),
        (
            "PUT",
            "/v1/types/t",
            {"url": "http://a", "misfire": {"policy": "x"}},
            "/misfire/policy",
            ["coalesce, drop, fire"],
        ),
    ],
)
async def test_a_word_that_is_none_of_a_few(
    client: httpx.AsyncClient, method: str, path: str, body: object, pointer: str, words: list[str]
) -> None:
    status, name, at, detail = await refusal(client, method, path, body)
    assert (status, name, at) == (422, "validation", pointer)
    for word in words:
        assert word in detail


@pytest.mark.parametrize("fire_at", [NOW_MS // 1000, NOW_MS / 1000 + 0.25])
async def test_seconds(client: httpx.AsyncClient, fire_at: float) -> None:
    status, name, _, detail = await refusal(client, "PUT", "/v1/timers/a", {"type": "poll", "fire_at": fire_at})
    assert (status, name) == (422, "validation")
    assert detail == "is too small for milliseconds; was it seconds?"


@pytest.mark.parametrize("fire_at", [NOW_MS + 0.5, -0.5, None, True, [], {}])
async def test_no_time(client: httpx.AsyncClient, fire_at: object) -> None:
    status, name, pointer, detail = await refusal(client, "PUT", "/v1/timers/a", {"type": "poll", "fire_at": fire_at})
    assert (status, name, pointer) == (422, "validation", "/fire_at")
    assert detail == "is neither an RFC 3339 time nor an integer of Unix milliseconds"


@pytest.mark.parametrize(("factor", "unit"), [(1_000, "microseconds"), (1_000_000, "nanoseconds")])
async def test_finer_units(client: httpx.AsyncClient, factor: int, unit: str) -> None:
    body = {"type": "poll", "fire_at": (NOW_MS + 60_000) * factor}
    status, name, _, detail = await refusal(client, "PUT", "/v1/timers/a", body)
    assert (status, name) == (422, "horizon-exceeded")
    assert detail.endswith(f"; was it {unit}?")


async def test_a_far_year_is_no_other_unit(client: httpx.AsyncClient) -> None:
    body = {"type": "poll", "fire_at": "2126-01-01T00:00:00Z"}
    assert "was it" not in (await refusal(client, "PUT", "/v1/timers/a", body))[3]


@pytest.mark.parametrize("url", ["http:/host/due", "http:///due", "host/due", "ftp://host/due"])
async def test_a_url_that_is_none_is_quoted(client: httpx.AsyncClient, url: str) -> None:
    status, name, pointer, detail = await refusal(client, "PUT", "/v1/types/t", {"url": url})
    assert (status, name, pointer) == (422, "validation", "/url")
    assert repr(url) in detail
