"""Answers: every row of the contract's table, and what is wrong in small ways."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerd.engine.answer import ERROR_BYTES_MAX, Accepted, Failed, Limits, Outcome, clip, read_answer
from timerd.engine.message import ItemResult
from timerd.engine.now import Now

NOW_MS = 1_796_025_600_000
NOW = Now(NOW_MS * 1000 - 1, 5)  # the millisecond has not quite come
LIMITS = Limits(max_payload_bytes=20, max_horizon_ms=1_000_000, max_retry_after_ms=3_600_000)
MEMBERS = frozenset({"a", "b", "c"})
JSON = {"content-type": "application/json"}
EMPTY: dict[str, str] = {}


def read(status: int = 200, body: bytes | str = b"", headers: dict[str, str] = JSON, **fields: object) -> Outcome:
    data = body.encode() if isinstance(body, str) else body
    return read_answer(NOW, MEMBERS, LIMITS, status=status, headers=headers, body=data, **fields)  # type: ignore[arg-type]


def item(**fields: object) -> dict[str, ItemResult]:
    outcome = read(body=msgspec.json.encode({"results": [{"id": "a", **fields}]}))
    assert isinstance(outcome, Accepted), outcome
    return outcome.results


# ---- the whole answer


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (200, "", JSON),
        (200, "", EMPTY),
        (204, "", EMPTY),
        (299, "", EMPTY),
        (200, "{}", JSON),
        (200, " { } ", JSON),
        (200, '{"results":[]}', JSON),
        (200, '{"batchItemFailures":[]}', JSON),
        (200, "done", {"content-type": "text/plain"}),
        (200, "<html>", EMPTY),
        (200, '{"results":[{"id":"a","status":"retry"}]}', {"content-type": "text/plain"}),
        (200, '{"results":[{"id":"a","status":"ok"}],"more":1}', JSON),
    ],
)
def test_all_is_ok(status: int, body: str, headers: dict[str, str]) -> None:
    assert read(status, body, headers) == Accepted()


def test_a_long_body_that_is_no_json_is_ok() -> None:
    assert read(body="x" * 100, headers={"content-type": "text/html"}, overlong=True) == Accepted()


@pytest.mark.parametrize(
    "type", ["application/json", "Application/JSON; charset=utf-8", "application/x+json", "text/json"]
)
@pytest.mark.parametrize(
    "body",
    [
        " ",
        "{",
        "ok",
        "[]",
        "null",
        '"results"',
        "{}{}",
        '{"ok":true}',
        '{"results":null}',
        '{"results":{}}',
        '{"results":["a"]}',
        '{"results":[{"status":"ok"}]}',
        '{"results":[{"id":1,"status":"ok"}]}',
        '{"results":[],"batchItemFailures":[]}',
        '{"batchItemFailures":null}',
        '{"batchItemFailures":[{}]}',
        '{"batchItemFailures":[{"itemIdentifier":1}]}',
        '{"x":1e999}',
        '{"x":' + "[" * 5000 + "]" * 5000 + "}",
        b'{"results":[{"id":"a","status":"rearm","delay":1,"payload":"\xff"}]}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_claims_to_be_json_and_can_not_be_understood_is_a_failure(body: str, type: str) -> None:
    outcome = read(body=body, headers={"content-type": type})
    assert isinstance(outcome, Failed)
    assert not outcome.suspect
    assert not outcome.unknown
    assert 0 < len(outcome.error.encode()) <= ERROR_BYTES_MAX


def test_json_over_the_limit_is_a_failure() -> None:
    assert isinstance(read(body="{}", overlong=True), Failed)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308, 400, 401, 404, 408, 422, 429, 500, 501, 505, 599])
def test_any_other_status_is_a_failure_of_the_batch(status: int) -> None:
    assert read(status, "{}") == Failed(f"HTTP {status}: {{}}", refused=status == 429)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_that_has_no_target_is_a_sign_of_a_down_one(status: int) -> None:
    assert read(status) == Failed(f"HTTP {status}", suspect=True, refused=status == 503)


def test_410_is_gone() -> None:
    assert read(410, headers={"timerd-no-retry": "true"}) == Failed("HTTP 410", gone=True)


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_no_retry(status: int) -> None:
    headers = {"timerd-no-retry": "True", "retry-after": "5"}
    assert read(status, headers=headers) == Failed(f"HTTP {status}", no_retry=True)


def test_no_retry_says_nothing_on_success_and_nothing_when_it_is_not_true() -> None:
    assert read(200, headers={"timerd-no-retry": "true"}) == Accepted()
    assert read(500, headers={"timerd-no-retry": "false"}) == Failed("HTTP 500")


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("0", 0),
        ("120", 120_000),
        (" 5 ", 5_000),
        ("3600", 3_600_000),
        ("3601", 3_600_000),
        ("9" * 5000, 3_600_000),
        ("Mon, 30 Nov 2026 08:01:00 GMT", 60_001),
        ("Mon, 30 Nov 2026 07:00:00 GMT", 0),
        ("Mon, 30 Nov 2099 07:00:00 GMT", 3_600_000),
    ],
)
def test_retry_after(value: str, ms: int) -> None:
    assert read(429, headers={"retry-after": value}) == Failed("HTTP 429", refused=True, retry_after_ms=ms)
    assert read(503, headers={"retry-after": value}) == Failed("HTTP 503", True, refused=True, retry_after_ms=ms)


@pytest.mark.parametrize("value", ["", "soon", "-1", "1.5", "1e3", "٣", "NaN", "Mon, 99 Nov 2026 08:01:00 GMT"])
def test_retry_after_that_is_nonsense_is_ignored(value: str) -> None:
    assert read(429, headers={"retry-after": value}) == Failed("HTTP 429", refused=True)


def test_retry_after_means_nothing_elsewhere() -> None:
    assert read(500, headers={"retry-after": "5"}) == Failed("HTTP 500")


@pytest.mark.parametrize(("error", "sent"), [("connect", False), ("timeout", True), ("lost", True)])
def test_no_answer(error: str, sent: bool) -> None:
    outcome = read_answer(NOW, MEMBERS, LIMITS, error=error, detail="why")
    assert outcome == Failed(f"{error}: why", suspect=True, sent=sent, unknown=sent)


def test_what_the_target_says_is_in_the_error_and_cut() -> None:
    said = read(500, b"no\r\n\x00 such \xff" + "\u00e9".encode() * 1000, EMPTY)
    assert isinstance(said, Failed)
    assert said.error.startswith("HTTP 500: no  such \ufffd\u00e9")
    assert ERROR_BYTES_MAX - 3 < len(said.error.encode()) <= ERROR_BYTES_MAX


# ---- results


@pytest.mark.parametrize("status", ["retry", "drop", "dead"])
def test_an_item_says_what_becomes_of_it(status: str) -> None:
    assert item(status=status) == {"a": ItemResult(status)}
    assert item(status=status, error="why") == {"a": ItemResult(status, error="why")}
    assert item(status=status, error=5) == {"a": ItemResult(status)}
    assert item(status=status, error="\u00e9" * 500) == {"a": ItemResult(status, error="\u00e9" * 100)}


@pytest.mark.parametrize("status", [None, "", "OK", "done", 1, True, [], {}])
def test_an_item_with_another_status_is_a_retry(status: object) -> None:
    assert item(status=status)["a"].status == "retry"
    assert item()["a"].status == "retry"


@pytest.mark.parametrize(
    ("fields", "fire_at"),
    [
        ({"fire_at": NOW_MS + 5}, NOW_MS + 5),
        ({"fire_at": NOW_MS - 5}, NOW_MS - 5),
        ({"fire_at": 10**11}, 10**11),
        ({"fire_at": NOW_MS + 1_000_000}, NOW_MS + 1_000_000),
        ({"fire_at": "2026-11-30T09:00:00.0001+01:00"}, NOW_MS + 1),
        ({"delay": 0}, NOW_MS),
        ({"delay": 1.5}, NOW_MS + 1_500),
        ({"delay": "250ms"}, NOW_MS + 250),
        ({"delay": "5m", "fire_at": None}, NOW_MS + 300_000),
    ],
)
def test_a_re_arm(fields: dict[str, object], fire_at: int) -> None:
    assert item(status="rearm", **fields) == {"a": ItemResult("rearm", fire_at)}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"fire_at": NOW_MS, "delay": 5},
        {"fire_at": 0},
        {"fire_at": -NOW_MS},
        {"fire_at": NOW_MS // 1000},
        {"fire_at": float(NOW_MS) + 0.5},
        {"fire_at": True},
        {"fire_at": "2026-11-30T08:00:00"},
        {"fire_at": "tomorrow"},
        {"fire_at": [1]},
        {"fire_at": NOW_MS + 1_000_001},
        {"fire_at": 10**30},
        {"delay": -1},
        {"delay": "1000s1"},
        {"delay": True},
        {"delay": {}},
        {"delay": "20m"},
        {"delay": 1, "payload": "x" * 19},
    ],
)
def test_a_re_arm_that_is_invalid_is_a_retry_of_that_one_alone(fields: dict[str, object]) -> None:
    body = msgspec.json.encode({"results": [{"id": "a", "status": "rearm", **fields}, {"id": "b", "status": "drop"}]})
    outcome = read(body=body)
    assert isinstance(outcome, Accepted)
    assert outcome.results["a"].status == "retry"
    assert outcome.results["a"].error.startswith("re-arm")
    assert outcome.results["b"] == ItemResult("drop")


@pytest.mark.parametrize("payload", ["null", "0", '{"a": [1,  2.50]}', '"' + "x" * 18 + '"'])
def test_a_payload_is_handed_on_as_it_is(payload: str) -> None:
    outcome = read(body=f'{{"results":[{{"id":"a","status":"rearm","delay":1,"payload": {payload} }}]}}')
    assert outcome == Accepted({"a": ItemResult("rearm", NOW_MS + 1000, payload.encode())})


def test_ids_that_are_not_in_the_batch_are_counted_and_ignored() -> None:
    body = '{"results":[{"id":"z","status":"drop"},{"id":"a","status":"drop"},{"id":"z","status":"rearm","delay":1}]}'
    assert read(body=body) == Accepted({"a": ItemResult("drop")}, 2)
    body = '{"batchItemFailures":[{"itemIdentifier":"z"},{"itemIdentifier":"a"}]}'
    outcome = read(body=body)
    assert isinstance(outcome, Accepted)
    assert (list(outcome.results), outcome.unnamed) == (["a"], 1)
    assert outcome.results["a"].status == "retry"


def test_an_id_named_twice_is_as_it_is_named_last() -> None:
    said = [("a", "drop"), ("b", "ok"), ("a", "ok"), ("b", "dead")]
    body = msgspec.json.encode({"results": [{"id": id, "status": status} for id, status in said]})
    assert read(body=body) == Accepted({"b": ItemResult("dead")})


# ---- whatever comes


@given(
    st.binary(max_size=200),
    st.integers(100, 999),
    st.dictionaries(st.sampled_from(["retry-after", "timerd-no-retry"]), st.text()),
)
def test_nothing_raises(body: bytes, status: int, headers: dict[str, str]) -> None:
    outcome = read(status, body, {**JSON, **headers})
    assert isinstance(outcome, Accepted | Failed)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ITEMS = st.fixed_dictionaries(
    {"id": st.sampled_from(["a", "b", "z"])},
    optional={
        "status": st.sampled_from(["ok", "retry", "drop", "dead", "rearm", "rearm", "?"]) | VALUES,
        "fire_at": VALUES | st.integers(10**12, 10**13),
        "delay": VALUES,
        "payload": VALUES,
        "error": VALUES,
    },
)


@given(st.lists(ITEMS, max_size=8))
def test_every_result_is_one_that_a_shard_understands(items: list[dict[str, object]]) -> None:
    outcome = read(body=msgspec.json.encode({"results": items}))
    if isinstance(outcome, Failed):  # an integer or text that JSON can hold and a struct can't
        return
    assert outcome.unnamed == sum(item["id"] == "z" for item in items)
    for id, result in outcome.results.items():
        assert id in MEMBERS
        assert result.status in ("retry", "drop", "dead", "rearm")
        assert len(result.error.encode()) <= ERROR_BYTES_MAX
        if result.status == "rearm":
            assert 0 <= result.fire_at <= NOW_MS + LIMITS.max_horizon_ms
            assert result.payload is None or len(result.payload) <= LIMITS.max_payload_bytes  # type: ignore[arg-type]


@given(st.text())
def test_clip_cuts_between_characters(text: str) -> None:
    cut = clip(text)
    assert len(cut.encode()) <= ERROR_BYTES_MAX
    assert text.startswith(cut)
