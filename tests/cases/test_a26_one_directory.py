"""A26: two processes on one data directory.

Both started, both accepted, and one wrote over the other's data, since nothing locked the directory
(skytable/skytable #167, dgraph-io/dgraph #1185).
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.cases import BUSY, each, outside, seeded, sized
from tests.support.contained import contained
from tests.support.process import Process
from tests.support.processor import Processor

ROUNDS = sized(20, 3)
REFUSED_S = 5 * BUSY


Pair = tuple[Process, Process]


def on_one_machine(directory: Path) -> Pair:
    return Process(directory / "data"), Process(directory / "data")


def in_two_containers(directory: Path) -> Pair:
    volume = directory / "volume"
    volume.mkdir()
    return contained(volume, directory / "one"), contained(volume, directory / "two")


@pytest.mark.slow
@pytest.mark.parametrize("make", [on_one_machine, in_two_containers])
async def test_one_directory_has_one_process(tmp_path: Path, make: Callable[[Path], Pair]) -> None:
    seeded()

    async def run(story: Callable[[Path, Callable[[Path], Pair]], Awaitable[None]]) -> None:
        directory = tmp_path / story.__name__
        directory.mkdir()
        await story(directory, make)

    await each(run, [a_second_one_is_refused_and_disturbs_nothing, of_two_starts_at_one_instant_one_lives])


async def a_second_one_is_refused_and_disturbs_nothing(directory: Path, make: Callable[[Path], Pair]) -> None:
    due: dict[str, float] = {}
    first, second = make(directory)
    async with Processor() as processor, first, contextlib.AsyncExitStack() as stack:
        stack.push_async_exit(second.__aexit__)
        await first.put_type("t", url=processor.url)
        refused = asyncio.Event()

        async def arm_on() -> None:
            n = 0
            while not refused.is_set():
                due[f"id-{n}"] = time.time() + 0.05
                await first.arm([{"id": f"id-{n}", "type": "t", "delay": 0.05}])
                n += 1

        arming = asyncio.create_task(arm_on())
        await is_refused(second)
        refused.set()
        await arming
        await processor.until(lambda: processor.ids == due.keys())
        assert not outside(processor, due, max_lag_s=0)

        await first.arm([{"id": "later", "type": "t", "delay": 1}])
        first.kill()
        await second.start()  # at once: no stale lock stands in the way
        await processor.until(lambda: "later" in processor.ids)
        assert not second.complaints()
        await is_refused(first)
        assert await second.stop() == 0


async def is_refused(process: Process) -> None:
    """It ends soon, not with 0, and names the directory."""
    lines = len(process.stderr)
    begin = time.monotonic()
    ready = await process.spawn()
    assert await process.wait(REFUSED_S) != 0
    assert time.monotonic() - begin < REFUSED_S
    assert not await ready
    said = "".join(process.stderr[lines:])
    assert str(process.data) in said, said
    assert "Traceback" not in said


async def of_two_starts_at_one_instant_one_lives(directory: Path, make: Callable[[Path], Pair]) -> None:
    pairs: list[Pair] = []
    for part in (directory / "0", directory / "1"):
        part.mkdir()
        pairs.append(make(part))
    for round in range(ROUNDS):
        pair = pairs[round % 2]  # in the first rounds it is a new directory, in the others one that there is
        ready = await asyncio.gather(*(await asyncio.gather(*(process.spawn() for process in pair))))
        assert sorted(ready) == [False, True], [process.stderr for process in pair]
        winner, loser = pair if ready[0] else pair[::-1]
        assert await loser.wait(REFUSED_S) != 0
        assert str(loser.data) in loser.stderr[-1]
        await winner.put_type("t", url="http://127.0.0.1:9/")
        await winner.arm([{"id": f"id-{round}", "type": "t", "delay": "1h"}])
        assert len(await winner.list()) == round // 2 + 1
        winner.kill()
        await winner.wait()
    for process in (process for pair in pairs for process in pair):
        await process.__aexit__()
