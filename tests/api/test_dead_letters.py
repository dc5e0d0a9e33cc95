"""Dead letters."""

import httpx
import pytest

from tests.api.fake_service import NOW_MS, FakeService
from timerd.engine.timer import Timer


async def test_list(client: httpx.AsyncClient, service: FakeService) -> None:
    assert (await client.get("/v1/dead-letters")).json() == {"dead_letters": []}
    service.dead = {id: Timer(NOW_MS, 42, id, "poll", b'{"n": 1}') for id in "abc"}
    page = (await client.get("/v1/dead-letters?type=poll&page_size=2")).json()
    assert page["next_page_token"] == "more"
    assert page["dead_letters"][0] == {
        "id": "a", "type": "poll", "generation": 42, "fire_at": "2026-11-30T08:00:00.000Z", "attempts": 4,
        "last_error": "500", "died_at": "2026-11-30T08:00:00.000Z", "payload": {"n": 1},
    }  # fmt: skip
    assert service.asked[-1] == ("list_dead", "poll", 2, None)
    await client.get("/v1/dead-letters?page_token=more")
    assert service.asked[-1] == ("list_dead", None, 100, "more")
    for query in ("page_size=0", "page_size=1001", "type=X", "state=dead"):
        assert (await client.get(f"/v1/dead-letters?{query}")).status_code == 422


@pytest.mark.parametrize(("action", "counted"), [("replay", "replayed"), ("purge", "purged")])
async def test_act(client: httpx.AsyncClient, service: FakeService, action: str, counted: str) -> None:
    service.dead = {"a": Timer(NOW_MS, 42, "a", "poll")}
    by_id = await client.post(f"/v1/dead-letters:{action}", json={"ids": ["a"]})
    assert (by_id.status_code, by_id.json()) == (200, {counted: 1})
    assert service.asked[-1] == (action, ["a"], None, None)
    headers = {"Timerd-Expires": "2026-11-30T09:00:00Z"}
    await client.post(f"/v1/dead-letters:{action}", json={"type": "gone"}, headers=headers)
    assert service.asked[-1] == (action, None, "gone", NOW_MS + 3_600_000)
    late = await client.post(
        f"/v1/dead-letters:{action}", json={"type": "gone"}, headers={"Timerd-Expires": "2026-11-30T07:00:00Z"}
    )
    assert late.status_code == 409


@pytest.mark.parametrize("action", ["replay", "purge"])
@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/ids"),
        ({"ids": ["a"], "type": "poll"}, "/type"),
        ({"ids": []}, "/ids"),
        ({"ids": ["a", ""]}, "/ids/1"),
        ({"ids": None}, "/ids"),
        ({"type": None}, "/type"),
        ({"type": "No"}, "/type"),
        ({"all": True}, "/all"),
    ],
)
async def test_bad_bodies(
    client: httpx.AsyncClient, service: FakeService, action: str, body: object, pointer: str
) -> None:
    response = await client.post(f"/v1/dead-letters:{action}", json=body)
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]
    assert service.asked == []
