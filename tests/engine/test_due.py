"""The wheel: nothing early, nothing lost, nothing that takes long."""

from random import Random

import pytest

from tests.engine.harness import DAY, HOUR, MINUTE, SECOND, T0
from timerd.engine.due import LEAD_MS, SLICE, SWEEP_FLOOR, DueQueue
from timerd.engine.timer import GONE, Timer


def timer(at: int, generation: int = 1) -> Timer:
    return Timer(at, generation, f"{at}-{generation}", "t")


def drain(queue: DueQueue, now_ms: int, count: int = 10**9) -> list[Timer]:
    """All that is due, in as many steps as it takes."""
    due: list[Timer] = []
    for _ in range(10_000):
        queue.advance(now_ms)
        due += queue.pop_due(count)
        at = queue.next_at()
        if at is None or at > now_ms:
            return due
    raise AssertionError("it spins")


@pytest.mark.parametrize("distance", [1, 50, 8 * SECOND, 9 * MINUTE, HOUR, 10 * HOUR, 24 * DAY, 400 * DAY, 3650 * DAY])
def test_a_timer_comes_in_its_millisecond_and_not_before(distance: int) -> None:
    queue = DueQueue(T0)
    queue.push([timer(T0 + distance)])
    assert drain(queue, T0 + distance - 1) == []
    assert drain(queue, T0 + distance) == [timer(T0 + distance)]
    assert len(queue) == 0
    assert queue.next_at() is None


def test_following_its_wake_ups_meets_every_timer_in_its_millisecond() -> None:
    random = Random(1)
    queue = DueQueue(T0)
    timers = [
        timer(T0 + random.choice([10, SECOND, MINUTE, HOUR, 30 * DAY]) + random.randrange(MINUTE), n)
        for n in range(500)
    ]
    queue.push(timers)
    now, wakes, due = T0, 0, []
    while (at := queue.next_at()) is not None:
        now = max(now, at)
        wakes += 1
        queue.advance(now)
        popped = queue.pop_due(1_000)
        assert all(t.fire_at == now for t in popped)
        due += popped
    assert sorted(due) == sorted(timers)
    assert wakes < 1_000


def test_what_is_due_comes_in_the_order_of_its_milliseconds_then_of_arrival() -> None:
    queue = DueQueue(T0)
    queue.push([timer(T0 + 3, 1), timer(T0 + 1, 2), timer(T0 + 3, 3), timer(T0 - DAY, 4)])
    assert [t.generation for t in drain(queue, T0 + 5)] == [4, 2, 1, 3]


def test_a_clock_that_goes_back_makes_what_was_overdue_wait() -> None:
    queue = DueQueue(T0)
    queue.push([timer(T0 + 10)])
    queue.advance(T0 + DAY)
    assert drain(queue, T0 + 5) == []
    assert queue.next_at() == T0 + 10
    assert len(drain(queue, T0 + 10)) == 1


def test_a_clock_that_jumps_forth_and_back_loses_nothing() -> None:
    random = Random(2)
    queue = DueQueue(T0)
    left = {t.id: t for t in (timer(T0 + random.randrange(40 * DAY), n) for n in range(300))}
    queue.push(list(left.values()))
    for _ in range(200):
        now = T0 + random.randrange(41 * DAY)
        for t in drain(queue, now, count=3):
            assert t.fire_at <= now
            del left[t.id]
        assert len(queue) == len(left)
    drained = drain(queue, T0 + 41 * DAY)
    assert sorted(drained) == sorted(left.values())


def test_stale_entries_are_swept_in_slices_and_live_ones_stay() -> None:
    queue = DueQueue(T0)
    timers = [timer(T0 + DAY + n % 7 * HOUR, n) for n in range(3 * SWEEP_FLOOR)]
    overdue = [timer(T0, n) for n in range(SWEEP_FLOOR)]
    queue.push(timers)
    queue.push(overdue)
    for t in timers[10:] + overdue[10:]:
        t.state = GONE
        queue.discard()
    steps = 0
    queue.advance(T0)
    while queue.next_at() == 0:
        queue.advance(T0)
        steps += 1
    assert steps >= 4 * SWEEP_FLOOR // SLICE - 1
    assert queue._entries == 20
    assert queue._stale == 0
    assert drain(queue, T0) == overdue[:10]
    assert sorted(drain(queue, T0 + 2 * DAY)) == sorted(timers[:10])


def test_a_bin_of_many_opens_before_its_time_and_in_slices() -> None:
    queue = DueQueue(T0)
    timers = [timer(T0 + HOUR, n) for n in range(5 * SLICE)]
    queue.push(timers)
    now, steps = T0, 0
    while queue._starts:
        now = max(now, queue.next_at() or 0)
        queue.advance(now)
        steps += 1
    assert now <= T0 + HOUR - LEAD_MS
    assert steps >= 5
    assert drain(queue, T0 + HOUR) == timers


def test_readers_see_what_is_soonest_wherever_it_lies() -> None:
    random = Random(3)
    queue = DueQueue(T0)
    timers = [
        timer(T0 + random.choice([-5, 5, SECOND, MINUTE, HOUR, 50 * DAY]) + random.randrange(20), n) for n in range(200)
    ]
    queue.push(timers)
    for t in timers[::3]:
        t.state = GONE
        queue.discard()
    live = sorted(t for t in timers if t.state != GONE)
    for count in (1, 7, 100, 1_000):
        assert queue.soonest(count) == live[:count]
    for now in (T0, T0 + 10, T0 + MINUTE + 10, T0 + 60 * DAY):
        assert sorted(queue.due(now)) == [t for t in live if t.fire_at <= now]
