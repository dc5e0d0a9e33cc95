"""A full disk, and kill -9 while it is full: it starts on the full disk, refuses arms, goes on firing, loses nothing.

The load is that of the kill rounds; ballast keeps the disk full until it is taken away. (Case A02 is a full disk
without kills.)
"""

import asyncio
from pathlib import Path
from random import Random

import pytest

from tests.crash.load import Load
from tests.support.cases import sized
from tests.support.process import Process
from tests.support.processor import Processor
from tests.support.small_disk import fill, small_disk

DISK_BYTES = 12 << 20
BALLAST_BYTES = 4 << 20
ROUNDS = sized(20, 1)
SEED = 7
FULL_S = 0.6
TOGETHER = 50


@pytest.mark.slow
async def test_kills_on_a_full_disk_lose_nothing_and_it_starts_full(tmp_path: Path) -> None:
    rng = Random(SEED)
    async with small_disk(tmp_path / "small", DISK_BYTES) as disk:
        timerd = Process(disk.path / "data", inside=disk.inside)
        load = Load(timerd, rng)
        load.book.cramped = True
        ballast = disk.outside / "ballast"
        async with Processor(load.answer) as processor, timerd:
            await load.put_types(processor.url)
            fill(ballast, BALLAST_BYTES)
            for round in range(ROUNDS):
                calling = asyncio.create_task(load.until_killed())
                refused = load.refused
                async with asyncio.timeout(120):
                    while load.refused < refused + TOGETHER:
                        await asyncio.sleep(0.02)
                        assert not calling.done(), calling.result()
                fill(disk.outside / f"filler-{round}")  # to the last byte
                await asyncio.sleep(rng.random() * FULL_S)
                timerd.kill()
                await calling
                await timerd.start()
                listed = {timer["id"]: timer for timer in await timerd.list()}
                load.book.settle(listed)
                assert not load.book.wrong

                status, answer = await timerd.request("POST", "/v1/timers", {"timers": huge()})
                assert status == 507, answer
                assert answer["type"].endswith("/storage-full")
                # What is due is delivered and its completion recorded, on the full disk too.
                status, answer = await timerd.request("GET", "/v1/stats")
                fired = sum(t["fired"] for t in answer["types"].values())
                assert sum(t["live"] for t in answer["types"].values())

                async def more_fired() -> bool:
                    _, answer = await timerd.request("GET", "/v1/stats")
                    return bool(sum(t["fired"] for t in answer["types"].values()) > fired + TOGETHER)  # noqa: B023

                await timerd.until(more_fired)
                print(f"round {round + 1}: {load.refused} refused, {len(listed)} timers there, {load.book.counts}")

            ballast.unlink()
            for round in range(ROUNDS):
                (disk.outside / f"filler-{round}").unlink()
            before = load.book.counts["arms"]
            calling = asyncio.create_task(load.until_killed())
            async with asyncio.timeout(30):
                while load.book.counts["arms"] == before:
                    await asyncio.sleep(0.02)
                    assert not calling.done(), calling.result()
            timerd.kill()
            await calling
            await timerd.start()
            load.book.settle({timer["id"]: timer for timer in await timerd.list()})
            assert not load.book.wrong
            assert not timerd.complaints()


def huge() -> list[dict[str, object]]:
    """More than a full disk of this size holds in any corner."""
    return [{"id": f"huge-{n}", "type": "bulk", "delay": "1h", "payload": "x" * 60_000} for n in range(100)]
