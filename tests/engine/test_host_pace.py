"""Hosts of callbacks that have too much to do: each by itself, and what is shown of them."""

from collections import Counter

import msgspec
import pytest

from tests.engine.test_callbacks import TYPE, World
from timerd.engine.answer import Accepted, Failed
from timerd.engine.condition import HOSTS_SHOWN, HostsCondition
from timerd.engine.host import share_of
from timerd.engine.hosts import HOSTS_IDLE_MAX
from timerd.engine.pace import CALM_MS

OK = Accepted()
BUSY = Failed("HTTP 429", refused=True)
BUSY_503 = Failed("HTTP 503", suspect=True, refused=True)
WAIT = Failed("HTTP 429", refused=True, retry_after_ms=5_000)
DOWN = Failed("connect: refused", suspect=True, sent=False)
PATIENT = msgspec.structs.replace(
    TYPE, max_in_flight=64, retry=msgspec.structs.replace(TYPE.retry, max_attempts=0, min_backoff_ms=1_000)
)


def condition(world: World) -> HostsCondition:
    found = world.dispatcher.conditions(world.now.boot_ms)["t"]
    assert isinstance(found, HostsCondition)
    return found


def sent_within(world: World, host: str, since_ms: int, length_ms: int) -> int:
    """How many went to it in that time."""
    return sum(name == host and since_ms <= at < since_ms + length_ms for at, name, _ in world.sent)


def test_after_a_pause_a_host_gets_one_request_and_then_two() -> None:
    world = World(PATIENT)
    world.answers["slow"] = lambda timer: WAIT if world.now_ms < 4_000 else OK
    world.arm([f"s{n}" for n in range(200)], "slow")
    world.arm([f"q{n}" for n in range(200)], "quick")
    world.run(3_000)
    assert sum(host == "quick" for _, host, _ in world.sent) == 200, "others are as quick as ever"
    held = condition(world)
    assert (held.held, held.open, held.troubled[0].host) == (1, 0, "slow")
    assert held.troubled[0].reason == "HTTP 429"
    world.run(60_000)
    begin = min(at for at, host, _ in world.sent if host == "slow" and at >= 4_000)
    rise = [sent_within(world, "slow", begin + 6 * n, 6) for n in range(8)]  # answers take 5 ms
    assert rise[0] == 1
    assert rise[1] <= 2
    assert rise[2] <= 4
    assert max(rise) > 4
    assert sum(host == "slow" for _, host, _ in world.sent) >= 200
    assert not condition(world).troubled


def test_a_host_that_only_refuses_is_asked_seldom() -> None:
    world = World(PATIENT)
    world.answers["no"] = lambda timer: BUSY
    world.arm([f"n{n}" for n in range(500)], "no")
    world.run(30_000)
    assert sum(host == "no" for _, host, _ in world.sent) < 40


def test_hosts_in_trouble_are_counted_and_the_first_hundred_named() -> None:
    world = World(PATIENT)
    for n in range(HOSTS_SHOWN + 30):
        world.answers[f"h{n}"] = lambda timer: WAIT
        world.arm([f"x{n}"], f"h{n}")
    world.run(4_000)
    shown = condition(world)
    assert shown.held == HOSTS_SHOWN + 30
    assert len(shown.troubled) == HOSTS_SHOWN
    assert [host.since for host in shown.troubled] == sorted(host.since for host in shown.troubled)


def test_a_dead_host_is_shown_open_and_then_well() -> None:
    world = World(PATIENT)
    world.answers["dead"] = lambda timer: DOWN if world.now_ms < 20_000 else OK
    world.arm([f"d{n}" for n in range(50)], "dead")
    world.run(15_000)
    shown = condition(world)
    assert shown.open == 1
    assert shown.troubled[0].breaker in ("open", "probing")
    world.run(60_000)
    assert condition(world).open == 0


def test_hosts_take_turns_at_a_type_s_rate() -> None:
    """A backlog for one host does not use up the rate of what goes to another."""
    world = World(msgspec.structs.replace(PATIENT, max_per_second=100.0, max_in_flight=64))
    world.arm([f"b{n}" for n in range(3_000)], "big")
    world.arm([f"s{n}" for n in range(20)], "small")
    world.run(3_000)
    small = [at for at, host, _ in world.sent if host == "small"]
    assert len(small) == 20
    assert sum(host == "big" and at <= small[-1] for at, host, _ in world.sent) < 200
    assert len(world.sent) <= 100 * 3 + 10 + 1


def test_the_reason_shown_and_told_of_a_host_is_the_latest() -> None:
    world = World(PATIENT)
    world.answers["h"] = lambda timer: BUSY_503 if world.now_ms < 2_000 else DOWN if world.now_ms < 60_000 else OK
    world.arm([f"n{n}" for n in range(200)], "h")
    world.run(50_000)
    assert condition(world).troubled[0].reason == DOWN.error
    world.run(120_000)
    assert [(turned.what, turned.reason) for turned in world.turned] == [
        ("slow_down_began", "HTTP 503"),
        ("breaker_opened", "HTTP 503"),
        ("breaker_closed", DOWN.error),
        ("slow_down_ended", DOWN.error),
    ]


ONCE = msgspec.structs.replace(PATIENT, retry=msgspec.structs.replace(PATIENT.retry, max_attempts=1))


@pytest.mark.parametrize("max_in_flight", [4, 16])
def test_a_host_that_refuses_callbacks_that_come_one_by_one_is_remembered(max_in_flight: int) -> None:
    world = World(msgspec.structs.replace(ONCE, max_in_flight=max_in_flight))
    world.answers["no"] = lambda timer: BUSY
    for n in range(150):
        world.arm([f"n{n}"], "no", delay_ms=400 * n)
    world.run(60_000)
    assert len(world.sent) < 40, "refusals are spaced by max_backoff in the end: each costs an attempt"
    told = ["slow_down_began", "slow_down_ended"] if share_of(max_in_flight) > 1 else []
    assert [turned.what for turned in world.turned] == told[:1]
    assert condition(world).known == condition(world).held == 1
    world.answers.clear()
    world.run(600_000)
    assert world.totals()["fired"] > 110
    assert len(world.gate.hosts) == 0
    assert [turned.what for turned in world.turned] == told


def test_a_host_that_has_been_quiet_for_long_begins_anew() -> None:
    world = World(ONCE)
    world.answers["no"] = lambda timer: BUSY
    for n in range(3):
        world.arm([f"n{n}"], "no", delay_ms=10_000 * n)
    world.run(30_000)
    assert len(world.sent) == 3
    assert condition(world).slowed == 1
    world.run(CALM_MS - 10_000)
    assert condition(world).known == 1
    world.run(20_000)
    world.arm(["x1"], "no")
    world.arm(["x2"], "no", delay_ms=20)
    world.run(100)
    assert [id for _, _, id in world.sent[3:]] == ["x1", "x2"], "the first refusal after that costs no pause"
    assert [turned.what for turned in world.turned] == ["slow_down_began"] * 2


def test_hosts_that_refuse_are_remembered_within_bounds_and_go_without_a_word() -> None:
    world = World(msgspec.structs.replace(ONCE, max_in_flight=10_000, batch_size=5_000))
    world.check = lambda: None  # type: ignore[method-assign]
    for n in range(HOSTS_IDLE_MAX + 500):
        world.answers[f"h{n}"] = lambda timer: BUSY
        world.arm([f"x{n}", f"y{n}"], f"h{n}")
    world.run(5_000)
    assert world.totals()["dead"] == 2 * (HOSTS_IDLE_MAX + 500)
    assert len(world.gate.hosts) == HOSTS_IDLE_MAX
    assert Counter(turned.what for turned in world.turned) == {"slow_down_began": HOSTS_IDLE_MAX + 500}


def test_a_host_that_nothing_has_to_do_with_any_more_is_not_shown() -> None:
    world = World(ONCE)
    world.answers["dead"] = lambda timer: DOWN
    world.arm(["d0", "d1", "d2"], "dead")
    world.run(10_000)
    world.arm([f"q{n}" for n in range(200)], "quick", delay_ms=CALM_MS + 60_000)
    assert condition(world).is_down
    world.run(CALM_MS + 10_000)
    shown = condition(world)
    assert (shown.open, shown.slowed, shown.troubled) == (0, 0, [])
    assert shown.known == 1, "but still known"
    world.latency_ms["dead"] = 1_000
    world.arm(["d3"], "dead")
    world.run(100)
    assert condition(world).troubled[0].breaker == "probing"


def test_a_pause_that_a_host_has_asked_for_is_shown_to_its_end() -> None:
    world = World(ONCE)
    world.answers["later"] = lambda timer: Failed("HTTP 429", refused=True, retry_after_ms=2 * CALM_MS)
    world.arm(["x"], "later")
    world.run(2 * CALM_MS - 10_000)
    assert condition(world).held == 1
