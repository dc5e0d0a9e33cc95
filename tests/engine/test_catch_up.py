"""Catch-up beside on-time timers: in one flow, and at the gate of callbacks."""

from bisect import bisect_left
from collections import Counter
from itertools import count

import msgspec
import pytest

from tests.engine.test_callbacks import DOWN, TYPE, World
from tests.engine.test_flow import T0, at, flow_of, open_breaker, ready
from timerd.engine.catchup import MISSED, TURNS
from timerd.engine.choice import Choice
from timerd.engine.flow import Flow
from timerd.engine.timer import Misfire

numbers = count(1)


def begin(flow: Flow, ms: int) -> Choice | None:
    """Carry out the next choice, as the dispatcher does, and let the shard have as much again."""
    choice = flow.choose(at(ms))
    if choice is not None:
        flow.ask(choice)
        number = next(numbers)
        flow.open.add(number)
        if choice.limit == MISSED:
            flow.catching_up.add(number)
        for shard, asked in choice.takes:
            flow.receive(choice.limit, shard, asked, asked)
    return choice


def limits(flow: Flow, ms: int = 0) -> list[int]:
    """The lanes of all that may leave now."""
    found = []
    while (choice := begin(flow, ms)) is not None:
        found.append(choice.limit)
    return found


# ---- a flow


def test_on_time_goes_first_and_catch_up_has_half_of_the_requests() -> None:
    flow = flow_of(max_in_flight=4)
    ready(flow, MISSED, 50)
    assert limits(flow) == [MISSED, MISSED]
    ready(flow, 0, 50)
    assert limits(flow) == [0, 0]


@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
def test_at_least_one_request_is_for_catch_up(max_in_flight: int) -> None:
    flow = flow_of(max_in_flight=max_in_flight)
    ready(flow, MISSED, 50)
    assert limits(flow) == [MISSED]


def test_of_a_target_that_is_slowed_down_it_has_half_as_well() -> None:
    flow = flow_of(max_in_flight=16)
    flow.target.pace.window = 4
    ready(flow, MISSED, 50)
    assert limits(flow) == [MISSED, MISSED]
    ready(flow, 0, 50)
    assert limits(flow) == [0, 0]


def test_one_choice_in_a_few_is_for_catch_up_whatever_is_on_time() -> None:
    flow = flow_of(max_in_flight=4)
    ready(flow, 0, 50)
    ready(flow, 50, 50)
    ready(flow, MISSED, 50)
    chosen = []
    for _ in range(TURNS * 10):
        choice = begin(flow, 0)
        assert choice is not None
        chosen.append(choice.limit)
        flow.open.clear()
    assert Counter(chosen)[MISSED] == 10
    assert abs(Counter(chosen)[0] - Counter(chosen)[50]) <= 1


def test_catch_up_waits_for_no_batch_and_is_of_one_size_at_most() -> None:
    flow = flow_of(batch_size=10)
    ready(flow, MISSED, 3, shard=0)
    assert flow.choose(at(0)) == Choice(MISSED, 10, [(0, 3)])
    ready(flow, MISSED, 9, shard=1)
    choice = flow.choose(at(0))
    assert choice is not None
    assert sum(part for _, part in choice.takes) == 10


def test_catch_up_has_a_rate_of_its_own_and_says_when_it_goes_on() -> None:
    flow = flow_of(misfire=Misfire(max_per_second=100.0))
    ready(flow, MISSED, 50)
    choice = begin(flow, 0)
    assert choice == Choice(MISSED, 50, [(0, 10)])
    assert flow.choose(at(0)) is None
    assert flow.wake == (None, 100)
    assert not flow.waits(at(0)), "it lacks nobody's work"
    assert flow.waits(at(100))
    ready(flow, 0, 50)
    assert limits(flow, 1) == [0] * 15


def test_what_a_take_did_not_bring_is_given_back_to_both_rates() -> None:
    flow = flow_of(max_per_second=1000.0, misfire=Misfire(max_per_second=100.0))
    ready(flow, MISSED, 10)
    choice = flow.choose(at(0))
    assert choice is not None
    flow.ask(choice)
    assert flow.choose(at(0)) is None
    flow.receive(MISSED, 0, 10, 0)
    assert flow.choose(at(0)) == choice
    assert flow._rate is not None
    assert flow._rate.available(0) == 100


def test_on_time_timers_do_not_lose_the_type_s_rate_to_catch_up() -> None:
    flow = flow_of(max_per_second=100.0, batch_size=10, max_in_flight=1000)
    ready(flow, 0, 10)
    ready(flow, MISSED, 10)
    sent = Counter[int]()
    for ms in range(0, 10_000, 10):
        while (choice := begin(flow, ms)) is not None:
            sent[choice.limit] += sum(part for _, part in choice.takes)
    assert sum(sent.values()) == pytest.approx(1010, abs=20)
    assert sent[MISSED] == pytest.approx(1010 / TURNS, abs=20)


def test_a_down_target_is_probed_though_only_catch_up_is_ready() -> None:
    flow = flow_of()
    ready(flow, MISSED, 50)
    open_breaker(flow, 0)
    assert flow.choose(at(0)) is None
    wake = flow.wake[1]
    assert wake is not None
    choice = flow.choose(at(wake))
    assert choice is not None
    assert choice.limit == MISSED
    flow.note_probe(choice, 7, wake)
    assert flow.choose(at(wake)) is None
    flow.target.accept(7, wake)
    assert flow.choose(at(wake)) is not None


def test_a_batch_that_is_not_full_yet_still_closes_while_catch_up_is_under_way() -> None:
    flow = flow_of(misfire=Misfire(max_per_second=1.0))
    ready(flow, 0, 5, since=T0)
    ready(flow, MISSED, 50)
    assert limits(flow) == [MISSED]
    assert flow.wake == (T0 + 950, 1000)
    assert limits(flow, 950) == [0] * 15


# ---- the gate


def missed_world(rate: float | None = None, hosts: str = "m", each: int = 300) -> World:
    """So many of each host are missed: from now on they are overdue by more than the grace."""
    world = World(msgspec.structs.replace(TYPE, misfire=Misfire("fire", 60_000, rate)))
    for host in hosts:
        world.arm([f"missed-{host}{n}" for n in range(each)], host, delay_ms=10)
    world.turn()
    world.now_ms += 120_000
    return world


def most_in(ms: int, moments: list[int]) -> int:
    """In any span of so many milliseconds."""
    return max(bisect_left(moments, at + ms) - n for n, at in enumerate(moments))


def missed_at(world: World) -> list[int]:
    return [at for at, _, id in world.sent if id.startswith("missed")]


def test_missed_callbacks_leave_at_their_rate_and_on_time_ones_of_the_same_host_in_time() -> None:
    world = missed_world(rate=20.0)
    armed: dict[str, int] = {}
    for n in range(50):
        armed[f"new-{n}"] = world.now_ms + 10
        world.arm([f"new-{n}"], "m", delay_ms=10)
        world.run(100)
    lates = [at - armed[id] for at, _, id in world.sent if id in armed]
    assert len(lates) == 50
    assert max(lates) <= 60
    assert len(missed_at(world)) == pytest.approx(100, abs=5)
    world.run(20_000)
    assert most_in(1_000, missed_at(world)) <= 20 + 2
    assert world.totals()["fired"] == 350
    assert (world.gate.in_flight, world.gate._missed_in_flight, len(world.gate.hosts)) == (0, 0, 0)


def test_the_rate_is_for_what_leaves_and_not_for_what_is_sorted() -> None:
    world = missed_world(rate=20.0, hosts="dg", each=200)
    world.answers["d"] = lambda timer: DOWN
    world.run(11_000)
    assert sum(host == "g" for _, host, _ in world.sent) == 200, "the others do not wait for a host that is down"
    world.run(30_000)
    assert sum(world.sorted.values()) < 400 + 2 * len(world.sent), "those that wait are not looked at again"
    world.answers.clear()
    world.run(60_000)
    assert world.live == 0
    first_at = [at for at, _, id in world.sent if id.startswith("missed-g")]
    assert most_in(1_000, first_at) <= 20 + 2


def test_missed_callbacks_hold_half_of_the_requests_at_most() -> None:
    world = missed_world(hosts="abcdef", each=20)
    for host in "abcdef":
        world.latency_ms[host] = 500
    most = 0
    while world.live:
        world.run(50)
        most = max(most, len(world.under_way))
        assert world.gate._missed_in_flight <= 8
    assert most == 8


def test_what_is_missed_of_callbacks_is_dropped() -> None:
    world = World(msgspec.structs.replace(TYPE, misfire=Misfire("drop")))
    world.answers["d"] = lambda timer: DOWN
    world.arm([f"d{n}" for n in range(100)], "d", delay_ms=10)
    world.run(30_000)
    assert world.live > 50
    world.run(60_000)
    world.answers.clear()
    world.arm(["new"], "d", delay_ms=10)
    world.run(60_000)
    assert "new" in {id for _, _, id in world.sent}
    assert world.live == 0
    dropped = sum(shard.state.lane("t").totals.dropped["misfire"] for shard in world.shards)
    assert dropped + world.totals()["fired"] + world.totals().get("dead", 0) == 101
    assert dropped >= 50, "all that had not been tried"
