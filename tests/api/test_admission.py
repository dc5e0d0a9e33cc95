"""Admission: a share a turn of the loop, in order, and nobody waits for one who has gone."""

import asyncio

from timerd_api.admission import BYTES_A_TURN, WAIT_S_MAX, Admission


async def one_turn() -> None:
    await asyncio.sleep(0)


async def test_a_share_a_turn_in_order() -> None:
    admission = Admission()
    entered: list[int] = []

    async def enter(number: int, size: int) -> None:
        await admission.enter(size)
        entered.append(number)

    tasks = [asyncio.create_task(enter(n, BYTES_A_TURN // 2)) for n in range(6)]
    seen = []
    while len(entered) < 6:
        await one_turn()
        seen.append(len(entered))
    assert entered == list(range(6))
    assert max(b - a for a, b in zip([0, *seen], seen, strict=False)) <= 2
    await asyncio.gather(*tasks)


async def test_one_of_any_size_enters_at_once_when_nothing_waits() -> None:
    admission = Admission()
    assert enters_at_once(admission, 100 * BYTES_A_TURN)
    assert not enters_at_once(admission, 1), "this turn's share is used up"
    await one_turn()
    assert enters_at_once(admission, 1)


def enters_at_once(admission: Admission, size: int) -> bool:
    entering = admission.enter(size)
    try:
        entering.send(None)
    except StopIteration:
        return True
    return False


async def test_who_has_gone_takes_no_share() -> None:
    admission = Admission()
    await admission.enter(BYTES_A_TURN)
    gone = [asyncio.create_task(admission.enter(BYTES_A_TURN)) for _ in range(3)]
    stays = asyncio.create_task(admission.enter(1))
    await one_turn()
    for task in gone:
        task.cancel()
    for _ in range(3):
        await one_turn()
    assert stays.done()
    assert not admission.is_full()


async def test_it_is_full_while_who_is_next_waits_for_long() -> None:
    admission = Admission()
    loop = asyncio.get_running_loop()
    now = loop.time()
    assert enters_at_once(admission, BYTES_A_TURN)
    assert not enters_at_once(admission, 1)
    assert not admission.is_full()
    loop.time = lambda: now + WAIT_S_MAX + 1  # type: ignore[method-assign]
    try:
        assert admission.is_full()
    finally:
        del loop.time
    await one_turn()
    assert not admission.is_full()
