"""Single timers, lists and cancels."""

import httpx
import pytest

from tests.api.fake_service import NOW_MS, FakeService
from timerd.engine.message import Condition, Filter, Refused
from timerd.engine.timer import Timer

SOON = NOW_MS + 60_000


async def test_put_then_get(client: httpx.AsyncClient, service: FakeService) -> None:
    put = await client.put("/v1/timers/a", json={"type": "poll", "fire_at": SOON, "payload": {"n": 1}})
    generation = service.timers["a"].generation
    assert put.status_code == 201
    assert put.headers["etag"] == f'"{generation}"'
    assert put.json() == {
        "id": "a", "status": "created", "generation": generation, "fire_at": "2026-11-30T08:01:00.000Z",
    }  # fmt: skip
    got = await client.get("/v1/timers/a")
    assert got.headers["etag"] == f'"{generation}"'
    assert got.json() == {
        "id": "a", "type": "poll", "state": "armed", "fire_at": "2026-11-30T08:01:00.000Z", "generation": generation,
        "attempt": 0, "created_at": "2026-11-30T08:00:00.000Z", "updated_at": "2026-11-30T08:00:00.000Z", "shard": 3,
        "payload": {"n": 1},
    }  # fmt: skip
    again = await client.put("/v1/timers/a", json={"type": "poll", "fire_at": SOON, "payload": {"n": 1}})
    assert (again.status_code, again.json()["status"]) == (200, "unchanged")
    moved = await client.put("/v1/timers/a", json={"type": "poll", "fire_at": SOON + 1})
    assert (moved.status_code, moved.json()["previous_fire_at"]) == (200, "2026-11-30T08:01:00.000Z")


async def test_head_is_get_without_the_body(client: httpx.AsyncClient, service: FakeService) -> None:
    await client.put("/v1/timers/a", json={"type": "poll", "fire_at": SOON})
    got, head = await client.get("/v1/timers/a"), await client.head("/v1/timers/a")
    assert head.content == b""
    assert head.headers == got.headers
    assert (await client.head("/v1/timers/b")).status_code == 404


@pytest.mark.parametrize(
    ("body", "pointer", "name"),
    [
        ({}, "/type", "validation"),
        ({"type": "poll"}, "/fire_at", "validation"),
        ({"type": "nope", "delay": 1}, "/type", "unknown-type"),
        ({"type": "poll", "delay": "x"}, "/delay", "validation"),
        ({"type": "poll", "fire_at": 1}, "/fire_at", "validation"),
        ({"type": "poll", "delay": "4000d"}, "/delay", "horizon-exceeded"),
        ({"type": "poll", "delay": 1, "payload": "x" * 65_536}, "/payload", "validation"),
        ([], "", "validation"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_bad_put(
    client: httpx.AsyncClient, service: FakeService, body: object, pointer: str, name: str
) -> None:
    response = await client.put("/v1/timers/a", json=body)
    assert response.status_code == 422
    assert response.json()["type"].endswith("/" + name)
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]
    assert service.asked == []


async def test_conditional_put(client: httpx.AsyncClient, service: FakeService) -> None:
    body = {"type": "poll", "fire_at": SOON}
    missing = await client.put("/v1/timers/a", json=body, headers={"If-Match": '"5"'})
    assert (missing.status_code, missing.json()["type"][-19:]) == (412, "generation-mismatch")
    created = await client.put("/v1/timers/a", json=body, headers={"If-None-Match": "*"})
    assert created.status_code == 201
    assert (await client.put("/v1/timers/a", json=body, headers={"If-None-Match": "*"})).status_code == 412
    moved = await client.put(
        "/v1/timers/a", json=body | {"fire_at": SOON + 1}, headers={"If-Match": created.headers["etag"]}
    )
    assert (moved.status_code, moved.json()["status"]) == (200, "moved")
    stale = await client.put("/v1/timers/a", json=body, headers={"If-Match": created.headers["etag"]})
    assert stale.status_code == 412
    assert service.timers["a"].fire_at == SOON + 1


@pytest.mark.parametrize(
    ("headers", "pointer"),
    [
        ({"If-Match": "*"}, "If-Match"),
        ({"If-Match": "5"}, "If-Match"),
        ({"If-Match": 'W/"5"'}, "If-Match"),
        ({"If-Match": '"5", "6"'}, "If-Match"),
        ({"If-Match": '"05"'}, "If-Match"),
        ({"If-Match": ""}, "If-Match"),
        ({"If-None-Match": '"5"'}, "If-None-Match"),
        ({"If-None-Match": "*", "If-Match": '"5"'}, "If-None-Match"),
        ({"If-None-Match": "*", "X-Body": "1"}, "/if_generation"),
        ({"Timerd-Expires": "tomorrow"}, "Timerd-Expires"),
    ],
)
async def test_bad_conditions(
    client: httpx.AsyncClient, service: FakeService, headers: dict[str, str], pointer: str
) -> None:
    body = {"type": "poll", "fire_at": SOON} | ({"if_generation": 0} if "X-Body" in headers else {})
    response = await client.put("/v1/timers/a", json=body, headers=headers)
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == pointer
    assert service.asked == []


async def test_put_takes_modes_and_conditions_in_the_body(client: httpx.AsyncClient, service: FakeService) -> None:
    body = {"type": "poll", "fire_at": SOON, "mode": "keep", "if_generation": 7}
    response = await client.put("/v1/timers/a", json=body)
    assert service.asked[-1][2] == [Condition("keep", 7)]
    assert (response.status_code, response.json()["status"]) == (200, "conflict")


async def test_delete(client: httpx.AsyncClient, service: FakeService) -> None:
    service.timers["a"] = Timer(SOON, 42, "a", "poll")
    service.in_flight.add("a")
    gone = await client.delete("/v1/timers/a", headers={"Timerd-Expires": "2026-11-30T09:00:00Z"})
    assert (gone.status_code, gone.json()) == (200, {"id": "a", "generation": 42, "in_flight": True})
    assert service.asked[-1] == ("cancel", ["a"], NOW_MS + 3_600_000)
    missing = await client.delete("/v1/timers/a")
    assert (missing.status_code, missing.json()["type"][-15:]) == (404, "timer-not-found")
    late = await client.delete("/v1/timers/a", headers={"Timerd-Expires": "2020-01-01T00:00:00Z"})
    assert late.status_code == 409


async def test_cancel_many(client: httpx.AsyncClient, service: FakeService) -> None:
    service.timers["a"] = Timer(SOON, 42, "a", "poll")
    response = await client.post("/v1/timers:cancel", json={"ids": ["b", "a", "a"]})
    assert response.json() == {
        "cancelled": 1,
        "results": [
            {"id": "b", "status": "not_found", "in_flight": False},
            {"id": "a", "status": "cancelled", "in_flight": False},
            {"id": "a", "status": "not_found", "in_flight": False},
        ],
    }


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, ["/ids"]),
        ({"ids": []}, ["/ids"]),
        ({"ids": "a"}, ["/ids"]),
        ({"ids": [1]}, ["/ids/0"]),
        ({"ids": ["a", "", "b", ".."]}, ["/ids/1", "/ids/3"]),
        ({"ids": ["a"] * 10_001}, ["/ids"]),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_bad_cancel(client: httpx.AsyncClient, service: FakeService, body: object, pointers: list[str]) -> None:
    response = await client.post("/v1/timers:cancel", json=body)
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == pointers
    assert service.asked == []


async def test_fire(client: httpx.AsyncClient, service: FakeService) -> None:
    service.timers["a"] = Timer(SOON, 42, "a", "poll")
    fired = await client.post("/v1/timers/a:fire")
    assert (fired.status_code, fired.json()["status"]) == (200, "moved")
    assert fired.json()["fire_at"] == "2026-11-30T08:00:00.000Z"
    assert (await client.post("/v1/timers/a:fire", json={})).status_code == 200
    service.in_flight.add("a")
    assert (await client.post("/v1/timers/a:fire")).json()["status"] == "unchanged"
    service.dead["d"] = Timer(SOON, 43, "d", "poll")
    dead = await client.post("/v1/timers/d:fire")
    assert (dead.status_code, dead.json()["type"][-10:]) == (409, "timer-dead")
    missing = await client.post("/v1/timers/b:fire")
    assert (missing.status_code, missing.json()["type"][-15:]) == (404, "timer-not-found")


async def test_list(client: httpx.AsyncClient, service: FakeService) -> None:
    for id in "abc":
        service.timers[id] = Timer(SOON, 42, id, "poll")
    page = (await client.get("/v1/timers", params={"page_size": 2})).json()
    assert [timer["id"] for timer in page["timers"]] == ["a", "b"]
    assert page["next_page_token"] == "more"
    assert "next_page_token" not in (await client.get("/v1/timers")).json()
    assert service.asked[-1] == ("list", Filter(), 100, None)
    await client.get(
        "/v1/timers",
        params={"type": "poll", "state": "due", "fire_after": str(SOON), "fire_before": "2026-11-30T09:00:00+01:00",
                "id_prefix": "a/", "page_token": "more"},
    )  # fmt: skip
    assert service.asked[-1] == ("list", Filter("poll", "due", SOON, NOW_MS, "a/"), 100, "more")
    await client.get("/v1/timers?type=&state=&fire_after=&fire_before=&id_prefix=&page_size=&page_token=")
    assert service.asked[-1] == ("list", Filter(), 100, None)
    await client.get("/v1/timers?id_prefix=..")
    assert service.asked[-1][1] == Filter(id_prefix="..")
    service.refusal = Refused("validation", "no such page", [("page_token", "is none of ours")])
    assert (await client.get("/v1/timers?page_token=zz")).status_code == 422


@pytest.mark.parametrize(
    ("query", "pointers"),
    [
        ("page_size=0", ["page_size"]),
        ("page_size=1001", ["page_size"]),
        ("page_size=ten", ["page_size"]),
        ("page_size=-1", ["page_size"]),
        ("page_size=1.0", ["page_size"]),
        ("page_size=٣", ["page_size"]),
        ("page_size=" + "9" * 5_000, ["page_size"]),
        ("state=lost", ["state"]),
        ("type=Poll", ["type"]),
        ("fire_after=2030-01-01", ["fire_after"]),
        ("fire_after=2030-01-01T00:00:00", ["fire_after"]),
        ("fire_before=5", ["fire_before"]),
        ("fire_before=" + "9" * 5_000, ["fire_before"]),
        ("id_prefix=%0A", ["id_prefix"]),
        ("id_prefix=" + "x" * 257, ["id_prefix"]),
        ("page_size=1&page_size=2", ["page_size"]),
        ("x=", ["x"]),
        ("limit=5&sort=x&page_size=0", ["limit", "sort", "page_size"]),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_bad_parameters(client: httpx.AsyncClient, service: FakeService, query: str, pointers: list[str]) -> None:
    response = await client.get(f"/v1/timers?{query}")
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == pointers
    assert service.asked == []


async def test_an_unknown_parameter_is_told_which_there_are(client: httpx.AsyncClient) -> None:
    for path, known in (
        ("/v1/timers:next?page_size=2", "type, limit"),
        ("/v1/timers?limit=2", "type, state, fire_after, fire_before, id_prefix, page_size, page_token"),
        ("/v1/timers/a?limit=2", "none"),
    ):
        (fault,) = (await client.get(path)).json()["errors"]
        assert fault["detail"] == f"is no parameter of this call, which takes {known}"


async def test_a_query_that_can_not_be_read(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/timers?id_prefix=%ff")).status_code == 400


async def test_next(client: httpx.AsyncClient, service: FakeService) -> None:
    service.timers["b"] = Timer(SOON, 42, "b", "poll")
    service.timers["a"] = Timer(SOON - 1, 43, "a", "poll")
    assert [t["id"] for t in (await client.get("/v1/timers:next")).json()["timers"]] == ["a", "b"]
    assert [t["id"] for t in (await client.get("/v1/timers:next?limit=1&type=poll")).json()["timers"]] == ["a"]
    assert service.asked[-1] == ("next", "poll", 1)
    for query in ("limit=0", "limit=1001", "page_size=3"):
        assert (await client.get(f"/v1/timers:next?{query}")).status_code == 422
