"""The contract as an OpenAPI document, made from the structs of `schema` and one table of calls.

The table says what each call takes and gives; the shapes come from the structs that the routes decode and encode, so
the document can't promise a member that isn't there. A golden copy lies in `api/openapi.json`; run this module to
write it anew, and read the difference before committing it.
"""

import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from timerd_api import clock, delivery, keys, nodes, schema, shards, stats_schema
from timerd_api.body import JSON, MSGPACK
from timerd_api.problem import KINDS, MEDIA_TYPE, TYPE_PREFIX, ProblemView
from timerd_api.scopes import ANY, NEEDS, OPEN, SCOPES
from timerd_api.values import EXPIRES

VERSION: Final = "1"


class Parameter(NamedTuple):
    """A query parameter or header."""

    name: str
    description: str
    schema: dict[str, Any]
    place: str = "query"


class Call(NamedTuple):
    """One route."""

    method: str
    path: str
    summary: str
    answers: dict[int, type[msgspec.Struct] | str | None]
    """By status: a struct, or a media type of its own, or nothing."""
    body: type[msgspec.Struct] | None = None
    parameters: tuple[Parameter, ...] = ()
    problems: tuple[str, ...] = ()


TEXT: Final[dict[str, Any]] = {"type": "string"}
_TYPE: Final = Parameter("type", "only timers of this type", TEXT)
_TOKEN: Final = Parameter("page_token", "next_page_token of the page before", TEXT)
_SIZE: Final = Parameter(
    "page_size",
    "at most so many; a page may be shorter and still have a next one",
    {"type": "integer", "minimum": 1, "maximum": schema.PAGE_SIZE_MAX, "default": schema.PAGE_SIZE},
)
_EXPIRES: Final = Parameter(EXPIRES, "refuse this when it is accepted later than this time (RFC 3339)", TEXT, "header")
_PREFER: Final = Parameter("Prefer", "return=minimal leaves `results` out", TEXT, "header")
_IF_MATCH: Final = Parameter("If-Match", "the generation that must stand, in double quotes", TEXT, "header")
_IF_NONE_MATCH: Final = Parameter("If-None-Match", "*: nothing may stand there", TEXT, "header")
_TIME: Final[dict[str, Any]] = {"type": "string", "description": "RFC 3339 with an offset, or Unix milliseconds"}
_STATES: Final[dict[str, Any]] = {
    "type": "string",
    "enum": ["armed", "due", "in_flight", "retrying", "paused", "dead"],
}
_LIST: Final = (
    _TYPE,
    Parameter("state", "only timers in this state", _STATES),
    Parameter("fire_after", "only timers with a later fire_at", _TIME),
    Parameter("fire_before", "only timers with an earlier fire_at", _TIME),
    Parameter("id_prefix", "only ids that begin so", TEXT),
    _SIZE,
    _TOKEN,
)
_NEXT: Final = (_TYPE, _SIZE._replace(name="limit", description="at most so many"))
_AWAY: Final = ("shard-unavailable",)
_WRITE: Final = ("expired", "storage-full", "overloaded", *_AWAY)
_ARM: Final = ("validation", "unknown-type", "horizon-exceeded", "target-forbidden", *_WRITE)

CALLS: Final = (
    Call("post", "/v1/timers", "Arm timers, all or none", {200: schema.ArmAnswer}, schema.ArmRequest,
         (_EXPIRES, _PREFER), _ARM),
    Call("get", "/v1/timers", "List timers", {200: schema.TimerPage}, None, _LIST,
         ("validation", "overloaded", *_AWAY)),
    Call("get", "/v1/timers:next", "The soonest due", {200: schema.TimerPage}, None, _NEXT,
         ("validation", "overloaded", *_AWAY)),
    Call("post", "/v1/timers:cancel", "Cancel timers", {200: schema.CancelAnswer}, schema.CancelRequest,
         (_EXPIRES,), ("validation", *_WRITE)),
    Call("get", "/v1/timers/{id}", "Show a timer", {200: schema.TimerItem},
         problems=("timer-not-found", *_AWAY)),
    Call("put", "/v1/timers/{id}", "Arm one timer", {200: schema.ArmResultItem, 201: schema.ArmResultItem},
         schema.ArmBody, (_EXPIRES, _IF_MATCH, _IF_NONE_MATCH), (*_ARM, "generation-mismatch")),
    Call("delete", "/v1/timers/{id}", "Cancel one timer", {200: schema.DeleteAnswer}, None, (_EXPIRES,),
         ("timer-not-found", *_WRITE)),
    Call("post", "/v1/timers/{id}:fire", "Re-arm to now, waiting for no batch", {200: schema.ArmResultItem}, None,
         (_EXPIRES,), ("timer-not-found", "timer-dead", *_WRITE)),
    Call("get", "/v1/types", "List types", {200: schema.TypeList}),
    Call("get", "/v1/types/{name}", "Show a type", {200: schema.TypeItem}, problems=("type-not-found",)),
    Call("put", "/v1/types/{name}", "Put a type in place of what was there",
         {200: schema.TypeItem, 201: schema.TypeItem}, schema.TypeBody, (_EXPIRES,),
         ("validation", "type-in-use", *_WRITE)),
    Call("delete", "/v1/types/{name}", "Remove a type", {204: None}, None, (_EXPIRES,),
         ("type-not-found", "type-in-use", *_WRITE)),
    Call("post", "/v1/types/{name}:pause", "Let its timers wait", {200: schema.TypeItem}, None, (_EXPIRES,),
         ("type-not-found", *_WRITE)),
    Call("post", "/v1/types/{name}:resume", "Deliver its timers again", {200: schema.TypeItem}, None, (_EXPIRES,),
         ("type-not-found", *_WRITE)),
    Call("get", "/v1/dead-letters", "List dead letters", {200: schema.DeadLetterPage}, None, (_TYPE, _SIZE, _TOKEN),
         ("validation", "overloaded", *_AWAY)),
    Call("post", "/v1/dead-letters:replay", "Let dead letters live again", {200: schema.ReplayAnswer},
         schema.DeadLetterRequest, (_EXPIRES,), ("validation", *_WRITE)),
    Call("post", "/v1/dead-letters:purge", "Forget dead letters", {200: schema.PurgeAnswer},
         schema.DeadLetterRequest, (_EXPIRES,), ("validation", *_WRITE)),
    Call("get", "/v1/keys", "List API keys", {200: keys.KeyList}),
    Call("post", "/v1/keys", "Make an API key; its text is in this answer alone", {201: keys.NewKey}, keys.KeyBody,
         (_EXPIRES,), ("validation", *_WRITE)),
    Call("delete", "/v1/keys/{id}", "Revoke an API key, at once", {204: None}, None, (_EXPIRES,),
         ("key-not-found", *_WRITE)),
    Call("get", "/healthz", "Whether the process lives", {200: schema.Health}),
    Call("get", "/readyz", "Whether it can do its work", {200: schema.Readiness, 503: schema.Readiness}),
    Call("get", "/v1/status", "The node as it is, and the timers of all", {200: schema.StatusItem}, problems=_AWAY),
    Call("get", "/v1/shards", "Its shards", {200: shards.ShardList}),
    Call("post", "/v1/shards:scale", "Have so many shards; timers move in the background", {200: shards.ShardScaled},
         shards.ShardScale, (_EXPIRES,), ("validation", "shards-moving", "shards-fixed", *_WRITE)),
    Call("get", "/v1/nodes", "The nodes that are there", {200: nodes.NodeList}),
    Call("get", "/v1/ring", "Where ids live", {200: nodes.Ring}),
    Call("get", "/v1/stats", "Counts by type, of all nodes", {200: stats_schema.Stats}, problems=_AWAY),
    Call("get", "/metrics", "Prometheus text, of this node alone", {200: "text/plain"}),
    Call("get", "/openapi.json", "This contract", {200: JSON}),
    Call("get", "/docs", "This contract, to be read", {200: "text/html"}),
)  # fmt: skip

# Of a service on a virtual clock alone.
CLOCK_CALLS: Final = (
    Call("get", "/v1/clock", "What the virtual clock shows", {200: clock.ClockItem}),
    Call("post", "/v1/clock:advance", "Turn it; answered when all that is due by then has been delivered",
         {200: clock.ClockAnswer}, clock.ClockAdvance, (), ("validation",)),
)  # fmt: skip

# The other direction: the call that timerd makes, to the url of a type.
DELIVERY: Final = Call(
    "post", "delivery", "A batch of due timers, POSTed to the url of their type",
    {200: delivery.DeliveryAnswer}, delivery.Delivery,
    (
        Parameter("webhook-id", "batch_id; the same in every attempt of the same members", TEXT, "header"),
        Parameter("webhook-timestamp", "Unix seconds of this attempt", TEXT, "header"),
        Parameter("webhook-signature", "v1,<base64>, one a secret, space separated; when the type has secrets "
                  "(Standard Webhooks)", TEXT, "header"),
        Parameter("Idempotency-Key", "batch_id in double quotes", TEXT, "header"),
        Parameter("User-Agent", "timerd/<version>", TEXT, "header"),
    ),
)  # fmt: skip
# And the requests that timers of kind callback carry. Their path, method and body are the caller's.
CALLBACK: Final = Call(
    "post", "callback", "The request of a callback, sent as it was armed, with these headers added", {},
    parameters=(
        *(parameter for parameter in DELIVERY.parameters if parameter.name.startswith("webhook-t")),
        Parameter("webhook-id", "the same in every attempt of the same generation", TEXT, "header"),
        Parameter("webhook-signature", "v1,<base64>, one a secret, space separated; when the type has secrets "
                  "(Standard Webhooks)", TEXT, "header"),
        Parameter("Timerd-Timer-Id", "the timer's id; what is no printable ASCII, and %, is percent-encoded", TEXT,
                  "header"),
        Parameter("Timerd-Generation", "which arm of the id it is", TEXT, "header"),
        Parameter("Timerd-Attempt", "counts the deliveries of this generation", TEXT, "header"),
        Parameter("Timerd-Possible-Duplicate", "true when an earlier attempt may have arrived", TEXT, "header"),
    ),
)  # fmt: skip
_CALLBACK_OUTCOMES: Final = {
    "2XX": "Done, whatever the body says",
    "3XX": "A failure; a redirect is never followed",
    "410": "The timer is a dead letter at once",
    "429": "A failure. With Retry-After: nothing goes to this host before then",
    "503": "As 429, and a sign that the host is down, as 502 and 504 are",
    "default": "A failure: tried again with backoff; each attempt counts. Timerd-No-Retry: true makes the timer a dead "
    "letter at once",
}
_OUTCOMES: Final = {
    "2XX": "The batch is taken. With no body, an empty object, or a body that does not claim to be JSON: all fired. "
    "One that claims to be JSON and can't be read, has another shape or is too long is a failure",
    "3XX": "A failure; a redirect is never followed",
    "410": "The target is gone: the type is paused, and its timers wait until it is resumed",
    "429": "With Retry-After: nothing goes to this type before then, and it costs no attempt. Else a failure",
    "503": "With Retry-After: as 429. Else a sign that the target is down, as 502 and 504 are",
    "default": "A failure: tried again with backoff. Timerd-No-Retry: true makes a timer a dead letter at once "
    "(a batch of several is split first)",
}
_RETRY_AFTER: Final = {"description": "seconds, or an HTTP date", "schema": TEXT}
_NO_RETRY: Final = {"description": "true: do not send this again", "schema": TEXT}

_TAKES_ANYTHING: Final = frozenset(("/metrics", "/openapi.json", "/docs"))
"""Paths that pass over query parameters: tools that look there add their own."""
_PATH_PARAMETERS: Final = {
    "/v1/timers/{id}": "a timer's id, percent-encoded as one segment",
    "/v1/types/{name}": "a type's name",
    "/v1/keys/{id}": "a key's id: the 8 characters behind td_",
}
_ACCESS: Final = (
    "A durable timer service. Every answer carries Timerd-Now, the server's time.\n\n"
    "Where keys are used, a call needs one with its scope: "
    + "; ".join(f"{scope} ({what})" for scope, what in SCOPES.items())
    + ". No key: 401. A key without the scope: 403. A key with max_per_second is told by RateLimit and "
    "RateLimit-Policy how much of it is left, and gets 429 with Retry-After beyond it."
)


def document(*, virtual: bool = False) -> dict[str, Any]:
    """The OpenAPI 3.1 document; `virtual`: of a service on a virtual clock."""
    calls = CALLS + CLOCK_CALLS if virtual else CALLS
    structs = {
        shape for call in (*calls, DELIVERY) for shape in (call.body, *call.answers.values()) if isinstance(shape, type)
    }
    ordered = sorted(structs, key=lambda struct: struct.__name__)
    _, components = msgspec.json.schema_components([*ordered, ProblemView], ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for call in calls:
        paths.setdefault(call.path, {})[call.method] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "timerd",
            "version": VERSION,
            "description": _ACCESS,
        },
        "security": [{"key": []}, {}],
        "paths": paths,
        "webhooks": {
            DELIVERY.path: {DELIVERY.method: _delivery()},
            CALLBACK.path: {CALLBACK.method: _callback()},
        },
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "TIMERD_API_KEY, or a key made with it"}
            },
        },
    }


def _operation(call: Call) -> dict[str, Any]:
    named = [part.partition("}")[0] for part in call.path.split("{")[1:]]
    parameters = [
        {"name": name, "in": "path", "required": True, "description": _described(call.path), "schema": TEXT}
        for name in named
    ] + [{"name": p.name, "in": p.place, "description": p.description, "schema": p.schema} for p in call.parameters]
    for parameter in parameters:
        if parameter["in"] == "query":
            parameter["allowEmptyValue"] = True  # as if it were left out
    operation: dict[str, Any] = {"summary": call.summary, "operationId": _operation_id(call), **_access(call)}
    if parameters:
        operation["parameters"] = parameters
    if call.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(call.body)}
    operation["responses"] = {str(status): _response(shape) for status, shape in call.answers.items()}
    by_status: dict[int, list[str]] = {}
    for name in dict.fromkeys((*call.problems, *_everywhere(call))):
        by_status.setdefault(KINDS[name].status, []).append(name)
    for status, names in sorted(by_status.items()):
        operation["responses"][str(status)] = _problem(", ".join(names))
    operation["responses"]["default"] = _problem("any other problem")
    return operation


def _access(call: Call) -> dict[str, Any]:
    """What a call asks of its caller: the scope, as the role of a bearer key; or nothing, where no key is used."""
    need = NEEDS.get((call.method, call.path), OPEN)
    if need == OPEN:
        return {"security": []}
    if need == ANY:
        return {"description": "Scope: any."}
    return {"description": f"Scope: {need}.", "security": [{"key": [need]}, {}]}


def _described(path: str) -> str:
    return next(what for template, what in _PATH_PARAMETERS.items() if path.startswith(template))


def _everywhere(call: Call) -> tuple[str, ...]:
    """The problems that a call can have for being one: for who asks, for how, and for what of a body comes with it."""
    if NEEDS.get((call.method, call.path), OPEN) == OPEN:
        return ()
    names: tuple[str, ...] = ("unauthorized", "forbidden", "rate-limited")
    if call.path in _TAKES_ANYTHING:
        return names
    names += ("malformed", "validation")
    if call.body is not None or call.method == "post":  # a call that takes nothing still looks at what comes
        names += ("unsupported-media-type", "body-too-large")
    return names


def _delivery() -> dict[str, Any]:
    """The delivery, as a webhook: its processor is no server of ours, so no key of ours goes there."""
    operation = _operation(DELIVERY)
    content = operation["requestBody"]["content"]
    del content[MSGPACK]  # deliveries and their answers are JSON
    answer = {JSON: {"schema": {"$ref": "#/components/schemas/DeliveryAnswer"}}}
    responses: dict[str, Any] = {status: {"description": text} for status, text in _OUTCOMES.items()}
    responses["2XX"]["content"] = answer
    return {**operation, "responses": _with_hints(responses)}


def _callback() -> dict[str, Any]:
    responses: dict[str, Any] = {status: {"description": text} for status, text in _CALLBACK_OUTCOMES.items()}
    return {**_operation(CALLBACK), "responses": _with_hints(responses)}


def _with_hints(responses: dict[str, Any]) -> dict[str, Any]:
    for status in ("429", "503"):
        responses[status]["headers"] = {"Retry-After": _RETRY_AFTER}
    responses["default"]["headers"] = {"Timerd-No-Retry": _NO_RETRY}
    return responses


def _operation_id(call: Call) -> str:
    words = call.path.replace("{", "").replace("}", "").replace(".json", "").replace(":", "/").replace("-", "_")
    return "_".join([call.method, *(word for word in words.split("/") if word and word != "v1")])


def _response(shape: type[msgspec.Struct] | str | None) -> dict[str, Any]:
    if shape is None:
        return {"description": "Done"}
    if isinstance(shape, str):
        return {"description": "As asked for", "content": {shape: {}}}
    return {"description": (shape.__doc__ or shape.__name__).strip(), "content": _content(shape)}


def _content(shape: type[msgspec.Struct]) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{shape.__name__}"}
    return {JSON: {"schema": reference}, MSGPACK: {"schema": reference}}


def _problem(names: str) -> dict[str, Any]:
    return {
        "description": f"{names} (a `type` is {TYPE_PREFIX}<name>)",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemView"}}},
    }


def encoded(shown: dict[str, Any] | None = None) -> bytes:
    """A document as it is served and kept."""
    return msgspec.json.format(msgspec.json.encode(document() if shown is None else shown), indent=2) + b"\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(encoded())
