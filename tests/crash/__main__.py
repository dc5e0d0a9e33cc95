"""`python -m tests.crash kill | race | million`: the real process under faults, in the long form. Exit 1 when wrong."""

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.crash.kill import kill_rounds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    kill = commands.add_parser("kill", help="kill -9 under load, at random moments, starts among them")
    kill.add_argument("--rounds", type=int, default=200)
    kill.add_argument("--power", action="store_true", help="every other kill takes the power with it (wants gcc)")
    for command in (kill,):
        command.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
        command.add_argument("--directory", type=Path, help="where the data goes; default: a temporary one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.directory) as directory:
        print(f"seed {asked.seed}", flush=True)
        return asyncio.run(_run(asked, Path(directory)))


async def _run(asked: argparse.Namespace, directory: Path) -> int:
    def say(line: str) -> None:
        print(line, flush=True)

    report = await kill_rounds(directory, asked.rounds, asked.seed, power=asked.power, say=say)
    say(report.summary())
    for line in report.wrong:
        say(f"WRONG {line}")
    return int(bool(report.wrong))


if __name__ == "__main__":
    sys.exit(main())
