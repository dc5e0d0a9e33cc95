"""Targets with too much to do, as the dispatcher meets them: how much they are given, and what it costs the timers."""

import pytest

from tests.engine.test_dispatcher import DOWN, OK, World, always, type_of
from tests.engine.test_flow import at, batch, flow_of
from timerd.engine.answer import Failed, Outcome
from timerd.engine.batch import Batch
from timerd.engine.timer import RetryPolicy

BUSY = Failed("HTTP 429", refused=True)
WAIT = Failed("HTTP 429", refused=True, retry_after_ms=10_000)
DOWN_503 = Failed("HTTP 503", suspect=True, refused=True)
STORM = {"batch_size": 10, "max_in_flight": 16, "max_lag_ms": 0, "retry": RetryPolicy(jitter=0.0)}


def most_after(world: World, since: int) -> list[int]:
    """How many were under way, at each moment at which some were posted, from `since` on."""
    moments = sorted({at for at, _ in world.posts if at >= since})
    return [sum(m - world.takes_ms < at <= m for at, _ in world.posts) for m in moments]


def test_after_a_pause_it_begins_at_one_and_doubles() -> None:
    world = World(type_of(**STORM), target=always(WAIT))
    world.arm(3_000)
    world.run(9_000)
    assert len(world.posts) == 16
    world.target = always(OK)
    world.run(20_000)
    rise = most_after(world, 9_000)
    assert rise[:6] == [1, 2, 4, 8, 9, 10]
    assert max(rise) == 16
    assert len(world.fired) == 3_000
    assert all(entry.counted == 0 for entry in world.entries().values())
    assert [turned.what for turned in world.turned] == ["slow_down_began", "slow_down_ended"]
    assert world.turned[0].reason == "HTTP 429"


def test_after_an_outage_it_begins_at_one_and_no_attempt_is_counted() -> None:
    world = World(type_of(**STORM), target=always(DOWN))
    world.arm(2_000)
    world.run(60_000)
    assert world.dispatcher.conditions(world.now.boot_ms)["t"].breaker == "open"
    assert len(world.posts) < 16 + 8 + 12, "what was under way, and probes"
    assert not any(entry.counted for entry in world.entries().values())
    world.target, since = always(OK), world.now.boot_ms
    world.run(600_000)
    assert len(world.fired) == 2_000
    assert most_after(world, since)[:4] == [1, 1, 2, 4], "the probe, and then slowly"
    assert [turned.what for turned in world.turned] == [
        "slow_down_began", "breaker_opened", "breaker_closed", "slow_down_ended"
    ]  # fmt: skip


@pytest.mark.parametrize("refusal", [BUSY, Failed("HTTP 429", refused=True, retry_after_ms=0)])
def test_a_target_that_only_refuses_meets_no_storm(refusal: Failed) -> None:
    world = World(type_of(**STORM), target=always(refusal))
    world.arm(10_000)
    world.run(60_000)
    assert len(world.posts) <= 16 + 8 + 4 + 2 + 4
    held = world.dispatcher.conditions(world.now.boot_ms)["t"].held_until
    assert world.now.boot_ms < held <= world.now.boot_ms + 300_000
    world.run(1_200_000)
    assert len(world.posts) < 45


def test_a_target_of_finite_capacity_gets_about_that_and_all_is_delivered() -> None:
    world = World(type_of(**{**STORM, "max_in_flight": 64, "batch_size": 1}), takes_ms=20)
    most: list[int] = []

    def target(batch: Batch) -> Outcome:
        return BUSY if len(world.answers) >= 10 else OK

    world.target = target
    world.arm(2_000)
    begin = world.now.boot_ms
    world.run(120_000)
    assert len(world.fired) == 2_000
    refused = len(world.posts) - 2_000
    assert refused < 300
    most = most_after(world, begin + 2_000)
    assert max(most, default=0) <= 24
    assert not world.buried


def test_other_types_are_not_slowed() -> None:
    world = World(type_of("t", **STORM), type_of("u", **STORM))
    world.target = lambda batch: WAIT if batch.type == "t" else OK
    world.arm(1_000, "t")
    world.arm(1_000, "u", prefix="u")
    world.run(100)
    assert sum(id.startswith("u") for id in world.fired) == 1_000
    assert world.dispatcher.conditions(world.now.boot_ms)["u"].window == 16


def test_a_new_address_is_whole() -> None:
    world = World(type_of(**STORM), target=always(WAIT))
    world.arm(3_000)
    world.run(100)
    assert world.dispatcher.conditions(world.now.boot_ms)["t"].window == 1
    world.types["t"] = type_of(url="http://other", **STORM)
    world.dispatcher.set_types(world.types)
    world.target = always(OK)
    world.run(1)
    assert world.dispatcher.conditions(world.now.boot_ms)["t"].window == 16


def test_a_pause_is_kept_whoever_may_have_been_the_cause_of_it() -> None:
    flow = flow_of(max_in_flight=16)
    flow.target.accept(8, 1_000)
    poison = batch(tried_at=500, error="HTTP 503")
    flow.open.add(poison.batch_no)
    flow.target.judge(at(2_000), poison, Failed("HTTP 503", suspect=True, refused=True), 1.0)
    assert flow.target.pace.window is None, "by itself it says nothing of the target"
    flow.target.judge(at(2_000), poison, Failed("HTTP 503", suspect=True, refused=True, retry_after_ms=10_000), 1.0)
    assert flow.target.pace.window == 1


def test_a_503_with_nothing_said_opens_the_breaker_as_before() -> None:
    world = World(type_of(**STORM), target=always(DOWN_503))
    world.arm(1_000)
    world.run(100)
    how = world.dispatcher.conditions(world.now.boot_ms)["t"]
    assert (how.breaker, how.reason) == ("open", "HTTP 503")
    assert how.since == world.posts[0][0] + world.takes_ms
    assert how.next_probe_at > world.now.boot_ms


def test_the_reason_shown_and_told_is_the_latest() -> None:
    world = World(type_of(**STORM), target=always(DOWN_503))
    world.arm(1_000)
    world.run(100)
    world.target = always(DOWN)
    world.run(1_200_000)
    assert world.dispatcher.conditions(world.now.boot_ms)["t"].reason == DOWN.error
    world.target = always(OK)
    world.run(600_000)
    assert [(turned.what, turned.reason) for turned in world.turned] == [
        ("slow_down_began", "HTTP 503"),
        ("breaker_opened", "HTTP 503"),
        ("breaker_closed", DOWN.error),
        ("slow_down_ended", DOWN.error),
    ]


def test_trouble_begins_once_and_ends() -> None:
    world = World(type_of(**STORM), target=always(WAIT))
    world.arm(3_000)
    world.run(100)
    begin = world.dispatcher.conditions(world.now.boot_ms)["t"].since
    assert begin == world.posts[0][0] + world.takes_ms
    world.target = always(DOWN)
    world.run(100_000)
    assert world.dispatcher.conditions(world.now.boot_ms)["t"].since == begin
    world.target = always(OK)
    world.run(600_000)
    assert world.dispatcher.conditions(world.now.boot_ms)["t"].since == 0
