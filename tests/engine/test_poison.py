"""One timer that always fails, among others that are well: its target is healthy, and is not to be slowed for it."""

import msgspec
import pytest

from tests.engine.test_callbacks import TYPE
from tests.engine.test_callbacks import World as Hosts
from tests.engine.test_dispatcher import OK, World, type_of
from timerd.engine.answer import Accepted, Failed, Outcome
from timerd.engine.batch import Batch
from timerd.engine.condition import Condition, HostsCondition
from timerd.engine.pace import Pace
from timerd.engine.timer import RetryPolicy

POLICY = RetryPolicy(jitter=0.0)
BUSY = Failed("HTTP 429", refused=True)
AWAY = Failed("HTTP 503", suspect=True, refused=True)
GATEWAY = Failed("HTTP 504", suspect=True)
HANGS = Failed("timeout", suspect=True, unknown=True)
PATIENT = RetryPolicy(jitter=0.0, max_attempts=0, min_backoff_ms=1_000, max_backoff_ms=8_000)


def fail(pace: Pace, who: str, batch_no: int, under_way: int, *, again: bool, failed: Failed = BUSY) -> None:
    pace.fail(failed, batch_no, batch_no + under_way, under_way, 16, POLICY, 1_000, 1.0, who, again)


def test_a_retry_that_fails_among_successes_is_no_sign_by_itself() -> None:
    pace = Pace()
    for batch_no in range(1, 2_000, 20):
        fail(pace, "poison", batch_no, 7, again=True)
        pace.succeed(1_000, 16)
    assert not pace.slowed


def test_retries_of_several_that_fail_in_a_round_are_a_sign() -> None:
    pace = Pace()
    fail(pace, "a", 1, 16, again=True)
    pace.succeed(1_000, 16)
    fail(pace, "b", 2, 16, again=True)
    assert pace.window == 8


def test_those_of_an_earlier_round_are_forgotten() -> None:
    pace = Pace()
    for batch_no, who in enumerate("abcdef"):
        fail(pace, who, batch_no + 1, 7, again=True)
        for _ in range(16):
            pace.succeed(1_000, 16)
    assert not pace.slowed


def test_one_that_fails_again_with_nothing_taken_between_is_heard_once() -> None:
    pace = Pace()
    fail(pace, "poison", 1, 2, again=False)
    assert pace.window == 8, "few under way don't say how many are too many"
    for batch_no in range(10, 100, 10):
        fail(pace, "poison", batch_no, 2, again=True)
    assert (pace.window, pace.held_until) == (8, 0)
    fail(pace, "another", 200, 2, again=True)
    assert pace.window == 4
    assert pace.held_until > 1_000, "that is a refusing target"


def test_a_lone_request_is_a_sign_when_it_is_the_second_in_a_row() -> None:
    pace = Pace()
    fail(pace, "a", 1, 1, again=False)
    assert not pace.slowed
    fail(pace, "b", 2, 1, again=False)
    assert pace.window == 8
    assert pace.held_until == 1_000 + POLICY.min_backoff_ms


def steady(failed: Failed) -> tuple[World, list[int]]:
    """Seven timers a second, each a request of a second, and one that always fails; the least window there was."""

    def target(batch: Batch) -> Outcome:
        return failed if batch.timers[0].id.startswith("poison") else OK

    world = World(type_of(batch_size=1, max_in_flight=16, max_lag_ms=0, retry=PATIENT), target=target, takes_ms=1_000)
    world.arm(1, prefix="poison")
    world.run(5_000)
    windows = []
    for n in range(20):
        world.arm(7, prefix=f"s{n}-")
        world.run(1_000)
        how = world.dispatcher.conditions(world.now.boot_ms)["t"]
        assert isinstance(how, Condition)
        windows.append(how.window)
    return world, windows


@pytest.mark.parametrize("failed", [BUSY, AWAY, GATEWAY, HANGS], ids=lambda failed: failed.error)
def test_a_type_keeps_its_window_beside_one_poison_timer(failed: Failed) -> None:
    world, windows = steady(failed)
    assert min(windows) == 16
    world.run(60_000)
    how = world.dispatcher.conditions(world.now.boot_ms)["t"]
    assert isinstance(how, Condition)
    assert (how.window, how.held_until) == (16, 0), "nor in a quiet time"
    tries = sum(batch.timers[0].id.startswith("poison") for _, batch in world.posts)
    assert 8 < tries < 40, "tried at its own gaps"


def test_a_pause_that_is_asked_for_ends_gently_whoever_it_was_answered_to() -> None:
    waits = Failed("HTTP 503", suspect=True, refused=True, retry_after_ms=5_000)
    answers = {"poison": AWAY}
    world = World(
        type_of(batch_size=1, max_in_flight=16, max_lag_ms=0, retry=PATIENT),
        target=lambda batch: answers.get(batch.timers[0].id.partition("-")[0], OK),
    )
    world.arm(1, prefix="poison")
    world.run(500)
    world.arm(1, prefix="well")
    world.run(100)
    answers["poison"] = waits
    world.run(1_000)
    how = world.dispatcher.conditions(world.now.boot_ms)["t"]
    assert isinstance(how, Condition)
    assert how.held_until > world.now.boot_ms
    assert how.window == 1


@pytest.mark.parametrize("failed", [BUSY, AWAY, HANGS], ids=lambda failed: failed.error)
def test_a_host_keeps_its_share_beside_one_poison_callback(failed: Failed) -> None:
    world = Hosts(msgspec.structs.replace(TYPE, max_in_flight=64, retry=PATIENT))
    world.answers["h"] = lambda timer: failed if timer.id == "poison" else Accepted()
    world.latency_ms["h"] = 900
    world.arm(["first"], "h")
    world.run(1_000)
    world.arm(["poison"], "h")
    for n in range(12):
        world.arm([f"s{n}-{m}" for m in range(7)], "h")
        world.run(1_000 * (n + 2))
        if n > 2:
            how = world.dispatcher.conditions(world.now.boot_ms)["t"]
            assert isinstance(how, HostsCondition)
            assert (how.slowed, how.held) == (0, 0)
    world.run(30_000)
    how = world.dispatcher.conditions(world.now.boot_ms)["t"]
    assert isinstance(how, HostsCondition)
    assert (how.slowed, how.held) == (0, 0)
