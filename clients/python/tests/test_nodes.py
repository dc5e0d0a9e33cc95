"""Several nodes: the next one when one can't be reached, requests that go to the owner, and owners that are away."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from timerd_client import Arm, Timerd, Unavailable
from timerd_client._protocol import Reply
from timerd_client._routing import AGAIN_S, FRESH_S, Routing

from .fake_timerd import FakeTimerd, HttpRequest, fake_timerd, problem
from .test_retry import Caller

AT = datetime(2030, 1, 1, tzinfo=UTC)
NOBODY = "http://127.0.0.1:9"
SLOTS = 16
Nodes = list[tuple[FakeTimerd, str]]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with fake_timerd() as (one, first, _), fake_timerd() as (other, second, _):
        yield [(one, first), (other, second)]


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ring(*addresses: str | None) -> dict[str, Any]:
    shards = [{"id": shard, "node": f"n{shard}", "address": address} for shard, address in enumerate(addresses)]
    return {"version": 1, "hash": "xxh3_64", "slots": [n % len(addresses) for n in range(SLOTS)], "shards": shards}


def shows(fake: FakeTimerd, shown: Any) -> list[HttpRequest]:
    """Let a node answer `GET /v1/ring` so; the requests for it."""
    asked: list[HttpRequest] = []

    def before(request: HttpRequest) -> Any:
        if request.target != "/v1/ring":
            return None
        asked.append(request)
        return 200, shown

    fake.before = before
    return asked


def test_the_next_node_is_asked_when_one_can_not_be_reached(nodes: Nodes, kind: str) -> None:
    (fake, url), _ = nodes
    caller = Caller(kind, [NOBODY, url], timeout=2.0)  # type: ignore[arg-type]
    assert caller.arm("a", "poll", fire_at=AT).armed
    assert caller.get("a").id == "a"
    assert len(fake.timers) == 1
    caller.end()


def test_nobody_is_there_at_any_of_them(kind: str) -> None:
    caller = Caller(kind, [NOBODY, "http://127.0.0.1:10"], timeout=0.4)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        caller.arm("a", "poll", fire_at=AT)
    caller.end()


def test_addresses_are_checked_one_by_one() -> None:
    for urls in ([], ["ftp://x"], ["http://a", "http://u:p@b"]):
        with pytest.raises(ValueError):
            Timerd(urls)


def test_a_cancel_that_was_done_in_part_is_repeated_for_the_rest(nodes: Nodes, kind: str) -> None:
    (fake, url), _ = nodes
    caller = Caller(kind, url, timeout=5.0)
    caller.arm_many([Arm(id, "poll", fire_at=AT) for id in ("a", "b", "c")])
    asked: list[bytes] = []

    def away(request: HttpRequest) -> Any:
        if request.target != "/v1/timers:cancel":
            return None
        asked.append(request.body)
        if len(asked) > 1:
            return None
        del fake.timers["a"]
        results = [
            {"id": "a", "status": "cancelled", "in_flight": False},
            {"id": "b", "status": "unavailable"},
            {"id": "nobody", "status": "not_found"},
        ]
        return 503, {**problem("shard-unavailable"), "cancelled": 1, "results": results}

    fake.before = away
    results = caller.cancel_many(["a", "b", "nobody"])
    assert [(result.id, result.status) for result in results] == [
        ("a", "cancelled"), ("b", "cancelled"), ("nobody", "not_found")
    ]  # fmt: skip
    assert asked[1] == b'{"ids":["b"]}'
    caller.end()


def test_an_owner_that_is_away_is_asked_again(nodes: Nodes, kind: str) -> None:
    (fake, url), _ = nodes
    left = [503, 503]
    fake.before = lambda request: (
        (left.pop(), problem("shard-unavailable")) if left and request.method != "GET" else None
    )
    caller = Caller(kind, url, timeout=8.0)
    assert caller.arm("a", "poll", fire_at=AT).armed, "also one that says nothing of items"
    assert not left
    caller.end()


def test_each_timer_goes_to_its_owner(nodes: Nodes, kind: str) -> None:
    (one, first), (other, second) = nodes
    asked = shows(one, ring(first, second))
    caller = Caller(kind, first, timeout=5.0, routing=True)
    ids = [f"id-{n}" for n in range(40)]
    results = caller.arm_many([Arm(id, "poll", fire_at=AT) for id in ids])
    assert [result.id for result in results] == ids
    routing = Routing(secure=False)
    routing.heard(Reply(200, {}, _json(ring("http://1", "http://2"))), 0.0)
    owners = {id: routing.address_of(id) for id in ids}
    assert set(one.timers) == {id for id in ids if owners[id] == "http://1"}
    assert set(other.timers) == {id for id in ids if owners[id] == "http://2"}
    assert caller.cancel(ids[0]).cancelled
    assert len(asked) == 1
    caller.end()


def test_an_owner_that_can_not_be_reached_is_no_error(nodes: Nodes, kind: str) -> None:
    (fake, url), _ = nodes
    shows(fake, ring(NOBODY))
    caller = Caller(kind, url, timeout=5.0, routing=True)
    assert caller.arm("a", "poll", fire_at=AT).armed
    assert list(fake.timers) == ["a"]
    caller.end()


@pytest.mark.parametrize("shown", [{}, {"hash": "other", "slots": [0], "shards": []}, [], b"<html>", ring(None, None)])
def test_a_ring_that_says_nothing_of_use_costs_nothing(nodes: Nodes, kind: str, shown: Any) -> None:
    (fake, url), _ = nodes
    shows(fake, shown)
    caller = Caller(kind, url, timeout=5.0, routing=True)
    assert caller.arm("a", "poll", fire_at=AT).armed
    caller.end()


def test_what_is_known_of_the_ring_is_a_moment_old_at_most() -> None:
    routing = Routing(secure=True)
    assert routing.is_due(5.0)
    routing.heard(Reply(200, {}, _json(ring("http://1", "https://2"))), 5.0)
    assert {routing.address_of(f"id-{n}") for n in range(40)} == {"", "https://2"}, "nothing goes in the clear"
    assert not routing.is_due(5.0 + FRESH_S - 0.1)
    assert routing.is_due(5.0 + FRESH_S)
    routing.wrong(6.0)
    assert routing.address_of("a") == ""
    assert routing.is_due(6.0 + AGAIN_S)


def _json(value: Any) -> bytes:
    import json

    return json.dumps(value).encode()
