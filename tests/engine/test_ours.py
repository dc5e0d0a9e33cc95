"""Batches that could not be sent for a reason of ours, as when a signing secret is missing: nothing is learnt of the
target, and the type's tries are spaced out."""

from tests.engine.test_callbacks import TYPE
from tests.engine.test_callbacks import World as Hosts
from tests.engine.test_dispatcher import DOWN, OK, World, always, type_of
from timerd.engine.answer import Failed
from timerd.engine.batch import Batch
from timerd.engine.condition import Condition
from timerd.engine.message import WholeFailure
from timerd.engine.timer import RetryPolicy

NO_SECRET = Failed("no secret", sent=False, retry_after_ms=1_000, ours=True)
POLICY = RetryPolicy(jitter=0.0, max_attempts=1, min_backoff_ms=500, max_backoff_ms=60_000)


def how(world: World) -> Condition:
    found = world.dispatcher.conditions(world.now.boot_ms)["t"]
    assert isinstance(found, Condition)
    return found


def test_the_target_is_as_well_as_before() -> None:
    world = World(type_of(batch_size=1, max_in_flight=16, max_lag_ms=0, retry=POLICY), target=always(NO_SECRET))
    world.arm(64)
    world.run(10_000)
    assert (how(world).breaker, how(world).window, how(world).held_until) == ("closed", 16, 0)
    assert how(world).reason == ""
    assert world.turned == []
    assert len(world.posts) <= 16 + 10, "then one at a time, and spaced"
    assert not any(entry.counted for entry in world.entries().values())
    world.target, world.takes_ms, before = always(OK), 1_000, len(world.posts)
    until = world.now.boot_ms + 1_000
    while len(world.posts) == before:
        world.run(10)
    assert world.now.boot_ms <= until + 10
    assert world.dispatcher.leaves(world.answers[0][1]), "it leaves, so others may"
    assert not world.dispatcher.leaves(world.answers[0][1])
    world.run(10)
    assert len(world.answers) == 16


def test_an_open_breaker_stays_open_and_its_probe_is_free_again() -> None:
    missing = False

    def target(batch: Batch) -> Failed:
        return NO_SECRET if missing else DOWN

    world = World(type_of(batch_size=1, max_lag_ms=0, retry=POLICY), target=target)
    world.arm(20)
    world.run(5_000)
    assert how(world).breaker == "open"
    missing, before = True, len(world.posts)
    world.run(120_000)
    assert how(world).breaker == "open"
    assert len(world.posts) - before <= 120
    assert [turned.what for turned in world.turned] == ["slow_down_began", "breaker_opened"]
    world.target, missing = always(OK), False
    world.run(120_000)
    assert len(world.fired) == 20


def test_what_never_left_closes_no_breaker() -> None:
    world = World(type_of(batch_size=1, max_lag_ms=0, retry=POLICY), target=always(DOWN))
    world.arm(20)
    world.run(5_000)
    world.target = always(Failed("private", sent=False, no_retry=True))
    world.run(60_000)
    assert how(world).breaker == "open"


def test_a_change_of_the_type_lets_it_try_at_once() -> None:
    type = type_of(batch_size=1, max_in_flight=1, max_lag_ms=0, retry=POLICY)
    slow = Failed("no secret", sent=False, retry_after_ms=50_000, ours=True)
    world = World(type, target=always(slow))
    world.arm(5)
    world.run(1_000)
    assert len(world.posts) == 1
    world.target = always(OK)
    world.types["t"] = type_of(batch_size=1, max_in_flight=1, max_lag_ms=1, retry=POLICY)
    world.dispatcher.set_types(world.types)
    world.run(1_000)
    assert len(world.fired) == 4


def test_hosts_learn_nothing_of_callbacks_that_could_not_be_sent() -> None:
    world = Hosts(TYPE)
    sent = world.dispatcher.sort
    missing = WholeFailure("no secret", 1_000, TYPE.batch_size)
    world.dispatcher.sort = lambda now, no, wants: sent(now, no, [(t, missing) for t, _ in wants])  # type: ignore[method-assign]
    world.arm([f"x{n}" for n in range(20)], "h")
    world.run(3_000)
    assert (world.sent, world.turned, len(world.gate.hosts)) == ([], [], 0)
    world.dispatcher.sort = sent  # type: ignore[method-assign]
    world.run(6_000)
    assert len(world.sent) == 20
