"""Whose batch begins next: shared by weight within a batch, and nobody starves."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.test_dispatcher import OK, REFUSED, World, always, type_of, unless
from timerd.engine.command import SendTake
from timerd.engine.dispatcher import REQUEST_COST, Dispatcher
from timerd.engine.effect import Ready
from timerd.engine.now import Now
from timerd.engine.timer import TimerType
from timerd.engine.turns import Turns

T0 = 1_796_025_600_000


@given(
    sharers=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 900)), min_size=1, max_size=6),
    turns=st.integers(1, 600),
)
def test_those_that_always_have_something_share_by_weight_within_one_turn(
    sharers: list[tuple[int, int]], turns: int
) -> None:
    ring, had = Turns(), Counter[str]()
    weight = {f"t{n}": w for n, (w, _) in enumerate(sharers)}
    cost = {f"t{n}": c for n, (_, c) in enumerate(sharers)}
    for name in weight:
        ring.join(name)
    for _ in range(turns):
        name = ring.next()
        had[name] += cost[name]
        ring.again(name, weight[name], cost[name])
    for a in weight:
        for b in weight:
            assert had[a] / weight[a] - had[b] / weight[b] <= cost[a] / weight[a] + 1e-3


def test_one_that_comes_seldom_goes_first_and_has_saved_nothing_up() -> None:
    ring = Turns()
    for name in ("a", "b"):
        ring.join(name)
    for _ in range(1_000):
        ring.again(ring.next(), 16, 1)
    ring.join("late")
    order = []
    for _ in range(9):
        order.append(ring.next())
        ring.again(order[-1], 16, 1)
    assert order.index("late") <= 2
    assert order.count("late") == 3


def test_one_that_leaves_and_comes_again_gains_nothing() -> None:
    ring, had = Turns(), Counter[str]()
    for name in ("stays", "leaves"):
        ring.join(name)
    for _ in range(1_000):
        name = ring.next()
        had[name] += 1
        ring.again(name, 1, 1)
        if name == "leaves" and len(had) == 2:
            assert ring.next() == "stays"
            had["stays"] += 1
            ring.again("stays", 1, 1)
    assert had["leaves"] <= had["stays"] + 1


def dispatcher_of(allowance: int | None, **slots: int) -> Dispatcher:
    made = Dispatcher(allowance)
    made.set_types({n: TimerType(n, url="http://t", batch_size=100, max_in_flight=s) for n, s in slots.items()})
    for name in slots:
        made.ready(Ready(0, name, 0, 1_000_000, T0))
    return made


def begun(made: Dispatcher, at_ms: int = 60_000) -> Counter[str]:
    takes = made.commands(Now((T0 + at_ms) * 1000, at_ms))
    return Counter(take.message.type for take in takes if isinstance(take, SendTake))


def test_all_slots_fill_at_once_without_an_allowance() -> None:
    assert begun(dispatcher_of(None, storm=50, other=4)) == {"storm": 50, "other": 4}


def test_what_begins_at_a_time_is_bounded_and_shared_by_weight() -> None:
    made = dispatcher_of(10 * (100 + REQUEST_COST), storm=40, other=10)
    assert begun(made) == {"storm": 8, "other": 2}
    assert not begun(made), "nothing more until the allowance is renewed"
    assert made.wake_at() == (None, 0)
    made.renew()
    assert begun(made) == {"storm": 8, "other": 2}


def test_a_storm_does_not_keep_the_others_waiting() -> None:
    made = dispatcher_of(100 + REQUEST_COST, storm=1_000, quiet=4, third=4)
    made.ready(Ready(0, "quiet", 0, 0, T0))
    seen = Counter[str]()
    for n in range(50):
        seen += begun(made, 60_000 + n)
        made.renew()
    assert seen["storm"] > 40
    made.ready(Ready(0, "quiet", 0, 3, T0))
    assert list(begun(made, 60_050)) == ["quiet", "storm"], "it goes first"


def test_a_small_batch_is_no_turn_of_a_storm() -> None:
    made = dispatcher_of(100 + REQUEST_COST, storm=64, quiet=32)
    made.ready(Ready(0, "quiet", 0, 0, T0))
    begun(made)
    for n in range(1, 30):  # it takes a third of what a batch of the storm does, and may have half
        made.renew()
        made.ready(Ready(n, "quiet", 0, 1, T0))
        assert begun(made, 60_000 + n)["quiet"], n


def test_one_that_is_alone_is_not_bounded() -> None:
    made = dispatcher_of(100, storm=50, other=4)
    made.ready(Ready(0, "other", 0, 0, T0))
    assert begun(made) == {"storm": 1}, "as long as it may be that the other has something"
    made.renew()
    assert begun(made, 62_000) == {"storm": 49}


def test_what_keeps_its_turn_is_dropped_by_a_drain() -> None:
    made = dispatcher_of(1, storm=10, other=10)
    assert begun(made) == {"storm": 1}
    made.drain()
    made.renew()
    assert not begun(made)
    assert made.wake_at() == (None, None)


class Bounded(World):
    """A world whose dispatcher begins and settles a little at a time."""

    def __init__(self, *types: TimerType, allowance: int) -> None:
        super().__init__(*types)
        self.dispatcher = Dispatcher(allowance)
        self.dispatcher.set_types(self.types)

    def step(self) -> None:
        self.dispatcher.renew()
        super().step()
        while self.dispatcher.wake_at() == (None, 0):
            self.dispatcher.renew()
            super().step()


@given(
    allowance=st.integers(1, 400),
    counts=st.tuples(st.integers(0, 300), st.integers(0, 40), st.integers(0, 5)),
    bad=st.sampled_from(["x-3", "y-0", "none"]),
)
def test_in_small_portions_everything_is_delivered_once_too(
    allowance: int, counts: tuple[int, int, int], bad: str
) -> None:
    names = ("x", "y", "z")
    world = Bounded(*[type_of(name, batch_size=20, max_lag_ms=0) for name in names], allowance=allowance)
    world.target = unless(bad, REFUSED)
    ids = [id for name, count in zip(names, counts, strict=True) for id in world.arm(count, name, name)]
    world.run(200_000)
    assert world.fired == {id: 1 for id in ids if id != bad}
    world.dispatcher.drain()
    world.target = always(OK)
    world.run(600_000)
    assert world.dispatcher.open_batches() == 0


def test_a_storm_of_answers_is_settled_in_turns_too() -> None:
    world = Bounded(type_of("storm", max_in_flight=64, max_lag_ms=0), type_of("quiet", max_lag_ms=0), allowance=200)
    world.arm(64 * 50, "storm", "s")
    world.arm(1, "quiet", "q")
    world.step()
    assert len(world.answers) == 65
    world.advance(5)
    world.dispatcher.renew()
    World.step(world)
    assert "q-0" in world.fired, "it goes first"
    assert len(world.fired) < 64 * 50
