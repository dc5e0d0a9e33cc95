"""A02: what is accepted after a full disk vanishes at the next start.

Writes worked again once space had been freed, but they lay behind the fragment of a write that had failed, where no
later start ever read them (prometheus/prometheus #7835, #13027).
"""

import asyncio
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.cases import each, instant, outside, seeded, sized, stamp
from tests.support.process import Process
from tests.support.processor import Processor
from tests.support.small_disk import fill, small_disk

DISK_BYTES = 16 << 20
BALLAST_BYTES = 6 << 20
DUE_WHILE_FULL = 50
FULL_S = sized(20.0, 4.0)
AFTER = 500
PAYLOAD_BYTES_MAX = 3_000  # below and above what lies in the frame itself, across blocks
REFUSED_PAUSE_S = 0.02


BY_TIMERS, BY_OTHERS = "filled by timers", "filled to the last byte by others"


@pytest.mark.slow
async def test_a_full_disk_refuses_arms_and_loses_nothing(tmp_path: Path) -> None:
    rng = seeded()

    async def run(others: str) -> None:
        await refuses_and_loses_nothing(tmp_path / others.replace(" ", "-"), others, rng)

    await each(run, [BY_TIMERS, BY_OTHERS])


async def refuses_and_loses_nothing(directory: Path, others: str, rng: Random) -> None:
    acknowledged: dict[str, int] = {}
    attempted: dict[str, int] = {}

    def timers(prefix: str, count: int) -> list[dict[str, Any]]:
        return [
            {"id": f"{prefix}-{n}", "type": "far", "delay": "1h", "payload": "x" * rng.randrange(PAYLOAD_BYTES_MAX)}
            for n in range(count)
        ]

    def sizes(batch: list[dict[str, Any]]) -> dict[str, int]:
        return {timer["id"]: len(timer["payload"]) for timer in batch}

    async def everything_is_there(timerd: Process) -> None:
        listed = {timer["id"]: len(timer["payload"]) for timer in await timerd.list("&type=far")}
        assert not acknowledged.keys() - listed.keys(), "lost"
        for id, size in listed.items():
            assert size == attempted[id], f"{id} is broken"

    async with (
        small_disk(directory, DISK_BYTES) as disk,
        Processor() as processor,
        Process(disk.path / "data", inside=disk.inside) as timerd,
    ):
        ballast = disk.outside / "ballast"
        fill(ballast, BALLAST_BYTES)
        await timerd.put_type("far", url=processor.url)
        await timerd.put_type("due", url=processor.url, max_lag="1s")
        due_at = time.time() + 4
        due = {f"due-{n}": due_at + n * FULL_S / 2 / DUE_WHILE_FULL for n in range(DUE_WHILE_FULL)}
        answer = await timerd.arm([{"id": id, "type": "due", "fire_at": stamp(at)} for id, at in due.items()])
        due = {result["id"]: instant(result["fire_at"]) for result in answer["results"]}

        for n in range(10_000):
            batch = timers(f"a{n}", 50)
            attempted |= sizes(batch)
            status, answer = await timerd.request("POST", "/v1/timers", {"timers": batch})
            if status != 200:
                assert status in (503, 507), answer
                break
            acknowledged |= sizes(batch)
        else:
            pytest.fail("the disk never got full")
        print(f"{len(acknowledged)} timers of {sum(acknowledged.values())} bytes until the disk was full")
        if others == BY_OTHERS:
            fill(disk.outside / "filler")

        full_until = time.time() + FULL_S
        slowest = 0.0
        refused = 0

        async def load(worker: int) -> None:
            nonlocal slowest, refused
            n = 0
            while time.time() < full_until:
                batch = timers(f"f{worker}-{n}", 20)
                attempted.update(sizes(batch))
                n += 1
                asked = time.monotonic()
                status, answer = await timerd.request("POST", "/v1/timers", {"timers": batch})
                slowest = max(slowest, time.monotonic() - asked)
                if status == 200:
                    acknowledged.update(sizes(batch))
                else:
                    assert status in (503, 507), answer
                    refused += 1
                    await asyncio.sleep(REFUSED_PAUSE_S)
                assert await timerd.get(f"a0-{n % 50}") is not None

        log_lines, cpu_s = len(timerd.log) + len(timerd.stderr), timerd.cpu_s()
        await asyncio.gather(*(load(worker) for worker in range(4)))
        cpu_s = timerd.cpu_s() - cpu_s
        log_lines = len(timerd.log) + len(timerd.stderr) - log_lines
        print(f"full for {FULL_S} s: {refused} refusals, slowest {slowest:.3f} s, {cpu_s:.2f} s CPU, {log_lines} lines")
        assert refused
        assert slowest < 2
        assert log_lines < 100
        assert cpu_s < FULL_S * 0.8, "it spins"
        await processor.until(lambda: processor.ids >= due.keys())
        assert not outside(processor, due, max_lag_s=1)
        assert max(processor.counts.values()) <= 3

        ballast.unlink()
        (disk.outside / "filler").unlink(missing_ok=True)

        async def all_armed() -> bool:
            batch = [timer for timer in after if timer["id"] not in acknowledged][:50]
            status, answer = await timerd.request("POST", "/v1/timers", {"timers": batch})
            if status == 200:
                acknowledged.update(sizes(batch))
            else:
                assert status in (503, 507), answer
            return all(timer["id"] in acknowledged for timer in after)

        after = timers("after", AFTER)
        attempted |= sizes(after)
        await timerd.until(all_armed)
        await timerd.kill_and_start()
        await everything_is_there(timerd)
        await timerd.kill_and_start()
        await everything_is_there(timerd)
        assert not timerd.complaints()
