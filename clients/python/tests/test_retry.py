"""Retries that are safe: faults on the way, through a real proxy, against a server that implements expiry.

Each test plays both clients. The proxy holds what it is told to hold until the test releases it, however late; what
counts is the order in which the server applied the arms, and what stands in the end.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from timerd_client import (
    Arm,
    AsyncTimerd,
    OutcomeUnknown,
    Overloaded,
    RateLimited,
    StorageFull,
    Timerd,
    Unavailable,
    UnexpectedAnswer,
)

from .fake_timerd import FakeTimerd, HttpRequest, Loop, fake_timerd, problem
from .fault_proxy import FaultProxy, fault, fault_proxy, release

T0 = datetime(2030, 1, 1, tzinfo=UTC)
T1, T2 = T0 + timedelta(hours=1), T0 + timedelta(hours=2)


def ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


class Rig(NamedTuple):
    fake: FakeTimerd
    url: str
    proxy: FaultProxy
    proxied: str
    loop: Loop


@pytest.fixture
def rig() -> Iterator[Rig]:
    with fake_timerd() as (fake, url, loop), fault_proxy(loop, url) as (proxy, proxied):
        yield Rig(fake, url, proxy, proxied, loop)


class Caller:
    """The same calls on either client, from the outside."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self._kind = kind
        self._loop = Loop()
        if kind == "sync":
            self._client: Any = Timerd(url, **options)
        else:
            self._client = AsyncTimerd(url, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if self._kind == "sync":
            return method
        return lambda *args, **kwargs: self._loop.run(method(*args, **kwargs))

    def start(self, name: str, *args: Any, **kwargs: Any) -> "Started":
        return Started(lambda: getattr(self, name)(*args, **kwargs))

    def end(self) -> None:
        self.close()
        self._loop.stop()


class Started:
    """A call in a thread."""

    def __init__(self, call: Any) -> None:
        self.outcome: Any = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Any) -> None:
        try:
            self.outcome = call()
        except Exception as error:
            self.outcome = error

    def result(self) -> Any:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.outcome

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest, rig: Rig) -> Iterator[Caller]:
    caller = Caller(request.param, rig.proxied, timeout=1.5)
    yield caller
    caller.end()


def until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def arms(fake: FakeTimerd) -> list[tuple[HttpRequest, int]]:
    return [(request, status) for request, status in fake.seen if request.target == "/v1/timers"]


def test_a_dropped_answer_is_asked_for_again(rig: Rig, caller: Caller) -> None:
    rig.proxy.script.append(fault(rig.loop, drop_answer=True))
    result = caller.arm("x", "poll", fire_at=T1)
    assert result.fire_at == T1
    assert rig.fake.applied == [("x", ms(T1))] * 2


def test_every_write_expires_and_soon(rig: Rig, caller: Caller) -> None:
    caller.arm("x", "poll", fire_at=T1)
    caller.cancel("x")
    writes = [r for r, _ in rig.fake.seen if r.method != "GET"]
    for request in writes:
        expires = datetime.fromisoformat(request.headers["timerd-expires"]).timestamp()
        assert 0 < expires - time.time() < 1.5
    assert "timerd-expires" not in rig.fake.seen[0][0].headers
    assert rig.fake.seen[0][0].target == "/healthz"


def test_expiry_is_counted_in_the_servers_time(rig: Rig, caller: Caller) -> None:
    rig.fake.clock_offset_ms = -3_600_000 * 1000
    caller.arm("x", "poll", fire_at=T1)
    rig.fake.clock_offset_ms = 7_200_000  # the server's clock is stepped; the first write after it is refused once
    caller.arm("x", "poll", fire_at=T2)
    assert [status for _, status in arms(rig.fake)] == [200, 409, 200]


def test_a27_a_late_repeat_from_one_client_never_lands_after_a_newer_arm(rig: Rig, caller: Caller) -> None:
    """The first attempt of t1 is cut and held, the repeat is answered; t2 is armed; then the held one is let go."""
    held = fault(rig.loop, hold_request=True, hang_up=True)
    rig.proxy.script.append(held)
    assert caller.arm("x", "poll", fire_at=T1).fire_at == T1
    second = caller.start("arm", "x", "poll", fire_at=T2)
    time.sleep(0.05)
    release(rig.loop, held)  # while t2 waits, t1 may still come: it lands before t2
    assert second.result().fire_at == T2
    assert rig.fake.timers["x"]["fire_at"].startswith("2030-01-01T02")
    assert rig.fake.applied[-1] == ("x", ms(T2))


def test_a27_what_is_let_go_after_the_newer_arm_has_expired(rig: Rig, caller: Caller) -> None:
    held = fault(rig.loop, hold_request=True, hang_up=True)
    rig.proxy.script.append(held)
    caller.arm("x", "poll", fire_at=T1)
    assert caller.arm("x", "poll", fire_at=T2).fire_at == T2
    release(rig.loop, held)
    assert arms(rig.fake)[-1][1] == 409
    assert rig.fake.applied[-1] == ("x", ms(T2))


def test_a27_a_timeout_raised_to_the_caller_holds_the_id(rig: Rig, caller: Caller) -> None:
    lost = [fault(rig.loop, hold_request=True) for _ in range(3)]
    rig.proxy.script.extend(lost)
    began = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        caller.arm("x", "poll", fire_at=T1)
    assert time.monotonic() - began < 2
    assert caller.arm("x", "poll", fire_at=T2).fire_at == T2
    for one in lost:
        if one.reached.is_set():
            release(rig.loop, one)
    assert rig.fake.applied == [("x", ms(T2))]
    assert {status for _, status in arms(rig.fake)[1:]} == {409}


def test_a27_two_overlapping_arms_keep_the_order_of_their_calls(rig: Rig, caller: Caller) -> None:
    slow = fault(rig.loop, silent=True)
    rig.proxy.script.append(slow)
    first = caller.start("arm", "x", "poll", fire_at=T1)
    until(slow.forwarded.is_set)
    second = caller.start("arm", "x", "poll", fire_at=T2)
    assert caller.arm("y", "poll", fire_at=T1).id == "y"  # another id is not held up by it
    assert not second.over
    assert (first.result().fire_at, second.result().fire_at) == (T1, T2)
    assert [entry for entry in rig.fake.applied if entry[0] == "x"][-1] == ("x", ms(T2))


def test_a27_a_cancel_waits_for_a_lost_arm_too(rig: Rig, caller: Caller) -> None:
    held = fault(rig.loop, hold_request=True, hang_up=True)
    rig.proxy.script.append(held)
    caller.arm("x", "poll", fire_at=T1)
    assert caller.cancel("x").cancelled
    release(rig.loop, held)
    assert "x" not in rig.fake.timers


def test_a27_two_clients_last_arrival_wins_and_if_generation_guards(rig: Rig, caller: Caller) -> None:
    held = fault(rig.loop, hold_request=True)
    rig.proxy.script.append(held)
    with Timerd(rig.url) as other:
        seen = other.arm("x", "poll", fire_at=T0)
        late = caller.start("arm", "x", "poll", fire_at=T1, if_generation=seen.generation)
        until(held.reached.is_set)
        newest = other.arm("x", "poll", fire_at=T2)
        release(rig.loop, held)
        outcome = late.result()  # the answer was lost, so its own conflict can't be told from another's
        assert isinstance(outcome, OutcomeUnknown)
        found = other.get("x")
        assert found is not None
        assert (found.generation, found.fire_at) == (newest.generation, T2)


def test_a_conditional_arm_whose_answer_was_lost_is_not_reported_as_a_conflict(rig: Rig, caller: Caller) -> None:
    rig.proxy.script.append(fault(rig.loop, drop_answer=True))
    with pytest.raises(OutcomeUnknown):
        caller.arm("x", "poll", fire_at=T1, if_generation=0)
    assert rig.fake.timers["x"]["generation"] == 1


def test_overloaded_is_asked_again_and_retry_after_is_kept(rig: Rig, caller: Caller) -> None:
    answers = iter([(503, problem("overloaded"))])
    rig.fake.before = lambda request: next(answers, None) if request.method == "POST" else None
    rig.fake.retry_after = "1"
    began = time.monotonic()
    caller.arm("x", "poll", fire_at=T1)
    assert time.monotonic() - began >= 1


def test_overloaded_to_the_end_is_what_the_caller_hears(rig: Rig, caller: Caller) -> None:
    rig.fake.before = lambda request: (503, problem("overloaded")) if request.method == "POST" else None
    rig.fake.retry_after = "2"
    with pytest.raises(Overloaded):
        caller.arm("x", "poll", fire_at=T1)


def test_an_allowance_that_is_used_up_is_waited_for(rig: Rig, caller: Caller) -> None:
    answers = iter([(429, problem("rate-limited"))])
    rig.fake.before = lambda request: next(answers, None) if request.method == "POST" else None
    rig.fake.retry_after = "1"
    began = time.monotonic()
    assert caller.arm("x", "poll", fire_at=T1).armed
    assert time.monotonic() - began >= 1


def test_an_allowance_that_comes_back_too_late_is_what_the_caller_hears(rig: Rig, caller: Caller) -> None:
    rig.fake.before = lambda request: (429, problem("rate-limited")) if request.method == "POST" else None
    rig.fake.retry_after = "600"
    with pytest.raises(RateLimited) as limited:
        caller.arm("x", "poll", fire_at=T1)
    assert limited.value.retry_after == 600
    assert len(arms(rig.fake)) == 1


def test_a_refusal_for_the_rate_says_nothing_of_an_attempt_whose_answer_was_lost(rig: Rig, caller: Caller) -> None:
    rig.proxy.script.append(fault(rig.loop, drop_answer=True))
    rig.fake.before = lambda request: (429, problem("rate-limited")) if arms(rig.fake) else None
    rig.fake.retry_after = "600"
    with pytest.raises(OutcomeUnknown):
        caller.arm("x", "poll", fire_at=T1)
    assert rig.fake.timers["x"]["generation"] == 1


def test_a_full_disk_is_not_retried(rig: Rig, caller: Caller) -> None:
    rig.fake.before = lambda request: (507, problem("storage-full")) if request.method == "POST" else None
    with pytest.raises(StorageFull):
        caller.arm("x", "poll", fire_at=T1)
    assert len(arms(rig.fake)) == 1


def test_a_shard_that_is_away_costs_only_its_own_items(rig: Rig, caller: Caller) -> None:
    def away(request: HttpRequest) -> Any:
        if request.method != "POST" or arms(rig.fake):
            return None
        results = [{"id": "a", "status": "created", "generation": 7}, {"id": "b", "status": "unavailable"}]
        return 503, {**problem("shard-unavailable"), "results": results}

    rig.fake.before = away
    results = caller.arm_many([Arm("a", "poll", fire_at=T1), Arm("b", "poll", fire_at=T2)])
    assert [(r.id, r.status) for r in results] == [("a", "created"), ("b", "created")]
    assert rig.fake.applied == [("b", ms(T2))]


def test_nobody_there_is_unavailable_within_the_timeout() -> None:
    began = time.monotonic()
    with Timerd("http://127.0.0.1:9", timeout=0.4) as client, pytest.raises(Unavailable):
        client.arm("x", "poll", delay=5)
    assert time.monotonic() - began < 0.6


def test_another_service_is_recognised(rig: Rig, caller: Caller) -> None:
    rig.fake.before = lambda request: (200, b"<html>")
    with pytest.raises(UnexpectedAnswer):
        caller.arm("x", "poll", fire_at=T1)
    with pytest.raises(UnexpectedAnswer):
        caller.status()


@pytest.mark.parametrize("phase", ["silent", "full"])
def test_a19_a_hanging_server_leaves_the_client_usable(rig: Rig, phase: str) -> None:
    async def main() -> None:
        hanging = await asyncio.start_server(lambda r, w: asyncio.sleep(60), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{hanging.sockets[0].getsockname()[1]}"
        client = AsyncTimerd(url, timeout=0.5)
        calls: list[Any] = [client.arm(f"t{n}", "poll", fire_at=T1) for n in range(150)]
        calls += [asyncio.wait_for(client.get(f"t{n}"), 0.3) for n in range(150)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, Exception) for outcome in outcomes)
        # The same client object, and so the same pool, with a server that answers again.
        client._wire = type(client._wire)(rig.url, None)
        results = await asyncio.gather(*[client.arm(f"u{n}", "poll", fire_at=T1) for n in range(500)])
        assert len(results) == 500
        assert len(rig.fake.timers) == 500
        await client.close()
        hanging.close()

    if phase == "silent":
        asyncio.run(main())
        return
    with Timerd(rig.proxied, timeout=2.0) as client:
        rig.proxy.script.extend(fault(rig.loop, silent=True) for _ in range(3))
        with pytest.raises(OutcomeUnknown):
            client.arm("x", "poll", fire_at=T1)
        rig.proxy.script.clear()
        threads = [Started(lambda n=n: client.arm(f"u{n}", "poll", fire_at=T1)) for n in range(100)]
        assert all(thread.result().armed for thread in threads)
    until(lambda: rig.fake.open == 0)
