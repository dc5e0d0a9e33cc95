"""Start, kill, start at once: the killed holder of a data directory stands in nobody's way, and never are there two.

Each round kills a process at a random moment of its start or shortly after, and starts the next before the killed one
is known to be dead; every other round two at once, of which one must be refused.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from tests.support.process import Process

EXIT_LOCKED = 3
TARGET = "http://127.0.0.1:9/"
ENDS_S = 60


class RaceReport(msgspec.Struct):
    """What came of the rounds."""

    rounds: int = 0
    refused: int = 0
    killed_unready: int = 0
    seconds: float = 0
    armed: set[str] = set()


async def race_rounds(directory: Path, rounds: int, seed: int, say: Callable[[str], None] = print) -> RaceReport:
    """Run them. Raises AssertionError at the first that is wrong."""
    rng = Random(seed)
    report = RaceReport()
    began = time.monotonic()
    usual = 1.0
    for round in range(rounds):
        data = directory / f"data-{round // 10}"  # a new directory now and then: a first start is killed, too
        if round % 10 == 0:
            report.armed.clear()
        first = Process(data)
        ready = await first.spawn()
        await asyncio.sleep(rng.uniform(0, 1.5) * usual)
        was_ready = ready.done()
        if was_ready:
            await _arm(first, report, round, "first")
        first.kill()  # and nobody waits for its end
        begin = time.monotonic()
        others = [Process(data) for _ in range(1 + round % 2)]
        readies = await asyncio.gather(*(await asyncio.gather(*(each.spawn() for each in others))))
        usual = time.monotonic() - begin if len(others) == 1 else usual
        assert sorted(readies) == [False, True][-len(others) :], [each.stderr for each in others]
        for each, is_ready in zip(others, readies, strict=True):
            if is_ready:
                if not report.armed:
                    await each.put_type("t", url=TARGET)
                listed = {timer["id"] for timer in await each.list()}
                assert listed == report.armed, f"lost {report.armed - listed}, came back {listed - report.armed}"
                await _arm(each, report, round, "next")
                each.kill()
            else:
                assert await each.wait(ENDS_S) == EXIT_LOCKED
                assert str(data) in "".join(each.stderr)
                report.refused += 1
        for each in (first, *others):
            await each.wait(ENDS_S)
            await each.__aexit__()
        report.rounds += 1
        report.killed_unready += not was_ready
        say(f"round {report.rounds}: {'a ready' if was_ready else 'a starting'} process killed, {len(others)} started")
    report.seconds = time.monotonic() - began
    return report


async def _arm(timerd: Process, report: RaceReport, round: int, which: str) -> None:
    if not report.armed:
        await timerd.put_type("t", url=TARGET)
    id = f"{which}-{round}"
    await timerd.arm([{"id": id, "type": "t", "delay": "1h"}])
    report.armed.add(id)
