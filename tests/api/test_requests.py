"""Requests of callbacks at the API's door: what is taken, what is refused and where, and how they are shown."""

import base64

import httpx
import msgspec
import pytest

from tests.api.asgi import HOST, JSON, call
from tests.api.fake_service import NOW_MS, FakeService
from timerd.engine.address import Targets, parse_network
from timerd.engine.callback import CallbackRequest, decode_request, is_request
from timerd.engine.timer import TimerType
from timerd_api.app import create_app
from timerd_api.request_schema import RequestBody
from timerd_api.settings import ApiSettings

URL = "https://example.com/hook"


@pytest.fixture
def service() -> FakeService:
    service = FakeService()
    service.types["call"] = TimerType("call", kind="callback")
    return service


def item(request: object = None, **changes: object) -> dict[str, object]:
    wanted = {"url": URL} if request is None else request
    timer = {"id": "a", "type": "call", "fire_at": NOW_MS + 60_000, "request": wanted} | changes
    return {name: value for name, value in timer.items() if value is not msgspec.UNSET}


@pytest.mark.parametrize("packed", [False, True], ids=["json", "msgpack"])
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, CallbackRequest("POST", URL, (), "", b"")),
        ({"body": "ü"}, CallbackRequest("POST", URL, (), "body", "ü".encode())),
        ({"body": ""}, CallbackRequest("POST", URL, (), "body", b"")),
        ({"json": {"a": 1}}, CallbackRequest("POST", URL, (), "json", b'{"a":1}')),
        ({"json": None}, CallbackRequest("POST", URL, (), "json", b"null")),
        ({"body_base64": "AP8="}, CallbackRequest("POST", URL, (), "body_base64", b"\x00\xff")),
        (
            {"method": "PATCH", "headers": {"X-B": "2", "x-a": "1"}},
            CallbackRequest("PATCH", URL, (("X-B", "2"), ("x-a", "1")), "", b""),
        ),
    ],
)
async def test_a_request_is_kept_and_shown_as_it_was_given(
    service: FakeService, given: dict[str, object], kept: CallbackRequest, packed: bool
) -> None:
    app = create_app(service, ApiSettings())
    encode = msgspec.msgpack.encode if packed else msgspec.json.encode
    media_type = (b"content-type", b"application/msgpack") if packed else JSON
    body = encode({"timers": [item({"url": URL, **given})]})
    answer = await call(app, "POST", "/v1/timers", body, [HOST, media_type])
    assert answer.status == 200
    payload = service.timers["a"].payload
    assert isinstance(payload, bytes)
    assert decode_request(payload) == kept
    answer = await call(app, "GET", "/v1/timers/a", b"", [HOST])
    shown = msgspec.json.decode(answer.body)
    assert "payload" not in shown
    assert shown["request"] == {"url": URL, "method": "POST", "headers": {}, **given}


async def test_json_is_kept_byte_for_byte(service: FakeService) -> None:
    raw = b'{"id":"a","type":"call","delay":1,"request":{"url":"https://h/","json":{ "b" : 1.0, "a":[ ] }}}'
    await call(create_app(service, ApiSettings()), "POST", "/v1/timers", b'{"timers":[' + raw + b"]}", [HOST, JSON])
    payload = service.timers["a"].payload
    assert isinstance(payload, bytes)
    assert decode_request(payload).body == b'{ "b" : 1.0, "a":[ ] }'


def test_what_a_request_carries_is_in_no_repr() -> None:
    kept = CallbackRequest("POST", URL, (("Authorization", "Bearer of-mine"),), "body", b"of-mine")
    given = RequestBody(url=URL, headers={"Authorization": "Bearer of-mine"}, body="of-mine")
    assert "of-mine" not in repr(kept) + repr(given)


def test_no_json_is_taken_for_a_request() -> None:
    for text in ('"\u0095"', "[1]", "1", "null", '{"a":1}', " 1", '"\x90"'):
        assert not is_request(text.encode())
    assert not is_request(None)
    assert not is_request(b"")


BAD = [
    (item(request=msgspec.UNSET), "/request"),
    (item(payload=1), "/payload"),
    (item({}), "/request/url"),
    (item({"url": URL, "extra": 1}), "/request/extra"),
    (item({"url": "ftp://h/"}), "/request/url"),
    (item({"url": "http://u:p@h/"}), "/request/url"),
    (item({"url": "http://h@127.0.0.1/"}), "/request/url"),
    (item({"url": "http://127.0.0.1\\@h/"}), "/request/url"),
    (item({"url": "http://h/ä"}), "/request/url"),
    (item({"url": "http://h/a b"}), "/request/url"),
    (item({"url": "http://h/\r\nX: 1"}), "/request/url"),
    (item({"url": "http://h/" + "x" * 2048}), "/request/url"),
    (item({"url": "http://134744072/"}), "/request/url"),  # 8.8.8.8, in an odd form
    *(
        (item({"url": URL, "method": method}), "/request/method")
        for method in ("post", "CONNECT", "TRACE", "G ET", "", None)
    ),
    *(
        (item({"url": URL, "headers": {name: "1"}}), f"/request/headers/{name.replace('/', '~1')}")
        for name in (
            *("Host", "content-length", "Transfer-Encoding", "Connection", "keep-alive", "TE", "Trailer", "Upgrade"),
            *("Expect", "Proxy-Authorization", "webhook-id", "Webhook-Signature", "Timerd-Attempt", "timerd-x"),
            *("a b", "a:b", "a/b", "ä", "", "x\r\ny"),
        )
    ),
    (item({"url": URL, "headers": {"A": "1\r\nHost: x"}}), "/request/headers/A"),
    (item({"url": URL, "headers": {"A": "ü"}}), "/request/headers/A"),
    (item({"url": URL, "headers": {"A": "x" * 4097}}), "/request/headers/A"),
    (item({"url": URL, "headers": {"A": "1", "a": "1"}}), "/request/headers/a"),
    (item({"url": URL, "headers": {"A": 1}}), "/request/headers"),
    (item({"url": URL, "headers": {f"H{n}": "x" * 4096 for n in range(5)}}), "/request/headers"),
    (item({"url": URL, "headers": {f"H{n}": "" for n in range(65)}}), "/request/headers"),
    (item({"url": URL, "body": "a", "json": 1}), "/request/json"),
    (item({"url": URL, "json": 1, "body_base64": "AA=="}), "/request/body_base64"),
    (item({"url": URL, "body": 1}), "/request/body"),
    (item({"url": URL, "body_base64": "a"}), "/request/body_base64"),
    (item({"url": URL, "body_base64": "AA==\n"}), "/request/body_base64"),
    (item({"url": URL, "body": "x" * 65_537}), "/request/body"),
    (item({"url": URL, "body_base64": base64.b64encode(bytes(65_537)).decode()}), "/request/body_base64"),
    (item({"url": URL}, type="poll"), "/request"),
]


@pytest.mark.parametrize("packed", [False, True], ids=["json", "msgpack"])
async def test_what_is_wrong_is_named_and_nothing_is_armed(service: FakeService, packed: bool) -> None:
    encode = msgspec.msgpack.encode if packed else msgspec.json.encode
    media_type = (b"content-type", b"application/msgpack") if packed else JSON
    app = create_app(service, ApiSettings())
    for bad, pointer in BAD:
        body = encode({"timers": [item(id="good"), bad, item(id="better")]})
        answer = await call(app, "POST", "/v1/timers", body, [HOST, media_type])
        found = (answer.status, answer.problem, answer.pointers)
        assert found == (422, "validation", [f"/timers/1{pointer}"]), bad
    assert service.timers == {}


async def test_one_timer_is_refused_likewise(client: httpx.AsyncClient) -> None:
    body = {"type": "call", "delay": 1, "request": {"url": URL, "headers": {"Host": "x"}}}
    answer = await client.put("/v1/timers/a", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/request/headers/Host"


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "0x7f.0.0.1", "0177.0.0.1", "2130706433", "127.0.0.1.", "0", "10.1.2.3", "172.31.0.1"),
        *("192.168.0.1", "169.254.169.254", "100.64.0.1", "224.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1"),
        *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::10.0.0.1]"),
        *("[fe80::1]", "[fd00:ec2::254]", "[ff02::1]", "[2002:7f00:1::]", "[2001:0:1::1]", "[fe80::1%25eth0]"),
    ],
)
async def test_a_literal_address_that_is_not_public_is_forbidden(client: httpx.AsyncClient, host: str) -> None:
    for port in ("", ":8080"):
        answer = await client.post("/v1/timers", json={"timers": [item({"url": f"http://{host}{port}/"})]})
        assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (422, "target-forbidden"), answer.text
        assert answer.json()["errors"][0]["pointer"] == "/timers/0/request/url"


async def test_a_network_may_be_allowed(service: FakeService) -> None:
    app = create_app(service, ApiSettings(targets=Targets([parse_network("10.0.0.0/8"), parse_network("fd00::/8")])))
    for host, status in (("10.1.2.3", 200), ("[fd00::1]", 200), ("[::ffff:10.0.0.1]", 200), ("11.0.0.1", 200),
                         ("127.0.0.1", 422), ("[fe80::1]", 422)):  # fmt: skip
        body = msgspec.json.encode({"timers": [item({"url": f"http://{host}/"})]})
        assert (await call(app, "POST", "/v1/timers", body, [HOST, JSON])).status == status, host


async def test_a_dead_letter_shows_its_request(client: httpx.AsyncClient, service: FakeService) -> None:
    await client.post("/v1/timers", json={"timers": [item({"url": URL, "body": "x"})]})
    service.dead["a"] = service.timers.pop("a")
    (letter,) = (await client.get("/v1/dead-letters")).json()["dead_letters"]
    assert letter["request"] == {"url": URL, "method": "POST", "headers": {}, "body": "x"}
    assert "payload" not in letter


async def test_a_callback_type_has_no_url_and_ten_attempts(client: httpx.AsyncClient) -> None:
    answer = await client.put("/v1/types/hooks", json={"kind": "callback"})
    assert answer.status_code == 201
    assert "url" not in answer.json()
    assert (answer.json()["kind"], answer.json()["retry"]["max_attempts"]) == ("callback", 10)
    answer = await client.put("/v1/types/p", json={"url": "http://h/"})
    assert answer.json()["retry"]["max_attempts"] == 0
