"""The limit of a key: what passes over any time, what is said of it, and that a batch is no way around it."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.asgi import HOST, JSON, Answer, call
from tests.api.fake_service import FakeService
from timerd_api.app import create_app
from timerd_api.limits import Meter
from timerd_api.problem import Problem
from timerd_api.settings import ApiSettings


def refusal(meter: Meter, boot_ms: int, timers: int = 1) -> Problem | None:
    try:
        meter.admit(boot_ms)
        meter.weigh(timers, boot_ms)
    except Problem as problem:
        return problem
    return None


def passes(meter: Meter, boot_ms: int, timers: int = 1) -> bool:
    problem = refusal(meter, boot_ms, timers)
    assert problem is None or problem.kind.name == "rate-limited"
    assert problem is None or int(problem.headers["Retry-After"]) >= 1
    return problem is None


@given(
    st.sampled_from([0.001, 0.5, 1, 3.7, 100, 1e9]),
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 10_000)), max_size=60),
)
def test_over_any_time_no_more_passes_than_may(per_second: float, asked: list[tuple[int, int]]) -> None:
    meter = Meter(per_second, 0)
    now = 0
    passed: list[tuple[int, int]] = []
    for gap, timers in asked:
        now += gap
        if passes(meter, now, timers):
            passed.append((now, timers))
    for first in range(len(passed)):
        total = 0
        for at, timers in passed[first:]:
            # The largest request is taken whole, and what it takes ahead is owed.
            assert total < per_second * (at - passed[first][0]) / 1000 + max(1, per_second) + 1
            total += timers


def test_who_waits_as_long_as_told_gets_in() -> None:
    for per_second in (0.001, 0.5, 1, 7, 1_000):
        meter = Meter(per_second, 0)
        assert passes(meter, 0, 10_000 + round(per_second))
        refused = refusal(meter, 0)
        assert refused is not None
        wait_ms = int(refused.headers["Retry-After"]) * 1000
        assert not passes(meter, wait_ms - 1_001)
        assert passes(meter, wait_ms)


def test_requests_that_were_let_in_together_do_not_all_pass() -> None:
    meter = Meter(10, 0)
    for _ in range(10):
        meter.admit(0)
    meter.weigh(10_000, 0)
    for _ in range(9):
        with pytest.raises(Problem):
            meter.weigh(10_000, 0)
    meter.weigh(1, 0)  # has paid for itself


def test_what_is_said_of_it() -> None:
    meter = Meter(10, 0)
    assert meter.fields(0) == ((b"ratelimit-policy", b'"key";q=10;qu="timers";w=1'), (b"ratelimit", b'"key";r=10;t=0'))
    assert passes(meter, 0, 4)
    assert meter.fields(0)[1][1] == b'"key";r=6;t=1'
    assert passes(meter, 0, 26)
    assert meter.fields(0)[1][1] == b'"key";r=0;t=3'
    assert Meter(0.25, 0).fields(0)[0][1] == b'"key";q=1;qu="timers";w=4'


async def limited(service: FakeService, per_second: float) -> tuple[bytes, bytes]:
    done = await service.keys.create("n", ("arm", "read"), None, per_second, None)
    assert isinstance(done, tuple)
    return b"authorization", f"Bearer {done[1]}".encode()


def left(answer: Answer) -> int:
    assert re.fullmatch(r'"key";q=\d+;qu="timers";w=\d+', answer.headers["ratelimit-policy"])
    found = re.fullmatch(r'"key";r=(\d+);t=\d+', answer.headers["ratelimit"])
    assert found
    return int(found[1])


async def test_a_batch_costs_what_it_weighs(service: FakeService) -> None:
    app = create_app(service, ApiSettings(api_key="owner"))
    key = await limited(service, 100)
    headers = [HOST, JSON, key]

    def items(count: int) -> bytes:
        return msgspec.json.encode({"timers": [{"id": f"{n}", "type": "poll", "delay": 1} for n in range(count)]})

    assert left(await call(app, "GET", "/v1/timers", headers=headers)) == 99
    assert left(await call(app, "POST", "/v1/timers", items(40), headers)) == 59
    assert left(await call(app, "PUT", "/v1/timers/a", b'{"type":"poll","delay":1}', headers)) == 58
    cancel = msgspec.json.encode({"ids": [f"{n}" for n in range(8)]})
    assert left(await call(app, "POST", "/v1/timers:cancel", cancel, headers)) == 50
    assert left(await call(app, "POST", "/v1/timers", b"{", headers)) == 49  # refused, and still asked for
    over = await call(app, "POST", "/v1/timers", items(1_000), headers)
    assert (over.status, left(over)) == (200, 0)
    asked = len(service.asked)
    for method, path, body in [("POST", "/v1/timers", items(1)), ("GET", "/v1/timers/a", b""), ("GET", "/docs", b"")]:
        refused = await call(app, method, path, body, headers)
        assert (refused.status, refused.problem, left(refused)) == (429, "rate-limited", 0)
        assert refused.headers["retry-after"] == "10"
        assert refused.headers["ratelimit"].endswith(";t=10")
    assert len(service.asked) == asked
    other = [HOST, JSON, await limited(service, 100)]
    assert (await call(app, "GET", "/v1/timers", headers=other)).status == 200
    assert (await call(app, "GET", "/healthz", headers=headers)).status == 200
    service.clock.waited_ms += 10_000
    again = await call(app, "GET", "/v1/timers/nobody", headers=headers)
    assert again.status == 404


async def test_a_key_without_a_limit_hears_nothing_of_limits(service: FakeService) -> None:
    app = create_app(service, ApiSettings(api_key="owner"))
    answer = await call(app, "GET", "/v1/timers", headers=[HOST, (b"authorization", b"Bearer owner")])
    assert not [name for name in answer.headers if "ratelimit" in name]


async def test_a_change_of_other_keys_gives_nobody_a_new_allowance(service: FakeService) -> None:
    app = create_app(service, ApiSettings(api_key="owner"))
    headers = [HOST, await limited(service, 1)]
    assert (await call(app, "GET", "/v1/timers", headers=headers)).status == 200
    other = await service.keys.create("n", ("arm",), None, None, None)
    assert isinstance(other, tuple)
    assert (await call(app, "GET", "/v1/timers", headers=headers)).status == 429
    await service.keys.revoke(other[0].id, None)
    assert (await call(app, "GET", "/v1/timers", headers=headers)).status == 429
