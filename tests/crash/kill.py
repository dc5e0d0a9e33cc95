"""Kill rounds: kill -9 at a random moment under load, start, compare; round after round on one data directory.

Some kills come during the start that follows a kill, from its first moment to its ready line. With `power`, what no
sync had covered is taken back after a kill (tests/support/disk_shim.py), as if the machine had lost power: what
kill -9 alone can't show, since the system writes for the dead.
"""

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.crash.book import Book
from tests.crash.load import Load
from tests.support.disk_shim import ALWAYS, APPEND, DiskShim
from tests.support.process import Process
from tests.support.processor import Processor

SEGMENT_BYTES = 1 << 20  # small, so that segments are opened, sliced and deleted all the time
LOAD_S = (0.1, 1.4)
KILLED_STARTS = 0.3  # of the kills are followed by another during the start
SYNC_MS = (1, 5, 20)  # what a sync takes longer, where power may go: so that one is under way at most moments
DRAIN_S = 180
FAULTS = ("lost", "early", "cancelled yet delivered", "duplicates not flagged", "came back", "changed",
          "generations", "chains broken", "books don't balance")  # fmt: skip

Say = Callable[[str], None]


class Report(msgspec.Struct):
    """What came of the rounds."""

    rounds: int = 0
    killed_starts: int = 0
    taken_back: int = 0
    """Writes that a power cut took back."""
    recoveries: list[float] = []
    seconds: float = 0
    book: Book = msgspec.field(default_factory=Book)
    wrong: list[str] = []

    def summary(self) -> str:
        """Some lines to print."""
        counts = self.book.counts
        return "\n".join((
            f"{self.rounds} rounds in {self.seconds:.0f} s, and {self.killed_starts} kills during a start"
            + (f"; {self.taken_back} writes taken back by power cuts" if self.taken_back else ""),
            f"acknowledged arms {counts['arms']}, cancels {counts['cancels']}; "
            f"fires {counts['fires']}, re-arms in answers {counts['re-arms']}",
            ", ".join(f"{kind} {counts[kind]}" for kind in FAULTS),
            f"duplicates {counts['duplicates']}, of these flagged {counts['flagged']}",
            f"ready after p50 {quantile(self.recoveries, 0.5):.2f} s, p99 {quantile(self.recoveries, 0.99):.2f} s, "
            f"max {max(self.recoveries, default=0):.2f} s",
        ))  # fmt: skip


def quantile(values: list[float], part: float) -> float:
    """The smallest value that so much of all is not above."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)] if values else 0.0


async def kill_rounds(
    directory: Path, rounds: int, seed: int, *options: str, power: bool = False, say: Say = print
) -> Report:
    """Run them, to the first that is wrong. `options` are timerd's own."""
    rng = Random(seed)
    shim = DiskShim(directory, undo=True) if power else None
    timerd = Process(
        directory / "data", "--segment-bytes", str(SEGMENT_BYTES), *options, env=shim.env if shim else None
    )
    load = Load(timerd, rng)
    report = Report(book=load.book)
    began = time.monotonic()
    async with Processor(load.answer) as processor, timerd:
        await load.put_types(processor.url)
        while report.rounds < rounds and not load.book.wrong:
            say(await _round(load, processor, rng, report, shim))
        if not load.book.wrong:
            await _end(load)
        report.wrong = [*load.book.wrong, *timerd.complaints()]
    report.seconds = time.monotonic() - began
    return report


async def _round(load: Load, processor: Processor, rng: Random, report: Report, shim: DiskShim | None) -> str:
    timerd, book = load.timerd, load.book
    before = book.acknowledged
    if shim:
        shim.order("sync", ".log", "slow", times=ALWAYS, ms=rng.choice(SYNC_MS), last_write_max=APPEND)
    calling = asyncio.create_task(load.until_killed())
    await asyncio.sleep(rng.uniform(*LOAD_S))
    timerd.kill()
    open_batches = processor.open
    await calling
    await timerd.wait()
    report.taken_back += _maybe_cut(timerd, rng, shim)
    kills = 1
    while rng.random() < KILLED_STARTS:
        usual = quantile(report.recoveries, 0.5) or 1.0
        await timerd.spawn()
        await asyncio.sleep(rng.uniform(0.3, 1.1) * usual)
        timerd.kill()
        await timerd.wait()
        report.taken_back += _maybe_cut(timerd, rng, shim)
        report.killed_starts += 1
        kills += 1
    begin = time.monotonic()
    await timerd.start()
    report.recoveries.append(time.monotonic() - begin)
    listed = {timer["id"]: timer for timer in await timerd.list()}
    book.settle(listed)
    await _balance(load)
    processor.deliveries.clear()
    report.rounds += 1
    return (
        f"round {report.rounds}: {book.acknowledged - before} acknowledged, {open_batches} batches open, {kills} "
        f"kill{'s' * (kills > 1)}, ready in {report.recoveries[-1]:.2f} s, {len(listed)} there, {len(book.wrong)} wrong"
    )


def _maybe_cut(timerd: Process, rng: Random, shim: DiskShim | None) -> int:
    """Every other kill is one of the whole machine."""
    return shim.cut_power(timerd.data, rng) if shim and rng.random() < 0.5 else 0


async def _balance(load: Load) -> None:
    """armed + revived = fired + cancelled + replaced + dead + dropped + live, of each type, over all lives."""
    status, answer = await load.timerd.request("GET", "/v1/stats")
    assert status == 200, answer
    for name, t in answer["types"].items():
        ended = t["fired"] + t["cancelled"] + t["replaced"] + t["dead"] + sum(_dropped(t["dropped"])) + t["live"]
        if t["armed"] + t["revived"] != ended:
            load.book.fault("books don't balance", f"{name}: {t}")


def _dropped(dropped: Any) -> list[int]:
    return list(dropped.values()) if isinstance(dropped, dict) else [int(dropped)]


async def _end(load: Load) -> None:
    """Everything is made due, and everything arrives."""
    await load.close()

    async def nothing_is_left() -> bool:
        return all([(await load.timerd.stats(name))["live"] == 0 for name in await _type_names(load)])

    await load.timerd.until(nothing_is_left, DRAIN_S)
    for id in load.book.unfired():
        load.book.fault("lost", f"{id}: never received")
    await _balance(load)


async def _type_names(load: Load) -> list[str]:
    _, answer = await load.timerd.request("GET", "/v1/types")
    return [type["name"] for type in answer["types"]]
