"""Targets that are left alone, and how long at most when their type is changed or resumed."""

import msgspec
import pytest

from tests.engine.test_callbacks import TYPE
from tests.engine.test_callbacks import World as Hosts
from tests.engine.test_dispatcher import DOWN, OK, World, always, type_of
from timerd.engine.answer import Accepted, Failed
from timerd.engine.condition import Condition
from timerd.engine.timer import RetryPolicy, TimerType

BUSY = Failed("HTTP 429", refused=True)
HOUR = RetryPolicy(jitter=0.0, max_attempts=0, min_backoff_ms=3_600_000, max_backoff_ms=3_600_000)
SHORT = RetryPolicy(jitter=0.0, max_attempts=0, min_backoff_ms=100, max_backoff_ms=200)


def put(world: World, type: TimerType) -> None:
    world.types["t"] = type
    world.dispatcher.set_types(world.types)
    world.run(0)


def how(world: World) -> Condition:
    found = world.dispatcher.conditions(world.now.boot_ms)["t"]
    assert isinstance(found, Condition)
    return found


def left_alone(failed: Failed) -> tuple[World, TimerType]:
    """A type whose target will not be tried for an hour, with timers due."""
    type = type_of(batch_size=1, max_in_flight=1, max_lag_ms=0, retry=HOUR)
    world = World(type, target=always(failed))
    world.arm(8)
    world.run(60_000)
    assert max(how(world).next_probe_at, how(world).held_until) > world.now.boot_ms + 3_000_000
    world.target = always(OK)
    return world, type


@pytest.mark.parametrize("failed", [DOWN, BUSY], ids=["down", "refuses"])
def test_a_shorter_max_backoff_holds_for_the_wait_that_has_begun(failed: Failed) -> None:
    world, type = left_alone(failed)
    put(world, msgspec.structs.replace(type, retry=SHORT))
    assert not world.fired
    world.run(SHORT.max_backoff_ms + 10)
    assert world.fired


@pytest.mark.parametrize("failed", [DOWN, BUSY], ids=["down", "refuses"])
def test_a_resumed_type_is_tried_at_once(failed: Failed) -> None:
    world, type = left_alone(failed)
    put(world, msgspec.structs.replace(type, state="paused"))
    world.run(1_000)
    assert not world.fired
    put(world, type)
    world.run(10)
    assert world.fired


def test_another_change_moves_no_probe() -> None:
    world, type = left_alone(DOWN)
    probe_at = how(world).next_probe_at
    put(world, msgspec.structs.replace(type, max_lag_ms=5))
    world.run(1_000)
    assert how(world).next_probe_at == probe_at
    assert not world.fired


def test_a_pause_that_was_asked_for_is_kept() -> None:
    type = type_of(batch_size=1, max_in_flight=1, max_lag_ms=0)
    world = World(type, target=always(Failed("HTTP 429", refused=True, retry_after_ms=900_000)))
    world.arm(1)
    world.run(10)
    put(world, msgspec.structs.replace(type, state="paused"))
    put(world, msgspec.structs.replace(type, retry=SHORT))
    assert how(world).held_until > world.now.boot_ms + 800_000


@pytest.mark.parametrize("resumed", [False, True])
def test_hosts_are_tried_sooner_too(resumed: bool) -> None:
    type = msgspec.structs.replace(TYPE, retry=HOUR)
    world = Hosts(type)
    world.answers["h"] = lambda timer: DOWN
    world.arm([f"x{n}" for n in range(8)], "h")
    world.run(60_000)
    before = len(world.sent)
    world.answers["h"] = lambda timer: Accepted()
    then = [msgspec.structs.replace(type, state="paused"), type] if resumed else [
        msgspec.structs.replace(type, retry=SHORT)
    ]  # fmt: skip
    for changed in then:
        world.dispatcher.set_types({"t": changed})
        world.run(world.now_ms + 1)
    world.run(world.now_ms + 300)
    assert len(world.sent) > before
