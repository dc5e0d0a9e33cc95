"""Payloads in what is shown: read where they lie, and looked up again where they have gone."""

import msgspec
import pytest

from timerd.engine.message import TimerView
from timerd.engine.timer import BodyRef
from timerd.payloads import with_bodies
from timerd_storage.memory_log import MemoryLog

GONE = BodyRef(99, 0, 600, b"x" * 16)  # copied forward, and its segment dropped


def view(id: str, payload: BodyRef | bytes | None, generation: int = 1, state: str = "armed") -> TimerView:
    return TimerView(
        id=id,
        type="t",
        state=state,
        fire_at=1_796_000_000_000 + generation,
        generation=generation,
        attempt=0,
        created_at=0,
        updated_at=0,
        shard=0,
        payload=payload,
    )


async def shown(now: TimerView | None, *, as_they_were: bool) -> list[TimerView]:
    async def look_up(id: str) -> TimerView | None:
        return now

    return await with_bodies([view("a", GONE)], MemoryLog(), look_up, as_they_were=as_they_were)


@pytest.mark.parametrize("as_they_were", [False, True])
async def test_a_body_that_was_copied_forward_is_read_there(as_they_were: bool) -> None:
    log = MemoryLog()
    (place,) = log.place_bodies(0, [("a", b"1" * 600)])

    async def look_up(id: str) -> TimerView | None:
        return view(id, place)

    found = await with_bodies([view("a", GONE)], log, look_up, as_they_were=as_they_were)
    assert found == [view("a", b"1" * 600)]


@pytest.mark.parametrize(
    "now", [view("a", b"2", generation=2), view("a", b"2", state="dead")], ids=["moved", "given up"]
)
async def test_what_has_become_another_is_shown_as_it_is_unless_it_was_chosen_for_what_it_was(now: TimerView) -> None:
    assert await shown(now, as_they_were=False) == [now]
    assert await shown(now, as_they_were=True) == []


@pytest.mark.parametrize("as_they_were", [False, True])
async def test_what_is_there_no_more_is_left_out_and_what_is_damaged_is_shown_without(as_they_were: bool) -> None:
    assert await shown(None, as_they_were=as_they_were) == []
    without = msgspec.structs.replace(view("a", GONE), payload=None)
    assert await shown(view("a", GONE), as_they_were=as_they_were) == [without]
