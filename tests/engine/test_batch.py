"""A batch on the wire: what a processor sees, byte for byte where the contract says so."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerd.engine.batch import Batch, answer_bytes_max, batch_id, encode_body, plain_headers
from timerd.engine.timer import BodyRef, Failure, Timer

EIGHT = 1_796_025_600_000


def timer(id: str = "a", generation: int = 7, **fields: object) -> Timer:
    return Timer(EIGHT + 123, generation, id, "poll", **fields)  # type: ignore[arg-type]


def test_the_body_is_that_of_the_contract() -> None:
    timers = [
        timer(),
        timer('b/\u00e9"', 2**53 - 1, payload=b'{"x": [1, 2.50]}', failure=Failure(3, 1, 1000, 1, "no")),
        timer("c", payload=b"null"),
    ]
    body = encode_body(Batch(1, "poll", timers, frozenset({'b/\u00e9"'})), "0f", EIGHT)
    assert body.decode() == (
        '{"type":"poll","batch_id":"0f","dispatched_at":"2026-11-30T08:00:00.000Z","timers":['
        '{"id":"a","generation":7,"fire_at":"2026-11-30T08:00:00.123Z","attempt":1},'
        '{"id":"b/\u00e9\\"","generation":9007199254740991,"fire_at":"2026-11-30T08:00:00.123Z","attempt":4,'
        '"possible_duplicate":true,"payload":{"x": [1, 2.50]}},'
        '{"id":"c","generation":7,"fire_at":"2026-11-30T08:00:00.123Z","attempt":1,"payload":null}]}'
    )


def test_a_payload_that_lies_apart_is_put_in() -> None:
    apart = timer(payload=BodyRef(1, 2, 3, b"d" * 16))
    body = json.loads(encode_body(Batch(1, "poll", [apart]), "0f", EIGHT, {"a": b'"big"'}))
    assert body["timers"][0]["payload"] == "big"


MEMBERS = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1), st.integers(1, 2**53 - 1)),
    unique_by=lambda member: member[0],
    min_size=1,
)


@given(MEMBERS, st.randoms())
def test_the_id_depends_on_the_members_alone(members: list[tuple[str, int]], random: Random) -> None:
    timers = [timer(id, generation) for id, generation in members]
    first = batch_id(timers)
    random.shuffle(timers)
    for one in timers:
        one.failure = Failure(1, 1, 1, 1, "x")
    assert batch_id(timers) == first
    timers[0].generation -= 1
    assert batch_id(timers) != first


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([("a", 12)], [("2 a", 1)]),
        ([("a", 1), ("b", 2)], [("a", 2), ("b", 1)]),
        ([("a", 1), ("b", 1)], [("a", 1)]),
    ],
)
def test_members_that_look_alike_have_different_ids(one: list[tuple[str, int]], other: list[tuple[str, int]]) -> None:
    assert batch_id([timer(*member) for member in one]) != batch_id([timer(*member) for member in other])


def test_an_id_is_the_same_in_every_process() -> None:
    assert batch_id([timer("a", 1), timer("b", 2)]) == "03db686cb8ccd82beb570fa97f5c9e2d"


def test_headers_of_the_contract_can_not_be_replaced_by_a_type() -> None:
    own = {"Authorization": "Bearer x", "user-agent": "me", "Webhook-Id": "mine", "CONTENT-TYPE": "text/plain"}
    assert plain_headers("0f", 1_796_025_600, "0.1.0", own) == {
        "Authorization": "Bearer x",
        "Content-Type": "application/json",
        "User-Agent": "timerd/0.1.0",
        "webhook-id": "0f",
        "webhook-timestamp": "1796025600",
        "Idempotency-Key": '"0f"',
    }


def test_an_answer_may_be_as_long_as_re_arms_of_everything_are() -> None:
    assert answer_bytes_max([timer()]) == 1024 * 1024
    apart = BodyRef(1, 2, 60_000, b"")
    timers = [timer(str(n), payload=apart) for n in range(1000)] + [timer("x", payload=b"1234")]
    assert answer_bytes_max(timers) == 1001 * 1024 + 60_000 * 1000 + 4
