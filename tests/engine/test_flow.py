"""One flow alone: which lane goes, how much of it, and when to ask again."""

import pytest

from timerd.engine.answer import Failed
from timerd.engine.batch import Batch
from timerd.engine.choice import Choice
from timerd.engine.effect import Ready
from timerd.engine.flow import Flow
from timerd.engine.now import Now
from timerd.engine.timer import Failure, RetryPolicy, Timer, TimerType

T0 = 1_796_025_600_000
DEAF = Failed("HTTP 503", suspect=True)
DOWN = Failed("connect: refused", suspect=True, sent=False)


def at(ms: int) -> Now:
    return Now((T0 + ms) * 1000, ms)


def flow_of(**fields: object) -> Flow:
    flow = Flow("t")
    defaults = {"url": "http://t", "batch_size": 50, "max_lag_ms": 1000, "retry": RetryPolicy(jitter=0.0)}
    flow.set_type(TimerType("t", **{**defaults, **fields}), 0)  # type: ignore[arg-type]
    return flow


def ready(flow: Flow, limit: int, count: int, since: int = T0, shard: int = 0, urgent: bool = False) -> None:
    flow.report(Ready(shard, "t", limit, count, since, urgent))


def batch(count: int = 1, whole: int = 50, tried_at: int = 0, error: str | None = None) -> Batch:
    failure = None if error is None else Failure(3, 0, 1, 1, error)
    timers = [Timer(T0, n + 1, f"x-{n}", "t", None, 0, failure) for n in range(count)]
    return Batch(9, "t", timers, frozenset(), tried_at, whole)


def open_breaker(flow: Flow, now_ms: int) -> None:
    for n in range(3):
        flow.target.breaker.suspect(1000 + n, None, flow.policy, now_ms, 1.0)


# ---- the target


def test_a_new_address_is_a_new_target() -> None:
    flow = flow_of(url="http://old")
    open_breaker(flow, 0)
    flow.open.add(9)
    flow.set_type(TimerType("t", url="http://new", batch_size=50, retry=RetryPolicy(jitter=0.0)), 0)
    ready(flow, 50, 5, since=1)
    assert not flow.target.breaker.open
    assert flow.choose(at(0)) == Choice(50, 50, [(0, 5)])
    for _ in range(5):  # what is still under way to the old one says nothing about the new one, nor about its members
        assert flow.target.judge(at(1), batch(count=1), DOWN, 1.0).counted is False
        assert flow.target.judge(at(1), batch(count=1), Failed("HTTP 410", gone=True), 1.0).limit == 50
    flow.target.accept(9, 5)
    assert not flow.target.breaker.open
    assert not flow.target.gone
    assert flow.target.breaker.succeeded_at == 0


# ---- choices


def test_urgent_shards_give_first_and_then_those_that_waited_longest() -> None:
    flow = flow_of(batch_size=10)
    for shard, (since, urgent) in enumerate([(T0 - 5, False), (T0 - 9, False), (T0, True)]):
        ready(flow, 0, 4, since, shard, urgent)
    assert flow.choose(at(0)) == Choice(0, 10, [(2, 4), (1, 4), (0, 2)])


def test_among_retries_the_longest_untried_go_first_whatever_their_size() -> None:
    flow = flow_of()
    ready(flow, 25, 5, since=900)
    ready(flow, 1, 5, since=800)
    ready(flow, 50, 5, since=850)
    assert flow.choose(at(1000)) == Choice(1, 1, [(0, 1)])


def test_retries_travel_in_no_larger_batch_than_they_may_and_the_type_allows() -> None:
    flow = flow_of(batch_size=10)
    ready(flow, 25, 40, since=1)
    assert flow.choose(at(5)) == Choice(25, 25, [(0, 10)])


def test_first_attempts_and_retries_take_turns() -> None:
    flow = flow_of(max_lag_ms=0)
    ready(flow, 0, 500)
    ready(flow, 25, 500, since=1)
    limits = []
    for _ in range(6):
        choice = flow.choose(at(5))
        assert choice is not None
        limits.append(choice.limit)
        flow.ask(choice)
    assert limits == [0, 25, 0, 25, 0, 25]


def test_a_probe_goes_to_what_was_tried_longest_ago_and_first_attempts_were_never() -> None:
    flow = flow_of(max_lag_ms=0)
    open_breaker(flow, 0)
    ready(flow, 0, 5)
    ready(flow, 25, 5, since=900)
    limits = []
    for n in range(4):
        now = at(10_000 * (n + 1))
        choice = flow.choose(now)
        assert choice is not None
        limits.append(choice.limit)
        flow.note_probe(choice, n, now.boot_ms)
        assert flow.choose(at(10_000 * (n + 1) + 9000)) is None, "a second probe"
        flow.target.breaker.suspect(n, None, flow.policy, now.boot_ms, 1.0)
        if choice.limit:
            ready(flow, 25, 5, since=now.boot_ms)
    assert limits == [0, 25, 0, 25]


def test_a_single_probe_keeps_its_members_whole() -> None:
    flow = flow_of(max_lag_ms=0)
    open_breaker(flow, 0)
    for n in range(3):
        flow.target.breaker.send_probe(n)
        flow.target.breaker.suspect(n, None, flow.policy, 0, 1.0)
    ready(flow, 25, 20, since=1)
    assert flow.choose(at(100_000)) == Choice(25, 25, [(0, 1)])


def test_how_long_a_shard_waits_is_not_known_while_a_take_is_under_way() -> None:
    """The longest waiting are in the take; what is left may have come just now, and is no reason for a small batch."""
    flow = flow_of(batch_size=5)
    ready(flow, 0, 8, since=T0 - 5000)
    choice = flow.choose(at(0))
    assert choice == Choice(0, 5, [(0, 5)])
    flow.ask(choice)
    assert flow.choose(at(0)) is None
    flow.receive(0, 0, 5, 5)
    ready(flow, 0, 3, since=T0 - 100)
    assert flow.choose(at(0)) is None
    assert flow.wake == (T0 + 850, None)


# ---- when to ask again


def test_wake_is_when_the_batch_closes() -> None:
    flow = flow_of()
    ready(flow, 0, 5)
    assert flow.choose(at(949)) is None
    assert flow.wake == (T0 + 950, None)
    assert flow.choose(at(950)) is not None


def test_wake_is_the_first_of_two_reasons() -> None:
    """Ten retries wait for allowance; one first attempt closes before they have it, and is content with less."""
    flow = flow_of(max_lag_ms=40, max_per_second=100.0)
    ready(flow, 25, 10, since=1)
    choice = flow.choose(at(0))
    assert choice is not None
    flow.ask(choice)
    flow.receive(25, 0, 10, 10)
    ready(flow, 25, 10, since=1)
    ready(flow, 0, 1)
    assert flow.choose(at(15)) is None
    assert flow.wake == (T0 + 20, 100)
    assert flow.choose(at(20)) == Choice(0, 50, [(0, 1)])


def test_what_only_an_event_can_change_has_no_wake() -> None:
    for flow in (flow_of(state="paused"), flow_of(max_in_flight=0), Flow("t"), flow_of()):
        assert flow.choose(at(0)) is None
        assert flow.wake == (None, None)


def test_allowance_for_what_was_not_there_is_given_back() -> None:
    flow = flow_of(max_lag_ms=0, max_per_second=100.0)
    ready(flow, 0, 10)
    choice = flow.choose(at(0))
    assert choice is not None
    flow.ask(choice)
    flow.receive(0, 0, 10, 3)
    ready(flow, 0, 7)
    assert flow.choose(at(0)) == Choice(0, 50, [(0, 7)])


# ---- judgements


def judge(flow: Flow, batch: Batch, failed: Failed, now_ms: int = 1000) -> tuple[int, int, bool]:
    failure = flow.target.judge(at(now_ms), batch, failed, 1.0)
    return failure.limit, failure.gap_ms, failure.counted


def succeeded(flow: Flow, ms: int) -> Flow:
    flow.target.breaker.succeed(ms)
    return flow


@pytest.mark.parametrize("failed", [Failed("HTTP 500"), Failed("HTTP 302"), Failed("HTTP 429")])
def test_a_failure_that_may_be_a_members_halves_and_counts_alone(failed: Failed) -> None:
    assert judge(flow_of(), batch(50), failed) == (25, 1000, False)
    assert judge(flow_of(), batch(20), failed) == (10, 1000, False)
    assert judge(flow_of(), batch(20, whole=12), failed) == (6, 1000, False)
    assert judge(flow_of(), batch(1), failed) == (1, 1000, True)


@pytest.mark.parametrize("failed", [DOWN, DEAF, Failed("HTTP 410", gone=True)])
def test_a_failure_that_says_nothing_of_its_members_leaves_them_whole(failed: Failed) -> None:
    assert judge(flow_of(), batch(20), failed) == (50, 1000, False)
    assert judge(flow_of(), batch(1), failed) == (50, 1000, False)


def test_a_sign_of_a_down_target_is_a_members_when_others_succeeded_meanwhile() -> None:
    assert judge(succeeded(flow_of(), 500), batch(20, tried_at=400), DEAF) == (10, 1000, False)
    assert judge(succeeded(flow_of(), 300), batch(20, tried_at=400), DEAF) == (50, 1000, False)
    assert judge(succeeded(flow_of(), 500), batch(20), DEAF) == (50, 1000, False)


def test_what_was_never_sent_is_no_members_fault() -> None:
    assert judge(succeeded(flow_of(), 500), batch(20, tried_at=400), DOWN) == (50, 1000, False)


def test_a_target_known_to_be_down_is_no_members_fault() -> None:
    flow = succeeded(flow_of(), 500)
    open_breaker(flow, 600)
    assert judge(flow, batch(20, tried_at=400), DEAF) == (50, 1000, False)
    flow = succeeded(flow_of(), 500)
    for n in range(2):
        flow.target.breaker.suspect(n, None, flow.policy, 600, 1.0)
    assert judge(flow, batch(20, tried_at=400), DEAF) == (50, 1000, False), "the failure that opens it"


def test_a_timer_alone_must_have_failed_in_the_same_way() -> None:
    flow = succeeded(flow_of(), 500)
    assert judge(flow, batch(1, tried_at=400, error="HTTP 503: busy"), DEAF) == (1, 1000, True)
    assert judge(flow, batch(1, tried_at=400, error="HTTP 500"), DEAF) == (50, 8000, False)


def test_a_hold_ends_at_its_time() -> None:
    flow = flow_of(max_lag_ms=0)
    ready(flow, 0, 5)
    assert judge(flow, batch(20), Failed("HTTP 429", retry_after_ms=5000)) == (50, 5000, False)
    assert judge(flow, batch(20), Failed("HTTP 429", retry_after_ms=100)) == (50, 1000, False)
    assert flow.choose(at(5999)) is None
    assert flow.wake == (None, 6000)
    assert flow.choose(at(6000)) is not None
