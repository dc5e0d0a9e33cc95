"""What schemathesis needs to know of timerd: MessagePack, ids and names that there are, and what goes together.

The contract says of a type's name or a time that it is text; most text is neither, and a run would hear of nothing but
refusals. So every second request that is meant to fit is mended until it does. Those that are meant not to fit stay.
"""

import random
from typing import Any

import msgspec
import schemathesis

NAMES = ["poll", "mail", "dead", "slow", "again", "call"]
IDS = [f"{type}:{n}" for type in NAMES for n in range(10)]
EXPIRES = "2035-01-01T00:00:00Z"
KNOWN = {"id": IDS, "name": NAMES}


@schemathesis.serializer("application/msgpack")
def packed(context: schemathesis.SerializationContext, value: Any) -> Any:
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, OverflowError, UnicodeEncodeError):
        return msgspec.msgpack.encode(None)  # what MessagePack can't hold


@schemathesis.deserializer("application/msgpack")
def unpacked(context: schemathesis.DeserializationContext, response: schemathesis.Response) -> Any:
    return msgspec.msgpack.decode(response.content)


@schemathesis.hook
def map_path_parameters(context: schemathesis.HookContext, path_parameters: dict[str, Any] | None) -> Any:
    """Every second time one that is there; which one hangs on what was drawn, so that a seed gives the same run."""
    for name, known in KNOWN.items():
        if path_parameters and name in path_parameters:
            chance = random.Random(repr(path_parameters[name]))
            if chance.random() < 0.5:
                path_parameters[name] = chance.choice(known)
    return path_parameters


@schemathesis.hook
def filter_query(context: schemathesis.HookContext, query: dict[str, Any] | None) -> bool:
    """A parameter that is written empty counts as left out, as the contract says; schemathesis does not read that."""
    return all(value not in ("", [], {}, None) for value in (query or {}).values())


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    chance = random.Random(repr((case.path, case.body, case.headers, case.query)))
    if case.meta is None or case.meta.generation.mode != schemathesis.GenerationMode.POSITIVE or chance.random() < 0.5:
        return
    if case.headers and "Timerd-Expires" in case.headers:
        case.headers["Timerd-Expires"] = EXPIRES
    if case.headers and chance.random() < 0.8:
        for name in ("If-Match", "If-None-Match"):
            case.headers.pop(name, None)
    if case.query:
        case.query = {k: v for k, v in case.query.items() if k in ("page_size", "limit", "state")} | {
            k: chance.choice(NAMES) for k in case.query if k == "type"
        }
    if isinstance(case.body, dict):
        case.body = mended(chance, case.path, dict(case.body))


def mended(chance: random.Random, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body with values that the contract can't say."""
    if path.startswith("/v1/types"):
        times = ("max_lag", "request_timeout")
        body = {k: v for k, v in body.items() if k not in ("signing_secrets", "headers", "retry", "misfire", *times)}
        return body if body.get("kind") == "callback" else {**body, "url": "http://127.0.0.1:9/"}
    if path == "/v1/timers":
        return {**body, "timers": [timer(chance, item) for item in body.get("timers", ()) if isinstance(item, dict)]}
    if path == "/v1/timers/{id}":
        return timer(chance, body)
    if "ids" in body and "type" in body:
        del body[chance.choice(("ids", "type"))]
    if "type" in body:
        body["type"] = chance.choice(NAMES)
    if "ids" in body:
        body["ids"] = [chance.choice(IDS) for _ in body["ids"]]
    return body


def timer(chance: random.Random, item: dict[str, Any]) -> dict[str, Any]:
    """An item of an arm, or the body of one alone, that can be armed."""
    item = {k: v for k, v in item.items() if k not in ("delay", "if_generation")}
    if "id" in item and chance.random() < 0.5:
        item["id"] = chance.choice(IDS)
    item["type"] = chance.choice(NAMES)
    item["fire_at"] = 2_050_000_000_000 + chance.randrange(10**9)
    if item["type"] == "call":
        request = item.get("request")
        kept = {k: v for k, v in request.items() if k in ("method", "body")} if isinstance(request, dict) else {}
        item.pop("payload", None)
        return {**item, "request": {**kept, "url": chance.choice(["https://example.com/a", "http://10.0.0.1/"])}}
    item.pop("request", None)
    return item
