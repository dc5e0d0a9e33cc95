"""The measurement: what a well-behaved client feels of each attack. It runs the real processes, timerd on one core and
everybody else on another, and compares the 99th percentiles just before and during, medians of several rounds.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.hostile.attacks import NAMES
from tests.support.process import Process

RATE = 200.0
SETTLE_S = 1.0  # connections of the round before are gone, those of this one are there


class Row(NamedTuple):
    """One attack: the polite client's 99th percentiles in ms, its failures, and what the server did."""

    attack: str
    before_ms: float
    during_ms: float
    failed: int
    did: str

    @property
    def ratio(self) -> float:
        return self.during_ms / self.before_ms


def pinned(core: int) -> tuple[str, ...]:
    cores = sorted(os.sched_getaffinity(0))
    return ("taskset", "-c", str(cores[core % len(cores)]))


def prompt() -> tuple[str, ...]:
    """Before all others on its core, where that is allowed: the attackers beside it are no part of what is measured."""
    first = ("chrt", "-f", "1")
    try:
        return first if subprocess.run([*first, "true"], capture_output=True).returncode == 0 else ()
    except OSError:
        return ()


def window(samples: list[tuple[float, float]], since: float, until: float) -> tuple[float, int]:
    """The 99th percentile in ms, and how many had no answer."""
    inside = [took for at, took in samples if since <= at < until]
    good = sorted(took for took in inside if took >= 0)
    return good[int(len(good) * 0.99)] * 1000 if good else float("inf"), len(inside) - len(good)


async def measure(names: list[str], rounds: int, seconds: float) -> list[Row]:
    """A row for each attack, printed as it comes."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="timerd-abuse-") as folder:
        samples_file = Path(folder) / "polite"
        async with Process(Path(folder) / "data", inside=pinned(0)) as timerd:
            await timerd.put_type("t", url="http://127.0.0.1:9/")
            with samples_file.open("w") as out:
                polite = subprocess.Popen(
                    [*pinned(1), *prompt(), sys.executable, "-m", "tests.hostile.polite", timerd.url, str(RATE)],
                    stdout=out,
                )
            try:
                for name in names:
                    rows.append(await _row(name, timerd, samples_file, rounds, seconds))
                    print(shown(rows[-1]), flush=True)
            finally:
                polite.terminate()
                polite.wait()
            assert await timerd.stop() == 0
            failed = [line for line in timerd.log if "request_failed" in line]
            assert not failed, failed[0]
    return rows


async def _row(name: str, timerd: Process, samples_file: Path, rounds: int, seconds: float) -> Row:
    spans = []
    seen: dict[str, int] = {}
    descriptors = rss = 0
    for _ in range(rounds):
        await asyncio.sleep(SETTLE_S)
        start = time.monotonic()
        await asyncio.sleep(seconds)
        attacked = time.monotonic()
        attack = await asyncio.create_subprocess_exec(
            *pinned(1), "nice", "-n", "10", sys.executable, "-m", "tests.hostile.attacks", name, timerd.url,
            str(seconds + SETTLE_S), stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert attack.stdout is not None
        assert await attack.stdout.readline() == b"ready\n"
        begun = time.monotonic()
        await asyncio.sleep(seconds + SETTLE_S - 0.2)
        descriptors = max(descriptors, len(os.listdir(f"/proc/{timerd.pid}/fd")))
        rss = max(rss, timerd.rss_bytes())
        spans.append((start, attacked, begun + SETTLE_S, time.monotonic()))
        output, _ = await attack.communicate()
        for what, count in json.loads(output).items():
            seen[what] = seen.get(what, 0) + count
    await asyncio.sleep(0.2)
    lines = [line.split() for line in samples_file.read_text().splitlines()[:-1]]
    samples = [(float(at), float(took)) for at, took in lines]
    before = [window(samples, since, until)[0] for since, until, _, _ in spans]
    during = [window(samples, since, until) for _, _, since, until in spans]
    did = ", ".join(f"{what} x{count:,}" for what, count in sorted(seen.items()))
    return Row(
        name, statistics.median(before), statistics.median(p99 for p99, _ in during), sum(n for _, n in during),
        f"{did} ({descriptors:,} descriptors, {rss >> 20} MiB)",
    )  # fmt: skip


HEADLINE = f"{'attack':16}{'before ms':>10}{'during ms':>10}{'ratio':>7}{'failed':>7}  what the server did"


def shown(row: Row) -> str:
    return f"{row.attack:16}{row.before_ms:>10.2f}{row.during_ms:>10.2f}{row.ratio:>7.2f}{row.failed:>7}  {row.did}"


def main(names: list[str], rounds: int, seconds: float) -> int:
    print(f"the polite client arms {RATE:.0f} timers a second; its 99th percentile, medians of {rounds} rounds")
    print(HEADLINE, flush=True)
    rows = asyncio.run(measure(names or list(NAMES), rounds, seconds))
    worst = [row for row in rows if row.ratio > 2 or row.failed]
    print("all within twice" if not worst else f"beyond twice: {', '.join(row.attack for row in worst)}")
    return bool(worst)
