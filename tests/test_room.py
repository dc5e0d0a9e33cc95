"""Room for payloads on their way: bounded, in turns, and never a lock-out."""

import asyncio

from timerd.room import Room


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_fetches_at_a_time_and_types_take_turns() -> None:
    room, order = Room(1_000), []

    async def batch(type: str) -> None:
        await room.enter(type, 10)
        order.append(type)
        room.fetched()

    first = asyncio.create_task(room.enter("x", 10))
    await settle()
    tasks = [asyncio.create_task(batch(type)) for type in ("storm", "storm", "storm", "quiet")]
    await settle()
    assert first.done()
    assert not order
    room.fetched()
    await asyncio.gather(*tasks)
    assert order == ["storm", "quiet", "storm", "storm"]


async def test_a_type_has_its_share_or_one_batch() -> None:
    room = Room(1_000)
    tasks = [asyncio.create_task(room.enter("slow", 300)) for _ in range(3)]
    await settle()
    room.fetched()
    await settle()
    assert [task.done() for task in tasks] == [True, False, False]
    other = asyncio.create_task(room.enter("other", 5_000))  # larger than all the room
    await settle()
    assert other.done()
    room.fetched()
    assert room.bytes == 5_300
    room.leave("slow", 300)
    await settle()
    assert tasks[1].done()
    room.fetched()
    room.leave("slow", 300)
    room.leave("other", 5_000)
    await settle()
    assert tasks[2].done()
    assert room.bytes == 300


async def test_one_that_gives_up_leaves_no_trace() -> None:
    room = Room(1_000)
    held = asyncio.create_task(room.enter("a", 10))
    await settle()
    waiting = asyncio.create_task(room.enter("b", 10))
    await settle()
    waiting.cancel()
    await settle()
    room.fetched()
    await settle()
    assert held.done()
    assert room.bytes == 10
    last = asyncio.create_task(room.enter("c", 10))
    await settle()
    assert last.done()
