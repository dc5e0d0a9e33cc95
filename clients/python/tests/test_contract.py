"""The fixtures in clients/contract, from the client's side: what it sends, and what it makes of what it gets."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from timerd_client import Arm, Expired, Receiver, ValidationFailed, dead, drop, ok, rearm, reply, retry
from timerd_client._calls import timer_path
from timerd_client._coalesce import Coalescer, Job
from timerd_client._exchange import Exchange
from timerd_client._protocol import Reply, arm_request, check_id, encode_arm, expect, problem_of, read_armed
from timerd_client._server_time import ServerTime
from timerd_client._turns import perform

CONTRACT = Path(__file__).parents[2] / "contract"
AT = datetime(2030, 1, 1, tzinfo=UTC)


def load(name: str) -> Any:
    return json.loads((CONTRACT / f"{name}.json").read_text())


def reply_of(fixture: Any) -> Reply:
    answer = fixture["response"]
    return Reply(answer["status"], answer["headers"], json.dumps(answer["body"]).encode())


def sent(*arms: Arm) -> Any:
    request = arm_request([encode_arm(arm) for arm in arms])
    return {"method": request.method, "path": request.path, "body": json.loads(request.body)}


def test_arm() -> None:
    fixture = load("arm")
    at = AT + timedelta(microseconds=122_001)  # rounded up to .123
    assert sent(Arm("feed/é 1", "poll", fire_at=at, payload={"n": [1, None, "x"]})) == fixture["request"]
    (result,) = read_armed(reply_of(fixture), 1)
    assert (result.status, result.fire_at, result.armed) == ("created", AT + timedelta(milliseconds=123), True)


def test_delays_and_modes() -> None:
    arms = [Arm("a", "poll", delay=5), Arm("b", "poll", delay=timedelta(seconds=1.5), mode="keep")]
    assert sent(*arms)["body"] == load("arm_minimal")["request"]["body"]


def test_conflict() -> None:
    fixture = load("arm_conflict")
    arms = [Arm("a", "poll", fire_at=AT, if_generation=0), Arm("b", "poll", fire_at=AT, if_generation=7)]
    assert sent(*arms) == fixture["request"]
    first, second = read_armed(reply_of(fixture), 2)
    assert (first.status, first.armed) == ("conflict", False)
    assert (second.generation, second.fire_at) == (0, None)


def test_validation_gives_each_bad_item_the_error_it_would_have_had_alone() -> None:
    fixture = load("arm_validation")
    error = problem_of(reply_of(fixture))
    assert isinstance(error, ValidationFailed)
    assert [entry.pointer for entry in error.errors] == ["/timers/1/type", "/timers/2/fire_at"]
    coalescer = Coalescer(10.0)
    for id in ("a", "b", "c"):
        coalescer.add(Job(encode_arm(Arm(id, "poll", fire_at=AT)), (id,), None), 0.0)
    turn = coalescer.take(0.0)
    assert turn is not None
    server_time = ServerTime()
    server_time.observe(1_893_456_000_000, 0.0, 0.0)
    talk = perform(turn, Exchange(server_time, now=0.0, deadline=10.0, attempt_s=4.0))
    next(talk)
    again = talk.send(reply_of(fixture))
    assert [item["id"] for item in json.loads(again.request.body)["timers"]] == ["a"]  # type: ignore[union-attr]
    with pytest.raises(StopIteration) as end:
        talk.send(Reply(200, {}, b'{"results":[{"id":"a","status":"created"}]}', 0.1))
    good, unknown, far = end.value.value
    assert good.status == "created"
    assert (unknown.name, [e.pointer for e in unknown.errors]) == ("unknown-type", ["/timers/0/type"])
    assert (far.name, [e.pointer for e in far.errors]) == ("horizon-exceeded", ["/timers/0/fire_at"])


def test_expired() -> None:
    with pytest.raises(Expired) as caught:
        expect(reply_of(load("arm_expired")), dict)
    assert (caught.value.name, caught.value.status) == ("expired", 409)


def test_delivery() -> None:
    fixture = load("delivery")
    receiver = Receiver(fixture["secret"], clock=lambda: float(fixture["headers"]["webhook-timestamp"]))
    batch = receiver.receive(fixture["headers"], fixture["raw"].encode())
    assert (batch.type, batch.batch_id, len(batch.timers)) == ("poll", "b-3f2a", 2)
    first, second = batch.timers
    assert (first.id, first.attempt, first.possible_duplicate) == ("feed/é 1", 1, False)
    assert (first.payload, second.payload, second.possible_duplicate) == ({"n": [1, None, "x"]}, None, True)
    assert first.fire_at == datetime(2026, 11, 30, 8, 0, 0, 123000, UTC)


def test_answers() -> None:
    built = [
        [ok("a"), ok("b")],
        [retry("b", error="503 from upstream"), drop("c"), dead("d", "gone")],
        [rearm("e", fire_at=AT), rearm("f", delay=1.5, payload={"cursor": 2})],
    ]
    for fixture, results in zip(load("answers")["answers"], built, strict=True):
        status, headers, body = reply(results)
        assert (status, headers["content-type"]) == (200, "application/json")
        assert json.loads(body) == fixture["body"]


@pytest.mark.parametrize(("id", "segment"), load("ids")["segments"].items())
def test_an_id_is_one_segment(id: str, segment: str) -> None:
    assert timer_path(id) == "/v1/timers/" + segment


@pytest.mark.parametrize("id", load("ids")["refused"])
def test_what_is_no_id_is_never_sent(id: str) -> None:
    with pytest.raises(ValueError, match="not a timer id"):
        check_id(id)
