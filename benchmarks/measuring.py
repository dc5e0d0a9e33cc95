"""Measuring: the command line of all benchmarks, which prints a table, and writes JSON if asked.

The server runs on core 0, this process (load generator and processor) on core 1.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import uvloop

from benchmarks import (
    arm,
    arm_one,
    bodies,
    bodies_60_days,
    callback,
    cluster,
    fairness,
    fire,
    frames,
    idle,
    memory,
    rearm,
    restart,
    shards,
    stream,
)
from benchmarks.figure import Figure, Round, gather, load, show
from benchmarks.server import LOAD_CORE, SERVER_CORE, Place

DESCRIPTION = "Measure NAME, or all of them; `python -m benchmarks model --help` is of the capacity model."
Rounds = Callable[[Place], Awaitable[Round]]
NAMES = (
    "arm",
    "arm-one",
    "fire",
    "fairness",
    "callback",
    "rearm",
    "memory",
    "bodies",
    "bodies-60-days",
    "restart",
    "idle",
    "stream",
    "shards",
    "frames",
    "cluster",
)
ROUNDS: dict[str, Rounds] = {
    "arm": arm.run,
    "arm-one": arm_one.run,
    "fire": fire.run,
    "fairness": fairness.run,
    "callback": callback.run,
    "memory": memory.run,
    "bodies": bodies.run,
    "bodies-60-days": bodies_60_days.run,
    "frames": frames.run,
    "shards": shards.run,
}


async def measure(name: str, rounds: int, place: Place) -> list[Figure]:
    if name == "rearm":
        return await rearm.run(place)
    if name == "restart":
        return await restart.run(place, rounds)
    if name == "stream":
        return await stream.run(place, rounds)
    if name == "cluster":
        return await cluster.run(place, rounds)
    if name == "idle":
        return await idle.run(place)
    return gather([await ROUNDS[name](place) for _ in range(rounds)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=DESCRIPTION)
    parser.add_argument("name", choices=[*NAMES, "all"])
    parser.add_argument("--rounds", type=int, default=3, help="medians are of this many")
    parser.add_argument("--data", help="directory to make the server's data directories in; put it on the disk meant")
    parser.add_argument("--quiet", type=float, default=0, help="seconds to wait for a quiet core before each figure")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    given = parser.parse_args()
    if (os.cpu_count() or 1) <= max(SERVER_CORE, LOAD_CORE):
        sys.exit("two cores are needed: one for the server, one for the load")
    os.sched_setaffinity(0, {LOAD_CORE})
    figures: list[Figure] = []
    before = load()
    for name in NAMES if given.name == "all" else (given.name,):
        print(f"{time.strftime('%H:%M:%S')} {name} (load {load()})", file=sys.stderr, flush=True)
        figures += uvloop.run(measure(name, given.rounds, Place(given.data, given.quiet)))
    print(show(figures))
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores, load {before} before and {load()} after")
    if given.json:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=1))
