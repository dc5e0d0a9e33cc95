"""The state: what each record does to the counts, and how placement is priced."""

from copy import deepcopy

import msgspec
import pytest

from tests.engine.harness import ALL_SLOTS, T0
from timerd.engine.move_record import Adopted, Ceded
from timerd.engine.now import Now
from timerd.engine.record import Armed, Buried, Cancelled, Fired, Purged, Record, Retried, Revived
from timerd.engine.state import BODY_REF_BYTES, COMPLETION_BYTES, TIMER_BYTES, State
from timerd.engine.timer import BodyRef, Timer


def armed(*ids: str, first: int = 1, type: str = "t", payload: bytes | BodyRef | None = None) -> Armed:
    return Armed([Timer(T0, first + n, id, type, payload) for n, id in enumerate(ids)])


AB = armed("a", "b")
BURIED = Buried(["a"], T0, True, False, "boom")


@pytest.mark.parametrize(
    ("records", "totals"),
    [
        ([AB], {"armed": 2}),
        ([AB, armed("b", first=3)], {"armed": 3, "replaced": 1}),
        ([AB, Cancelled(["a"])], {"armed": 2, "cancelled": 1}),
        ([AB, Fired("t", ["a", "b"])], {"armed": 2, "fired": 2}),
        ([AB, Fired("t", ["a"], armed("b", first=3).timers, [], 4)], {"armed": 3, "fired": 2, "superseded": 4}),
        ([AB, Fired("t", [], [], [("processor", ["a", "b"])])], {"armed": 2, "dropped": {"processor": 2}}),
        ([AB, Retried(["a"], 5, 1, True, False, "")], {"armed": 2, "retried": 1}),
        ([AB, BURIED], {"armed": 2, "dead": 1}),
        ([AB, BURIED, Revived([("a", 9)])], {"armed": 2, "dead": 1, "revived": 1}),
        ([AB, BURIED, Purged(["a"])], {"armed": 2, "dead": 1, "purged": 1}),
        ([AB, BURIED, Cancelled(["a"])], {"armed": 2, "dead": 1, "purged": 1}),
        ([AB, BURIED, armed("a", first=9)], {"armed": 3, "dead": 1, "purged": 1}),
    ],
)
def test_the_totals_of_a_record(records: list[Record], totals: dict[str, object]) -> None:
    state = State(0, ALL_SLOTS, Now(T0 * 1000, 1))
    for record in deepcopy(records):
        state.apply(record)
    lane = state.lane("t")
    assert {name: value for name in lane.totals.__struct_fields__ if (value := getattr(lane.totals, name))} == totals
    assert lane.live == lane.totals.live


def test_records_of_many_types_go_to_their_lanes() -> None:
    state = State(0, ALL_SLOTS, Now(T0 * 1000, 1))
    timers = [*armed("a", "b").timers, *armed("c", first=3, type="u").timers, *armed("d", first=4).timers]
    state.apply(Armed(timers))
    assert (state.lane("t").live, state.lane("u").live, state.last) == (3, 1, 4)


def test_what_a_checkpoint_and_completions_would_take() -> None:
    state = State(0, ALL_SLOTS, Now(T0 * 1000, 1))
    state.apply(armed("é", payload=b"123"))
    state.apply(armed("ab", first=2, payload=BodyRef(1, 0, 600, b"")))
    assert state.live_bytes == 2 * TIMER_BYTES + 4 + 3 + BODY_REF_BYTES
    assert state.completion_bytes == 2 * COMPLETION_BYTES + 4
    state.apply(Cancelled(["é", "ab"]))
    assert state.live_bytes == state.completion_bytes == 0
    assert state.body_bytes == {}


def test_what_a_checkpoint_says_of_slots_on_the_move_counts_as_live() -> None:
    slots = list(range(300, 16_000))
    for record in (Ceded(2, 1, slots, 5), Adopted(2, 1, slots, 5)):
        state = State(0, slots if isinstance(record, Ceded) else [], Now(T0 * 1000, 0))
        state.apply(record)
        said = len(msgspec.msgpack.encode(state.moves.of(slots)))
        assert said <= state.live_bytes <= 1.2 * said
