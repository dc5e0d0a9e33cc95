"""The wheel: wake-ups of shards on two clocks."""

from hypothesis import given
from hypothesis import strategies as st

from timerd.engine.now import Now
from timerd.wheel import Wheel

NOW = Now(1_000_000_000, 5_000)  # wall 1,000,000 ms


def test_an_empty_wheel_waits_for_nothing():
    wheel = Wheel()
    assert wheel.delay_ms(NOW) is None
    assert wheel.due(NOW) == []


def test_the_nearer_of_the_two_clocks_counts():
    wheel = Wheel()
    wheel.put(1, (1_000_300, None))
    wheel.put(2, (None, 5_100))
    assert wheel.delay_ms(NOW) == 100
    assert wheel.due(Now(NOW.wall_us, 5_100)) == [2]
    assert wheel.due(Now(1_000_300_000, 5_100)) == [1, 2]


def test_a_wall_clock_that_steps_is_seen_without_being_told():
    wheel = Wheel()
    wheel.put(1, (1_000_300, None))
    assert wheel.due(Now(2_000_000_000, 5_000)) == [1]
    assert wheel.delay_ms(Now(0, 5_000)) == 1_000_300


wakes = st.tuples(st.none() | st.integers(0, 100), st.none() | st.integers(0, 100))


@given(st.lists(st.tuples(st.integers(0, 5), wakes)), st.integers(0, 100), st.integers(0, 100))
def test_it_is_a_dict_of_wake_ups(puts, wall, boot):
    wheel, model = Wheel(), {}
    for shard, wake in puts:
        wheel.put(shard, wake)
        model[shard] = wake
    now = Now(wall * 1000, boot)
    due = [s for s, (w, b) in model.items() if (w is not None and w <= wall) or (b is not None and b <= boot)]
    assert wheel.due(now) == sorted(due)
    delays = [w - wall for w, _ in model.values() if w is not None]
    delays += [b - boot for _, b in model.values() if b is not None]
    assert wheel.delay_ms(now) == (max(0, min(delays)) if delays else None)
