"""Calls that read much: one at a time, with room for others in between, and no more waiting than can be served."""

import asyncio
import time

import pytest

from timerd_api.problem import OVERLOADED, Problem
from timerd_api.turns import WAITING_MAX, Turns


async def test_one_works_at_a_time_and_others_get_the_loop_in_between() -> None:
    turns, working, ends = Turns(), 0, []

    async def read() -> None:
        nonlocal working
        async with turns:
            working += 1
            assert working == 1
            time.sleep(0.02)  # what keeps the loop
            working -= 1
        ends.append(time.monotonic())

    other = 0

    async def others() -> None:
        nonlocal other
        while True:
            await asyncio.sleep(0.001)
            other += 1

    beside = asyncio.create_task(others())
    started = time.monotonic()
    await asyncio.gather(*(read() for _ in range(5)))
    assert ends[-1] - started >= 5 * 0.02 + 4 * 0.02
    assert other >= 8  # not only between two turns of the loop
    beside.cancel()


async def test_who_would_wait_too_long_is_told_so() -> None:
    turns = Turns()
    async with turns:

        async def read() -> str:
            async with turns:
                return "read"

        waiting = [asyncio.create_task(read()) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(Problem) as problem:
            await read()
        assert problem.value.kind is OVERLOADED
        assert problem.value.headers["Retry-After"]
        waiting[0].cancel()
        await asyncio.sleep(0)
        waiting.append(asyncio.create_task(read()))
    assert (await asyncio.gather(*waiting, return_exceptions=True))[1:] == ["read"] * WAITING_MAX
