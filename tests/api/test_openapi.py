"""The contract that is served: it is the golden one, valid, and about the routes there are."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from msgspec.structs import fields
from openapi_spec_validator import validate

from tests.api.fake_service import FakeService
from timerd.engine.answer import Accepted, Limits, read_answer
from timerd.engine.batch import Batch, batch_id, encode_body
from timerd.engine.now import Now
from timerd.engine.timer import Failure, Timer
from timerd_api import openapi
from timerd_api.app import _Door, create_app
from timerd_api.delivery import DeliveredTimer, Delivery, DeliveryResult
from timerd_api.schema import MisfireBody, RetryBody, TypeBody
from timerd_api.settings import ApiSettings

GOLDEN = Path(__file__).parents[2] / "api" / "openapi.json"


def test_golden() -> None:
    assert openapi.encoded() == GOLDEN.read_bytes(), "python -m timerd_api.openapi api/openapi.json writes it anew"


async def test_served(client: httpx.AsyncClient) -> None:
    response = await client.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.content == GOLDEN.read_bytes()


def test_valid() -> None:
    validate(openapi.document())


def test_every_route_is_in_it_and_no_other(service: FakeService) -> None:
    app = create_app(service, ApiSettings())
    assert isinstance(app, _Door)
    assert isinstance(app._surface, FastAPI)
    routes = {(m.lower(), r.path) for r in app._surface.routes for m in r.methods}  # type: ignore[attr-defined]
    assert routes | {("post", "/v1/timers"), ("put", "/v1/timers/{id}")} == {
        (call.method, call.path) for call in openapi.CALLS
    }


def test_a_virtual_clock_adds_its_routes(service: FakeService) -> None:
    class Turner:
        async def turn_to(self, wall_ms: int) -> int:
            return 0

    app = create_app(service, ApiSettings(), Turner())
    assert isinstance(app, _Door)
    assert isinstance(app._surface, FastAPI)
    routes = {(m.lower(), r.path) for r in app._surface.routes for m in r.methods}  # type: ignore[attr-defined]
    added = {(call.method, call.path) for call in openapi.CLOCK_CALLS}
    assert (
        routes | {("post", "/v1/timers"), ("put", "/v1/timers/{id}")}
        == {(call.method, call.path) for call in openapi.CALLS} | added
    )
    document = openapi.document(virtual=True)
    validate(document)
    assert document["paths"].keys() - openapi.document()["paths"].keys() == {path for _, path in added}


def test_operation_ids_are_unique() -> None:
    operations = [o for path in openapi.document()["paths"].values() for o in path.values()]
    assert len({o["operationId"] for o in operations}) == len(operations)


async def test_the_page_needs_nothing_else(client: httpx.AsyncClient) -> None:
    response = await client.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    text = response.text
    assert not re.search(r"<script|<link|<img|url\(|@import|https?://(?!timerd\.dev/problems)", text)
    ids, links = set(), set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            ids.add(given.get("id"))
            if (href := given.get("href")) and href.startswith("#"):
                links.add(href[1:])

    Reader().feed(text)
    assert links
    assert links <= ids
    for call in openapi.CALLS:
        assert f"<code>{call.path}</code>" in text


def test_the_delivery_is_in_it_without_a_key() -> None:
    operation = openapi.document()["webhooks"]["delivery"]["post"]
    assert operation["security"] == []
    assert {p["name"] for p in operation["parameters"]} >= {"webhook-id", "webhook-signature", "Idempotency-Key"}
    assert {"2XX", "3XX", "410", "429", "503", "default"} == set(operation["responses"])


def test_the_delivery_described_is_the_one_that_is_sent() -> None:
    timers = [
        Timer(1_800_000_000_000, 5, "a", "poll", b'{"n":1}', failure=Failure(1, 1, 1, 1, "HTTP 500")),
        Timer(1_800_000_000_000, 6, "b", "poll"),
    ]
    body = encode_body(Batch(1, "poll", timers, frozenset({"a"})), batch_id(timers), 1_800_000_000_001)
    assert msgspec.json.decode(msgspec.json.encode(msgspec.json.decode(body, type=Delivery))) == msgspec.json.decode(
        body
    )
    members = {name for t in msgspec.json.decode(body)["timers"] for name in t}
    assert members == set(DeliveredTimer.__struct_fields__)


def test_the_results_described_are_those_that_are_understood() -> None:
    described = get_args(get_args(next(f.type for f in fields(DeliveryResult) if f.name == "status"))[0])
    for status in described:
        result = {"id": "a", "status": status, **({"delay": 1} if status == "rearm" else {})}
        body = msgspec.json.encode({"results": [result]})
        outcome = read_answer(
            Now(1_800_000_000_000_000, 0), {"a"}, Limits(), status=200, headers={"content-type": "application/json"},
            body=body,
        )  # fmt: skip
        assert isinstance(outcome, Accepted)
        assert [r.status for r in outcome.results.values()] == ([] if status == "ok" else [status])


@pytest.mark.parametrize("struct", [TypeBody, RetryBody, MisfireBody])
def test_every_option_of_a_type_says_what_it_is(struct: type[msgspec.Struct]) -> None:
    properties = openapi.document()["components"]["schemas"][struct.__name__]["properties"]
    for name, schema in properties.items():
        parts = schema.get("anyOf", [])
        assert "$ref" in schema or any("description" in part for part in (schema, *parts)), name


async def test_answers_fit_their_schemas(client: httpx.AsyncClient, service: FakeService) -> None:
    await client.put("/v1/timers/a", json={"type": "poll", "delay": "1h", "payload": [1]})
    await client.post("/v1/timers", json={"timers": [{"id": "b", "type": "poll", "delay": 5}]})
    service.dead["d"] = service.timers["b"]
    for call in openapi.CALLS:
        if call.method != "get" or not isinstance(shape := call.answers.get(200), type):
            continue
        response = await client.get(call.path.replace("{id}", "a").replace("{name}", "poll"))
        value = msgspec.json.decode(response.content, type=shape, strict=True)
        assert msgspec.json.decode(msgspec.json.encode(value)) == response.json()
