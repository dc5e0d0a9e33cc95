"""POST /v1/timers: what is armed, what is refused, and that it is all or nothing."""

import httpx
import msgspec
import pytest

from tests.api.asgi import HOST, JSON, call
from tests.api.fake_service import NOW_MS, FakeService
from timerd.engine.message import Condition, Refused
from timerd.engine.timer import MAX_GENERATION, Timer
from timerd_api.app import create_app
from timerd_api.settings import ApiSettings

SOON = NOW_MS + 60_000
HORIZON_MS = ApiSettings().max_horizon_ms


def item(**changes: object) -> dict[str, object]:
    return {"id": "a", "type": "poll", "fire_at": SOON} | changes


async def test_the_answer_has_a_result_an_item_in_order(client: httpx.AsyncClient, service: FakeService) -> None:
    first = await client.post("/v1/timers", json={"timers": [item(), item(id="b"), item(fire_at=SOON + 1)]})
    assert first.status_code == 200
    answer = first.json()
    assert answer["now"] == first.headers["timerd-now"] == "2026-11-30T08:00:00.000Z"
    assert (answer["armed"], answer["conflicts"]) == (3, 0)
    assert [(r["id"], r["status"]) for r in answer["results"]] == [("a", "created"), ("b", "created"), ("a", "moved")]
    assert answer["results"][2] == {
        "id": "a",
        "status": "moved",
        "generation": service.timers["a"].generation,
        "fire_at": "2026-11-30T08:01:00.001Z",
        "previous_fire_at": "2026-11-30T08:01:00.000Z",
    }
    assert "previous_fire_at" not in answer["results"][0]


@pytest.mark.parametrize(
    ("prefer", "minimal"),
    [
        ("return=minimal", True),
        ("respond-async, Return=Minimal; foo", True),
        ("return = minimal", True),
        ("return=representation", False),
        ("xreturn=minimal", False),
    ],
)
async def test_prefer_minimal(client: httpx.AsyncClient, service: FakeService, prefer: str, minimal: bool) -> None:
    response = await client.post("/v1/timers", json={"timers": [item()]}, headers={"Prefer": prefer})
    assert ("results" not in response.json()) is minimal
    assert response.headers.get("preference-applied") == ("return=minimal" if minimal else None)
    assert service.asked[-1][3] is not minimal


@pytest.mark.parametrize(
    ("fire_at", "ms"),
    [
        (SOON, SOON),
        (10**11, 10**11),
        (NOW_MS + HORIZON_MS, NOW_MS + HORIZON_MS),
        ("2026-12-01T00:00:00Z", NOW_MS + 16 * 3_600_000),
        ("2026-12-01t00:00:00z", NOW_MS + 16 * 3_600_000),
        ("2026-12-01T05:30:00+05:30", NOW_MS + 16 * 3_600_000),
        ("2026-11-30T16:00:00-08:00", NOW_MS + 16 * 3_600_000),
        ("2026-12-01T00:00:00.0001-00:00", NOW_MS + 16 * 3_600_000 + 1),
    ],
)
async def test_fire_at(client: httpx.AsyncClient, service: FakeService, fire_at: object, ms: int) -> None:
    for mode in ("replace", "latest"):  # the plain way in, and the careful one
        response = await client.post("/v1/timers", json={"timers": [item(fire_at=fire_at, mode=mode)]})
        assert response.status_code == 200, response.text
        timers = service.asked[-1][1]
        assert isinstance(timers, list)
        assert timers == [Timer(ms, 0, "a", "poll")]


@pytest.mark.parametrize(
    ("delay", "ms"), [(0, 0), (1.5, 1_500), (0.0001, 1), ("250ms", 250), ("36h", 129_600_000), ("60d", 5_184_000_000)]
)
async def test_a_delay_counts_from_the_next_whole_millisecond(
    client: httpx.AsyncClient, service: FakeService, delay: object, ms: int
) -> None:
    body = {"timers": [{"id": "a", "type": "poll", "delay": delay}]}
    assert (await client.post("/v1/timers", json=body)).status_code == 200
    assert service.timers["a"].fire_at == NOW_MS + 1 + ms  # the fake clock stands 0.25 ms past NOW_MS


BAD_ITEMS = [
    (item(fire_at="2030-01-01T00:00:00"), "/fire_at", "validation"),
    (item(fire_at="soon"), "/fire_at", "validation"),
    (item(fire_at=""), "/fire_at", "validation"),
    (item(fire_at=-1), "/fire_at", "validation"),
    (item(fire_at=0), "/fire_at", "validation"),
    (item(fire_at=10**11 - 1), "/fire_at", "validation"),
    (item(fire_at=1.8e12), "/fire_at", "validation"),
    (item(fire_at=True), "/fire_at", "validation"),
    (item(fire_at=None), "/fire_at", "validation"),
    (item(fire_at=[]), "/fire_at", "validation"),
    (item(fire_at={}), "/fire_at", "validation"),
    (item(fire_at=NOW_MS + HORIZON_MS + 1), "/fire_at", "horizon-exceeded"),
    (item(fire_at=10**30), "/fire_at", "horizon-exceeded"),
    (item(fire_at="9999-01-01T00:00:00Z"), "/fire_at", "horizon-exceeded"),
    ({"id": "a", "type": "poll"}, "/fire_at", "validation"),
    (item(delay=1), "/delay", "validation"),
    ({"id": "a", "type": "poll", "delay": -1}, "/delay", "validation"),
    ({"id": "a", "type": "poll", "delay": "1 week"}, "/delay", "validation"),
    ({"id": "a", "type": "poll", "delay": True}, "/delay", "validation"),
    ({"id": "a", "type": "poll", "delay": None}, "/delay", "validation"),
    ({"id": "a", "type": "poll", "delay": "4000d"}, "/delay", "horizon-exceeded"),
    ({"id": "a", "type": "poll", "delay": 1e308}, "/delay", "validation"),
    ({"type": "poll", "fire_at": SOON}, "/id", "validation"),
    (item(id=""), "/id", "validation"),
    (item(id=5), "/id", "validation"),
    (item(id="."), "/id", "validation"),
    (item(id=".."), "/id", "validation"),
    (item(id="a\nb"), "/id", "validation"),
    (item(id="\x00"), "/id", "validation"),
    (item(id="\x7f"), "/id", "validation"),
    (item(id="x" * 257), "/id", "validation"),
    (item(id="é" * 129), "/id", "validation"),
    (item(id="🙂" * 65), "/id", "validation"),
    ({"id": "a", "fire_at": SOON}, "/type", "validation"),
    (item(type="nope"), "/type", "unknown-type"),
    (item(type=""), "/type", "unknown-type"),
    (item(type=None), "/type", "validation"),
    (item(mode="newest"), "/mode", "validation"),
    (item(mode=None), "/mode", "validation"),
    (item(if_generation=-1), "/if_generation", "validation"),
    (item(if_generation=MAX_GENERATION), "/if_generation", "validation"),
    (item(if_generation="1"), "/if_generation", "validation"),
    (item(payload="x" * 65_536), "/payload", "validation"),
    (item(request={}), "/request/url", "validation"),
    (item(request={"url": "http://h/"}), "/request", "validation"),
    (item(**{"fire at/~": 1}), "/fire at~1~0", "validation"),
    (7, "", "validation"),
    (None, "", "validation"),
    ([], "", "validation"),
]


@pytest.mark.parametrize("packed", [False, True], ids=["json", "msgpack"])
@pytest.mark.parametrize(("bad", "pointer", "name"), BAD_ITEMS, ids=[str(b[0])[:60] for b in BAD_ITEMS])
async def test_one_bad_item_and_nothing_is_armed(
    service: FakeService, bad: object, pointer: str, name: str, packed: bool
) -> None:
    if packed and isinstance(bad, dict) and bad.get("fire_at") == 10**30:
        pytest.skip("MessagePack has no such integer")
    encode = msgspec.msgpack.encode if packed else msgspec.json.encode
    media_type = (b"content-type", b"application/msgpack") if packed else JSON
    app = create_app(service, ApiSettings())
    body = encode({"timers": [item(id="good"), bad, item(id="better")]})
    answer = await call(app, "POST", "/v1/timers", body, [HOST, media_type])
    assert (answer.status, answer.problem, answer.pointers) == (422, name, [f"/timers/1{pointer}"])
    assert service.timers == {}
    assert service.asked == []


async def test_all_bad_items_are_listed(client: httpx.AsyncClient) -> None:
    items = [item(type="nope"), item(), 7, item(id="", fire_at=1, type="nope"), item(x=1), item(id=".", fire_at="now")]
    response = await client.post("/v1/timers", json={"timers": items})
    problem = response.json()
    assert problem["type"].endswith("/validation")
    pointers = [error["pointer"] for error in problem["errors"]]
    assert pointers == [
        "/timers/0/type", "/timers/2", "/timers/3/id", "/timers/4/x", "/timers/5/id", "/timers/5/fire_at",
    ]  # fmt: skip


async def test_at_most_a_hundred_are_listed(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/timers", json={"timers": [item(fire_at=1)] * 250})
    pointers = [error["pointer"] for error in response.json()["errors"]]
    assert pointers == [f"/timers/{number}/fire_at" for number in range(100)]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/timers"),
        ({"timers": []}, "/timers"),
        ({"timers": None}, "/timers"),
        ({"timers": {}}, "/timers"),
        ({"timers": [item()], "mode": "keep"}, "/mode"),
        ({"timers": [item()] * 10_001}, "/timers"),
        ([], ""),
        ("timers", ""),
        (None, ""),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_the_request_itself(client: httpx.AsyncClient, service: FakeService, body: object, pointer: str) -> None:
    response = await client.post(
        "/v1/timers", content=msgspec.json.encode(body), headers={"content-type": "application/json"}
    )
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]
    assert service.asked == []


async def test_ten_thousand_items(client: httpx.AsyncClient, service: FakeService) -> None:
    response = await client.post("/v1/timers", json={"timers": [item(id=str(n)) for n in range(10_000)]})
    assert response.json()["armed"] == 10_000 == len(service.timers)


async def test_conditions_go_along_with_their_timers(client: httpx.AsyncClient, service: FakeService) -> None:
    items = [item(), item(id="b", mode="earliest"), item(id="c", if_generation=0), item(id="d", if_generation=5)]
    response = await client.post("/v1/timers", json={"timers": items})
    assert service.asked[-1][2] == [
        Condition(),
        Condition("earliest"),
        Condition("replace", 0),
        Condition("replace", 5),
    ]
    assert response.json()["conflicts"] == 1
    assert response.json()["results"][3] == {"id": "d", "status": "conflict", "generation": 0, "fire_at": None}
    await client.post("/v1/timers", json={"timers": [item(mode="replace")]})
    assert service.asked[-1][2] is None


async def test_types_are_the_one_string_the_type_holds(client: httpx.AsyncClient, service: FakeService) -> None:
    held = service.types["poll"].name
    service.types["other"] = msgspec.structs.replace(service.types["poll"], name="other")
    for items in ([item()], [item(mode="keep")], [item(), item(type="other")]):
        await client.post("/v1/timers", json={"timers": items})
        timers = service.asked[-1][1]
        assert isinstance(timers, list)
        assert timers[0].type is held


@pytest.mark.parametrize("mode", ["replace", "latest"])
@pytest.mark.parametrize(
    "payload",
    [b"null", b"0", b'""', b"[]", b'{ "a" : [1,2.50, 1e3],\n "a":"\\u00e9\xc3\xa9" }', b"1e400", b"-0.0", b"1" * 400],
)
async def test_a_payload_is_handed_on_unchanged(service: FakeService, payload: bytes, mode: str) -> None:
    app = create_app(service, ApiSettings())
    body = b'{"timers":[{"id":"a","type":"poll","fire_at":%d,"mode":"%s","payload": %s }]}' % (
        SOON,
        mode.encode(),
        payload,
    )
    if mode == "replace":
        body = body.replace(b'"mode":"replace",', b"")
    assert (await call(app, "POST", "/v1/timers", body)).status == 200
    assert service.timers["a"].payload == payload
    shown = await call(app, "GET", "/v1/timers/a")
    assert payload in shown.body


async def test_a_payload_of_the_largest_size(service: FakeService) -> None:
    app = create_app(service, ApiSettings(max_payload_bytes=1_000))
    for size, status in ((1_000, 200), (1_001, 422)):
        body = msgspec.json.encode({"timers": [item(payload="x" * (size - 2))]})
        assert (await call(app, "POST", "/v1/timers", body)).status == status


@pytest.mark.parametrize("expires", ["", "soon", "1796025600000", "2026-11-30T08:00:00"])
async def test_a_bad_expiry(client: httpx.AsyncClient, expires: str) -> None:
    response = await client.post("/v1/timers", json={"timers": [item()]}, headers={"Timerd-Expires": expires})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "Timerd-Expires"


async def test_an_expiry_goes_along(client: httpx.AsyncClient, service: FakeService) -> None:
    headers = {"Timerd-Expires": "2026-11-30T09:00:00+01:00"}
    assert (await client.post("/v1/timers", json={"timers": [item()]}, headers=headers)).status_code == 200
    assert service.asked[-1][4] == NOW_MS
    headers = {"Timerd-Expires": "2026-11-30T07:59:59.999Z"}
    late = await client.post("/v1/timers", json={"timers": [item(fire_at=SOON + 9)]}, headers=headers)
    assert late.status_code == 409
    assert late.json()["type"].endswith("/expired")


async def test_refusals_of_the_node(client: httpx.AsyncClient, service: FakeService) -> None:
    service.refusal = Refused("storage-full", "no room")
    response = await client.post("/v1/timers", json={"timers": [item()]})
    assert response.status_code == 507
    assert "retry-after" not in response.headers
    service.refusal = Refused("overloaded", "full", retry_after_s=7)
    response = await client.post("/v1/timers", json={"timers": [item()]})
    assert (response.status_code, response.headers["retry-after"]) == (503, "7")
    service.refusal = Refused("unknown-type", "gone", [("/timers/0/type", "it goes")])
    response = await client.post("/v1/timers", json={"timers": [item()]})
    assert response.json()["errors"] == [{"pointer": "/timers/0/type", "detail": "it goes"}]


async def test_query_parameters_are_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/timers?mode=keep", json={"timers": [item()]})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "mode")


async def test_a_batch_that_can_not_be_taken_is_not_read(client: httpx.AsyncClient, service: FakeService) -> None:
    service.busy_with = Refused("overloaded", "full", retry_after_s=1)
    response = await client.post("/v1/timers", content=b"{no JSON", headers={"Content-Type": "application/json"})
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert service.asked == []
