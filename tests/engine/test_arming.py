"""Arms, cancels and fire-nows: a table of what each does to what is there."""

from typing import Any

import pytest

from tests.engine.harness import SECOND, T0, Bench, failed, ids_of
from timerd.engine.message import TIMER_DEAD, Arm
from timerd.engine.record import Armed
from timerd.engine.timer import Timer, TimerType


def bench_with(place: str) -> Bench:
    """A bench with a timer "x" for T0 + 10 (or in the past), in this place."""
    bench = Bench(TimerType("t", batch_size=10, max_lag_ms=0), TimerType("u", batch_size=10, max_lag_ms=0))
    if place == "absent":
        return bench
    bench.arm("x", T0 + 10)
    if place == "waiting":
        return bench
    bench.pass_ms(10)
    if place == "ready":
        return bench
    taken = bench.take()
    if place == "retrying":
        bench.settle(taken, failed())
    elif place == "dead":
        bench.settle(taken, failed(bury=True))
    elif place == "held":
        bench.arm("x", T0 + 10, payload=b"0")
    return bench


@pytest.mark.parametrize(
    ("place", "arm", "status"),
    [
        ("absent", {}, "created"),
        ("waiting", {}, "unchanged"),
        ("waiting", {"at": T0 + 11}, "moved"),
        ("waiting", {"payload": b"1"}, "moved"),
        ("waiting", {"type": "u"}, "moved"),
        ("ready", {}, "unchanged"),
        ("held", {"payload": b"0"}, "unchanged"),
        ("held", {}, "moved"),
        ("in flight", {}, "moved"),
        ("retrying", {}, "moved"),
        ("dead", {}, "created"),
        ("waiting", {"mode": "keep", "at": T0 + 9}, "kept"),
        ("retrying", {"mode": "keep"}, "kept"),
        ("in flight", {"mode": "keep"}, "moved"),
        ("dead", {"mode": "keep"}, "created"),
        ("absent", {"mode": "keep"}, "created"),
        ("waiting", {"mode": "earliest", "at": T0 + 9}, "moved"),
        ("waiting", {"mode": "earliest", "at": T0 + 11}, "kept"),
        ("waiting", {"mode": "earliest"}, "unchanged"),
        ("waiting", {"mode": "latest", "at": T0 + 9}, "kept"),
        ("waiting", {"mode": "latest", "at": T0 + 11}, "moved"),
        ("in flight", {"mode": "latest", "at": T0 + 9}, "moved"),
        ("absent", {"if_generation": 0}, "created"),
        ("absent", {"if_generation": 1}, "conflict"),
        ("waiting", {"if_generation": T0 * 1000}, "unchanged"),
        ("waiting", {"if_generation": 0}, "conflict"),
        ("in flight", {"if_generation": T0 * 1000}, "moved"),
        ("dead", {"if_generation": T0 * 1000}, "created"),
        ("dead", {"if_generation": 0}, "conflict"),
        ("waiting", {"if_generation": 1, "mode": "keep"}, "conflict"),
    ],
)
def test_an_arm(place: str, arm: dict[str, Any], status: str) -> None:
    bench = bench_with(place)
    frames = len(bench.frames)
    before = bench.get("x")
    result = bench.arm("x", **{"at": T0 + 10, **arm})
    assert result.status == status
    assert (result.previous_fire_at is not None) == (status == "moved")
    assert (len(bench.frames) > frames) == (status in ("created", "moved")), "only a change is written"
    after = bench.get("x")
    assert (result.generation, result.fire_at) == ((after.generation, after.fire_at) if after else (0, 0))
    if before and status in ("created", "moved"):
        assert after is not None
        assert after.generation > before.generation
        assert after.created_at == before.created_at


def test_an_id_twice_in_one_message_is_armed_in_order() -> None:
    bench = Bench()
    timers = [
        Timer(T0 + 1, 0, "a", "t"),
        Timer(T0 + 2, 0, "b", "t"),
        Timer(T0 + 2, 0, "a", "t"),
        Timer(T0 + 2, 0, "a", "t"),
    ]
    done = bench.ask(Arm(timers, None))
    assert [result.status for result in done.results] == ["created", "created", "moved", "unchanged"]
    assert [len(record.timers) for record in bench.records if isinstance(record, Armed)] == [2, 1]
    bench.crash()
    assert [(id, bench.get(id).fire_at - T0) for id in bench.ids()] == [("b", 2), ("a", 2)]  # type: ignore[union-attr]


def test_generations_grow_when_the_wall_clock_goes_back() -> None:
    bench = Bench()
    first = bench.arm("a", T0 + SECOND).generation
    bench.pass_ms(-10 * SECOND)
    assert bench.arm("a", T0 + 2 * SECOND).generation == first + 1
    bench.crash()
    assert bench.arm("a", T0 + 3 * SECOND).generation == first + 2


@pytest.mark.parametrize(
    ("place", "found", "in_flight"),
    [
        ("absent", False, False),
        ("waiting", True, False),
        ("ready", True, False),
        ("held", True, False),
        ("in flight", True, True),
        ("retrying", True, False),
        ("dead", True, False),
    ],
)
def test_a_cancel(place: str, found: bool, in_flight: bool) -> None:
    bench = bench_with(place)
    first, again = bench.cancel("x", "x")
    assert (first.found, first.in_flight) == (found, in_flight)
    assert not again.found
    assert bench.get("x") is None
    assert bench.totals().get("purged" if place == "dead" else "cancelled", 0) == found
    bench.crash()
    assert bench.get("x") is None


@pytest.mark.parametrize(
    ("place", "status"),
    [("waiting", "moved"), ("ready", "moved"), ("held", "moved"), ("retrying", "moved"), ("in flight", "unchanged")],
)
def test_a_fire_now(place: str, status: str) -> None:
    assert bench_with(place).fire_now("x").status == status


def test_a_fire_now_of_nothing_and_of_the_dead() -> None:
    assert bench_with("absent").fire_now("x") is None
    assert bench_with("dead").fire_now("x") == TIMER_DEAD


def test_a_fire_now_waits_for_no_batch_held_back_or_restarted_or_not() -> None:
    bench = bench_with("waiting")
    bench.fire_now("x")
    assert bench.told["t", 0].urgent
    bench.crash()
    assert bench.told["t", 0].urgent
    taken = bench.take()
    bench.arm("x", T0 + SECOND)
    bench.fire_now("x")
    assert ("t", 0) not in bench.told or not bench.told["t", 0].count
    bench.settle(taken)
    assert bench.told["t", 0].urgent
    assert ids_of(bench.take()) == ["x"]
