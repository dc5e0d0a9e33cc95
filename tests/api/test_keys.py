"""The routes of keys, and what becomes of requests as keys come and go."""

from typing import Any

import msgspec
import pytest

from tests.api.asgi import HOST, JSON, Answer, call
from tests.api.fake_service import NOW_MS, FakeService
from timerd_api.app import create_app
from timerd_api.settings import ApiSettings

OWNER = (b"authorization", b"Bearer owner")
WHEN = "2026-11-30T08:00:00.000Z"


class Api:
    """The application, and its calls about keys."""

    def __init__(self, service: FakeService, key: str | None = "owner") -> None:
        self.app = create_app(service, ApiSettings(api_key=key))

    async def call(self, method: str, path: str, body: Any = None, key: str | None = "owner", **more: bytes) -> Answer:
        headers = [HOST, JSON, *((name.replace("_", "-").encode(), value) for name, value in more.items())]
        if key is not None:
            headers.append((b"authorization", f"Bearer {key}".encode()))
        return await call(self.app, method, path, b"" if body is None else msgspec.json.encode(body), headers)

    async def create(self, **fields: Any) -> Any:
        answer = await self.call("POST", "/v1/keys", {"name": "n", "scopes": ["read"], **fields})
        assert answer.status == 201, answer
        assert answer.headers["cache-control"] == "no-store"
        return answer.json()


@pytest.fixture
def api(service: FakeService) -> Api:
    return Api(service)


async def test_a_key_from_its_making_to_its_end(api: Api, service: FakeService) -> None:
    made = await api.create(name="mail@x-1", scopes=["read", "arm", "read"], expires_in="90d", max_per_second=2.5)
    text = made.pop("key")
    assert text.startswith(f"td_{made['id']}_")
    assert made == {
        "id": made["id"], "name": "mail@x-1", "scopes": ["read", "arm"], "created_at": WHEN, "max_per_second": 2.5,
        "expires_at": "2027-02-28T08:00:00.000Z",
    }  # fmt: skip
    assert (await api.call("GET", "/v1/keys")).json() == {"keys": [made]}
    assert (await api.call("GET", "/v1/timers", key=text)).status == 200
    assert (await api.call("GET", "/v1/keys")).json() == {"keys": [{**made, "last_used_at": WHEN}]}
    answer = await api.call("DELETE", f"/v1/keys/{made['id']}")
    assert (answer.status, answer.body) == (204, b"")
    answer = await api.call("GET", "/v1/timers", key=text)
    assert (answer.status, answer.problem) == (401, "unauthorized")
    assert (await api.call("GET", "/v1/keys")).json() == {"keys": []}
    assert (await api.call("DELETE", f"/v1/keys/{made['id']}")).problem == "key-not-found"
    assert service.asked


async def test_a_key_without_limits_is_shown_without_them(api: Api) -> None:
    made = await api.create()
    assert sorted(made) == ["created_at", "id", "key", "name", "scopes"]


async def test_the_oldest_is_shown_first(api: Api, service: FakeService) -> None:
    names = []
    for n in range(3):
        await api.create(name=f"k{n}")
        service.clock.waited_ms += 1
        names.append(f"k{n}")
    shown = (await api.call("GET", "/v1/keys")).json()["keys"]
    assert sorted(key["name"] for key in shown) == names
    assert [(key["created_at"], key["id"]) for key in shown] == sorted((key["created_at"], key["id"]) for key in shown)


@pytest.mark.parametrize("end", [{"expires_in": 1}, {"expires_at": NOW_MS + 1_000}])
async def test_an_expired_key_is_none(api: Api, service: FakeService, end: dict[str, Any]) -> None:
    made = await api.create(**end)
    assert (await api.call("GET", "/v1/timers", key=made["key"])).status == 200
    key = service.keys.known[made["id"]]
    assert key.expires_at is not None
    assert NOW_MS + 1_000 <= key.expires_at <= NOW_MS + 1_001
    service.keys.known = {key.id: msgspec.structs.replace(key, expires_at=NOW_MS)}
    api = Api(service)
    answer = await api.call("GET", "/v1/timers", key=made["key"])
    assert (answer.status, answer.problem) == (401, "unauthorized")
    assert "expired" in answer.json()["detail"]
    assert made["key"] not in answer.body.decode()


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"name": ""}, "/name"),
        ({"name": "a b"}, "/name"),
        ({"name": "a\n"}, "/name"),
        ({"name": "x" * 65}, "/name"),
        ({"name": "td_abcdefgh_" + "x" * 43}, "/name"),
        ({"scopes": []}, "/scopes"),
        ({"scopes": ["write"]}, "/scopes/0"),
        ({"scopes": "read"}, "/scopes"),
        ({"expires_in": "soon"}, "/expires_in"),
        ({"expires_in": 0}, "/expires_in"),
        ({"expires_in": "3661d"}, "/expires_in"),
        ({"expires_at": NOW_MS}, "/expires_at"),
        ({"expires_at": "2026-11-30T08:00:00"}, "/expires_at"),
        ({"expires_in": 1, "expires_at": NOW_MS + 1}, "/expires_in"),
        ({"max_per_second": 0}, "/max_per_second"),
        ({"max_per_second": -1}, "/max_per_second"),
        ({"max_per_second": "1"}, "/max_per_second"),
        ({"max_a_second": 1}, "/max_a_second"),
    ],
)
async def test_what_can_not_be_a_key(api: Api, service: FakeService, fields: dict[str, Any], pointer: str) -> None:
    answer = await api.call("POST", "/v1/keys", {"name": "n", "scopes": ["read"], **fields})
    assert (answer.status, answer.problem, answer.pointers) == (422, "validation", [pointer])
    assert not service.keys.known


async def test_a_whole_key_in_place_of_its_id_is_not_repeated(api: Api) -> None:
    made = await api.create()
    answer = await api.call("DELETE", f"/v1/keys/{made['key']}")
    assert answer.problem == "key-not-found"
    assert made["key"].encode() not in answer.body
    assert (await api.call("GET", "/v1/timers", key=made["key"])).status == 200


async def test_a_late_write_and_a_full_disk(api: Api, service: FakeService) -> None:
    made = await api.create()
    body = {"name": "n", "scopes": ["read"]}
    for late in (b"2026-11-30T07:59:59Z",):
        assert (await api.call("POST", "/v1/keys", body, timerd_expires=late)).problem == "expired"
        assert (await api.call("DELETE", f"/v1/keys/{made['id']}", timerd_expires=late)).problem == "expired"
    service.catalog.full = True
    assert (await api.call("POST", "/v1/keys", body)).problem == "storage-full"
    assert (await api.call("DELETE", f"/v1/keys/{made['id']}")).problem == "storage-full"
    assert (await api.call("GET", "/v1/timers", key=made["key"])).status == 200


async def test_without_a_key_none_can_be_made(service: FakeService) -> None:
    api = Api(service, key=None)
    answer = await api.call("POST", "/v1/keys", {"name": "n", "scopes": ["admin"]}, key=None)
    assert (answer.status, answer.problem) == (403, "forbidden")
    assert "TIMERD_API_KEY" in answer.json()["detail"]
    assert (await api.call("GET", "/v1/keys", key=None)).json() == {"keys": []}


async def test_keys_alone_close_the_door_and_their_end_does_not_open_it(service: FakeService) -> None:
    made = await Api(service).create(scopes=["admin"])
    api = Api(service, key=None)
    assert (await api.call("GET", "/v1/timers", key=None)).status == 401
    assert (await api.call("GET", "/v1/timers", key="owner")).status == 401
    assert (await api.call("DELETE", f"/v1/keys/{made['id']}", key=made["key"])).status == 204
    assert not service.keys.known
    assert (await api.call("GET", "/v1/timers", key=None)).status == 401


async def test_the_bootstrap_key_may_look_like_any_other(service: FakeService) -> None:
    made = await Api(service).create()
    for owner in (f"td_{made['id']}_mine", made["key"][:-1], "td_"):
        api = Api(service, key=owner)
        assert (await api.call("GET", "/v1/keys", key=owner)).status == 200
        assert (await api.call("GET", "/v1/timers", key=made["key"])).status == 200
        assert (await api.call("GET", "/v1/timers", key=owner + "x")).status == 401


@pytest.mark.parametrize("change", [lambda k: k[:-1], lambda k: k + "A", lambda k: k.upper(), lambda k: k[3:]])
async def test_nearly_a_key_is_none(api: Api, change: Any) -> None:
    made = await api.create()
    assert (await api.call("GET", "/v1/timers", key=change(made["key"]))).status == 401
