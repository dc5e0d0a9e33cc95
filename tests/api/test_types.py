"""Types: their routes, every field's range, and what a reader is not shown."""

import base64

import httpx
import msgspec
import pytest

from tests.api.fake_service import NOW_MS, FakeService
from timerd.engine.timer import Misfire, RetryPolicy, Timer, TimerType
from timerd.stored import stored_type
from timerd_api.types import duration_text

URL = "http://127.0.0.1:9000/poll"
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdefghijklmn").decode()
FULL = {
    "url": URL,
    "kind": "processor",
    "batch_size": 10,
    "max_lag": "250ms",
    "request_timeout": 5,
    "max_in_flight": 3,
    "max_per_second": 12.5,
    "retry": {"max_attempts": 4, "min_backoff": "2s", "max_backoff": "1h", "multiplier": 1.5, "jitter": 0},
    "misfire": {"policy": "coalesce", "grace": "36h", "max_per_second": 2.5},
    "signing_secrets": [SECRET],
    "headers": {"X-Token": "secret value"},
    "state": "paused",
}


async def test_put_shows_what_get_shows(client: httpx.AsyncClient, service: FakeService) -> None:
    put = await client.put("/v1/types/full", json=FULL)
    assert put.status_code == 201
    assert service.types["full"] == TimerType(
        "full", URL, "processor", 10, 250, 5_000, 3, 12.5, RetryPolicy(4, 2_000, 3_600_000, 1.5, 0),
        Misfire("coalesce", 129_600_000, 2.5), (SECRET,), {"X-Token": "secret value"}, "paused",
    )  # fmt: skip
    shown = put.json()
    assert shown == FULL | {
        "name": "full",
        "request_timeout": "5s",
        "signing_secrets": ["whsec_…" + SECRET.rstrip("=")[-4:]],
        "headers": {"X-Token": "***"},
    }
    assert (await client.get("/v1/types/full")).json() == shown
    assert [type["name"] for type in (await client.get("/v1/types")).json()["types"]] == ["full", "poll"]
    assert (await client.put("/v1/types/full", json=FULL)).status_code == 200


async def test_what_is_left_out_takes_its_default(client: httpx.AsyncClient, service: FakeService) -> None:
    await client.put("/v1/types/full", json=FULL)
    assert (await client.put("/v1/types/full", json={"url": URL, "retry": {"jitter": 1}})).status_code == 200
    expected = TimerType("full", URL, retry=RetryPolicy(jitter=1), signing_secrets=(SECRET,))
    assert service.types["full"] == expected
    shown = (await client.get("/v1/types/full")).json()
    assert shown["retry"] == {
        "max_attempts": 0, "min_backoff": "1s", "max_backoff": "5m", "multiplier": 2, "jitter": 1,
    }  # fmt: skip
    assert (shown["max_lag"], shown["request_timeout"], shown["batch_size"]) == ("10s", "30s", 800)


async def test_secrets_stay_unless_they_are_named(client: httpx.AsyncClient, service: FakeService) -> None:
    await client.put("/v1/types/full", json=FULL)
    await client.put("/v1/types/full", json={"url": URL})
    assert service.types["full"].signing_secrets == (SECRET,)
    await client.put("/v1/types/full", json={"url": URL, "signing_secrets": []})
    assert service.types["full"].signing_secrets == ()


@pytest.mark.parametrize(
    ("secret", "hint"), [(SECRET, "whsec_…bG1u"), ("whsec_" + base64.b64encode(b"short").decode(), "whsec_…")]
)
async def test_hints(client: httpx.AsyncClient, secret: str, hint: str) -> None:
    response = await client.put("/v1/types/a", json={"url": URL, "signing_secrets": [secret]})
    assert response.json()["signing_secrets"] == [hint]


async def test_what_was_read_does_not_destroy_what_was_hidden(client: httpx.AsyncClient, service: FakeService) -> None:
    shown = (await client.put("/v1/types/full", json=FULL)).json()
    del shown["name"]
    response = await client.put("/v1/types/full", json=shown)
    assert response.status_code == 422
    pointers = [error["pointer"] for error in response.json()["errors"]]
    assert pointers == ["/signing_secrets/0", "/headers/X-Token"]
    assert service.types["full"].headers == {"X-Token": "secret value"}


BAD = [
    ({}, "/url"),
    ({"url": None}, "/url"),
    ({"url": ""}, "/url"),
    ({"url": "/poll"}, "/url"),
    ({"url": "ftp://h/p"}, "/url"),
    ({"url": "http://"}, "/url"),
    ({"url": "http:///p"}, "/url"),
    ({"url": "http://u:p@h/"}, "/url"),
    ({"url": "http://@h/"}, "/url"),
    ({"url": "http://h:99999/"}, "/url"),
    ({"url": "http://h:0/"}, "/url"),
    ({"url": "http://[::1/"}, "/url"),
    ({"url": "http://h/a b"}, "/url"),
    ({"url": "http://h/\n"}, "/url"),
    ({"url": "http://h/" + "x" * 2048}, "/url"),
    ({"kind": "callback"}, "/url"),
    ({"kind": "cron"}, "/kind"),
    ({"batch_size": 0}, "/batch_size"),
    ({"batch_size": 10_001}, "/batch_size"),
    ({"batch_size": 1.5}, "/batch_size"),
    ({"batch_size": "10"}, "/batch_size"),
    ({"max_lag": -1}, "/max_lag"),
    ({"max_lag": "soon"}, "/max_lag"),
    ({"max_lag": "25h"}, "/max_lag"),
    ({"max_lag": None}, "/max_lag"),
    ({"max_lag": True}, "/max_lag"),
    ({"request_timeout": 0}, "/request_timeout"),
    ({"request_timeout": "61m"}, "/request_timeout"),
    ({"max_in_flight": 0}, "/max_in_flight"),
    ({"max_in_flight": 10_001}, "/max_in_flight"),
    ({"max_per_second": 0}, "/max_per_second"),
    ({"max_per_second": -1}, "/max_per_second"),
    ({"max_per_second": "1"}, "/max_per_second"),
    ({"retry": None}, "/retry"),
    ({"retry": {"max_attempts": -1}}, "/retry/max_attempts"),
    ({"retry": {"min_backoff": 0}}, "/retry/min_backoff"),
    ({"retry": {"min_backoff": "6m"}}, "/retry/min_backoff"),
    ({"retry": {"max_backoff": "8d"}}, "/retry/max_backoff"),
    ({"retry": {"multiplier": 0.5}}, "/retry/multiplier"),
    ({"retry": {"jitter": 1.5}}, "/retry/jitter"),
    ({"retry": {"jitter": -0.1}}, "/retry/jitter"),
    ({"misfire": {"policy": "x"}}, "/misfire/policy"),
    ({"misfire": {"policy": None}}, "/misfire/policy"),
    ({"misfire": {"grace": -1}}, "/misfire/grace"),
    ({"misfire": {"max_per_second": 0}}, "/misfire/max_per_second"),
    ({"misfire": {"max_per_second": "5"}}, "/misfire/max_per_second"),
    ({"signing_secrets": None}, "/signing_secrets"),
    ({"signing_secrets": [SECRET] * 11}, "/signing_secrets"),
    ({"signing_secrets": [SECRET, "c2VjcmV0"]}, "/signing_secrets/1"),
    ({"signing_secrets": ["whsec_"]}, "/signing_secrets/0"),
    ({"signing_secrets": ["whsec_abc"]}, "/signing_secrets/0"),
    ({"signing_secrets": ["whsec_ab c="]}, "/signing_secrets/0"),
    ({"signing_secrets": ["whsec_é==="]}, "/signing_secrets/0"),
    ({"headers": {"": "x"}}, "/headers/"),
    ({"headers": {"a b": "x"}}, "/headers/a b"),
    ({"headers": {"a/~b": "x"}}, "/headers/a~1~0b"),
    ({"headers": {"X": "a\r\nY: b"}}, "/headers/X"),
    ({"headers": {"X": " a"}}, "/headers/X"),
    ({"headers": {"X": "é"}}, "/headers/X"),
    ({"headers": {"X": "***"}}, "/headers/X"),
    ({"headers": {"X": "a" * 4097}}, "/headers/X"),
    ({"headers": {"X": "a", "x": "b"}}, "/headers/x"),
    ({"headers": {"Content-Length": "5"}}, "/headers/Content-Length"),
    ({"headers": {"Webhook-Id": "5"}}, "/headers/Webhook-Id"),
    ({"headers": {"X": 5}}, "/headers"),
    ({"headers": []}, "/headers"),
    ({"state": "off"}, "/state"),
    ({"speed": 1}, "/speed"),
    ([], ""),
]


@pytest.mark.parametrize(("change", "pointer"), BAD, ids=lambda value: str(value)[:50])
async def test_bad_fields(client: httpx.AsyncClient, service: FakeService, change: object, pointer: str) -> None:
    body = {"url": URL} | change if isinstance(change, dict) and change else change
    response = await client.put("/v1/types/a", json=body)
    assert response.status_code == 422, response.text
    assert response.json()["type"].endswith("/validation")
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]
    assert "a" not in service.types


@pytest.mark.parametrize(
    "change",
    [
        {"url": "https://example.com:8443/a?b=c"},
        {"url": "http://[::1]:9000/"},
        {"batch_size": 1},
        {"batch_size": 10_000},
        {"max_lag": 0},
        {"max_lag": "0s"},
        {"max_lag": "24h"},
        {"request_timeout": "1h"},
        {"request_timeout": 0.001},
        {"max_per_second": 0.5},
        {"max_per_second": None},
        {"retry": {}},
        {"retry": {"min_backoff": "5m", "max_backoff": "5m", "jitter": 1, "multiplier": 1}},
        {"misfire": {}},
        {"misfire": {"policy": "drop", "grace": 0}},
        {"misfire": {"policy": "coalesce", "max_per_second": 5}},
        {"signing_secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]},
        {"headers": {"X-Empty": "", "Authorization": "Bearer x"}},
    ],
    ids=lambda value: str(value)[:50],
)
async def test_good_fields(client: httpx.AsyncClient, service: FakeService, change: dict[str, object]) -> None:
    response = await client.put("/v1/types/a", json={"url": URL} | change)
    assert response.status_code == 201, response.text


async def test_all_that_is_wrong_is_listed(client: httpx.AsyncClient) -> None:
    response = await client.put("/v1/types/a", json={"max_lag": "x", "request_timeout": 0, "headers": {"Host": "x"}})
    pointers = [error["pointer"] for error in response.json()["errors"]]
    assert pointers == ["/url", "/headers/Host", "/max_lag", "/request_timeout"]


@pytest.mark.parametrize("name", ["A", "1a", "a" * 65, "a%2Fb", "a%20b", "%C3%A9", "a:b", "-a"])
async def test_impossible_names(client: httpx.AsyncClient, name: str) -> None:
    put = await client.put(f"/v1/types/{name}", json={"url": URL})
    assert (put.status_code, put.json()["errors"][0]["pointer"]) == (422, "name")
    for response in [await client.get(f"/v1/types/{name}"), await client.delete(f"/v1/types/{name}")]:
        assert (response.status_code, response.json()["type"][-14:]) == (404, "type-not-found")


async def test_possible_names(client: httpx.AsyncClient) -> None:
    for name in ("a", "a" * 64, "a0_.-z"):
        assert (await client.put(f"/v1/types/{name}", json={"url": URL})).json()["name"] == name


async def test_pause_and_resume(client: httpx.AsyncClient, service: FakeService) -> None:
    paused = await client.post("/v1/types/poll:pause")
    assert (paused.status_code, paused.json()["state"]) == (200, "paused")
    assert paused.json() == (await client.get("/v1/types/poll")).json()
    assert (await client.post("/v1/types/poll:resume", json={})).json()["state"] == "active"
    for action in ("pause", "resume"):
        missing = await client.post(f"/v1/types/none:{action}")
        assert (missing.status_code, missing.json()["type"][-14:]) == (404, "type-not-found")
    assert (await client.post("/v1/types/poll:stop")).status_code == 405


async def test_delete(client: httpx.AsyncClient, service: FakeService) -> None:
    service.timers["a"] = Timer(NOW_MS, 42, "a", "poll")
    used = await client.delete("/v1/types/poll")
    assert (used.status_code, used.json()["type"][-11:]) == (409, "type-in-use")
    service.timers.clear()
    gone = await client.delete("/v1/types/poll")
    assert (gone.status_code, gone.content) == (204, b"")
    assert (await client.delete("/v1/types/poll")).status_code == 404
    assert (await client.get("/v1/types/poll")).status_code == 404


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (1, "1ms"), (250, "250ms"), (1_000, "1s"), (90_000, "90s"), (300_000, "5m"), (3_600_000, "1h"),
     (129_600_000, "36h"), (86_400_000, "1d"), (5_184_000_000, "60d"), (86_400_001, "86400001ms")],
)  # fmt: skip
def test_durations_in_their_largest_exact_unit(ms: int, text: str) -> None:
    assert duration_text(ms) == text


LEAST = {
    "batch_size": 1,
    "max_in_flight": 1,
    "max_per_second": 0.001,
    "retry": {"max_attempts": 0, "min_backoff": "1ms", "max_backoff": "1ms", "multiplier": 1, "jitter": 0},
    "misfire": {"policy": "drop", "grace": "0s", "max_per_second": 0.001},
    "max_lag": "0s",
    "request_timeout": "1ms",
    "state": "paused",
}
MOST = {
    "batch_size": 10_000,
    "max_in_flight": 10_000,
    "max_per_second": 1_000_000_000,
    "retry": {"max_attempts": 1_000_000, "min_backoff": "7d", "max_backoff": "7d", "multiplier": 100, "jitter": 1},
    "misfire": {"policy": "fire", "grace": "3660d", "max_per_second": 1_000_000_000},
    "max_lag": "24h",
    "request_timeout": "1h",
}


@pytest.mark.parametrize("target", [{"url": URL}, {"kind": "callback"}])
@pytest.mark.parametrize("limits", [LEAST, MOST, {}])
@pytest.mark.parametrize("name", ["t", "t" + "-" * 63])
async def test_what_is_taken_is_read_again_from_a_catalogue(
    client: httpx.AsyncClient, service: FakeService, target: dict[str, str], limits: dict[str, object], name: str
) -> None:
    assert (await client.put(f"/v1/types/{name}", json={**target, **limits})).status_code == 201
    type = service.types[name]
    assert stored_type("", name, msgspec.json.encode(type)) == type


@pytest.mark.parametrize("per_second", [5e-324, 1.7e308])
def test_what_early_builds_took_is_read(per_second: float) -> None:
    type = TimerType("t", URL, max_per_second=per_second, misfire=Misfire(max_per_second=per_second))
    assert stored_type("", "t", msgspec.json.encode(type)) == type
