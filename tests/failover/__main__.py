"""`python -m tests.failover SCENARIO --rounds N [--parallel K]`: a cluster of real processes under faults.

Three timerd nodes and three NATS servers on loopback, a steady load through all nodes, and a book of everything that
was acknowledged and delivered. Prints a line a round and a summary; exit 1 when something was lost or a bound broken.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

import msgspec
import structlog

from tests.failover.rounds import Report, failover_rounds
from tests.failover.scenarios import SCENARIOS, USUAL, Options


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.failover", description=__doc__)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--parallel", type=int, default=1, help="so many clusters side by side share the rounds")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--shards", type=int, default=12)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--servers", type=int, choices=(1, 3), default=3)
    parser.add_argument("--pause", type=float, default=USUAL.pause_s, help="seconds that a node stands still")
    parser.add_argument("--outage", type=float, default=USUAL.outage_s, help="seconds without a server")
    parser.add_argument("--cut", type=float, nargs=2, default=USUAL.cut_s, help="seconds, from and to")
    parser.add_argument("--slower", type=float, default=1.0, help="bounds by this, on a machine that is busy")
    parser.add_argument("--option", action="append", default=[], help="for timerd, like --option=--cluster-lease=3")
    parser.add_argument("--directory", type=Path, help="where the data goes; default: a temporary one")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


async def one(asked: argparse.Namespace) -> Report:
    """One cluster."""
    with tempfile.TemporaryDirectory(dir=asked.directory, prefix="failover-") as home:
        options = [part for option in asked.option for part in option.split("=", 1)]
        return await failover_rounds(
            Path(home), asked.scenario, asked.rounds, asked.seed, *options, shards=asked.shards, nodes=asked.nodes,
            servers=asked.servers, times=Options(asked.pause, asked.outage, tuple(asked.cut)), slower=asked.slower,
            say=say,
        )  # fmt: skip


async def several(asked: argparse.Namespace) -> Report:
    """So many clusters, each in a process of its own."""
    report = Report(asked.scenario)
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory) / f"{n}.json" for n in range(asked.parallel)]
        await asyncio.gather(*(_child(asked, n, file) for n, file in enumerate(files)))
        for n, file in enumerate(files):
            if file.exists():
                report.add(msgspec.json.decode(file.read_bytes(), type=Report))
            else:
                report.wrong.append(f"cluster {n} ended without a report")
    return report


async def _child(asked: argparse.Namespace, n: int, file: Path) -> None:
    rounds = asked.rounds // asked.parallel + (n < asked.rounds % asked.parallel)
    if not rounds:
        file.write_bytes(msgspec.json.encode(Report(asked.scenario)))
        return
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.failover", *sys.argv[1:],
        "--parallel", "1", "--rounds", str(rounds), "--seed", str(asked.seed + n), "--report", str(file),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            say(f"[{n}] {line.decode().rstrip()}")
        await process.wait()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def run(asked: argparse.Namespace) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    report = await (several(asked) if asked.parallel > 1 else one(asked))
    if asked.report is not None:
        asked.report.write_bytes(msgspec.json.encode(report))
        return int(bool(report.wrong))
    say(report.summary())
    for line in report.wrong:
        say(f"WRONG {line}")
    if report.wrong:
        logs = Path(tempfile.gettempdir()) / f"failover-{asked.scenario}-{asked.seed}.log"
        logs.write_text("\n".join(report.logs))
        say(f"what the nodes said: {logs}")
        say("again: " + replay(asked))
    return int(bool(report.wrong))


def replay(asked: argparse.Namespace) -> str:
    """The same choices once more; what comes of them depends on the moment as well."""
    given = sys.argv[1:]
    if "--seed" not in given:
        given = [*given, "--seed", str(asked.seed)]
    return f"python -m tests.failover {' '.join(given)}"


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))  # of the harness's own
    arguments = parsed()
    if arguments.report is None:
        say(f"seed {arguments.seed}, process {os.getpid()}")
    try:
        sys.exit(asyncio.run(run(arguments)))
    except asyncio.CancelledError:
        sys.exit(130)
