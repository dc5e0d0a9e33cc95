"""`python -m tests.crash kill | race | million`: the real process under faults, in the long form. Exit 1 when wrong."""

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.crash.kill import kill_rounds
from tests.crash.million import million
from tests.crash.race import race_rounds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    kill = commands.add_parser("kill", help="kill -9 under load, at random moments, starts among them")
    kill.add_argument("--rounds", type=int, default=200)
    kill.add_argument("--power", action="store_true", help="every other kill takes the power with it (wants gcc)")
    race = commands.add_parser("race", help="start, kill, and start at once")
    race.add_argument("--rounds", type=int, default=50)
    many = commands.add_parser("million", help="very many due at once for a slow target")
    many.add_argument("--timers", type=int, default=1_000_000)
    many.add_argument("--slow", type=float, default=1.0, help="seconds that the target takes for a batch of 1,000")
    for command in (kill, race, many):
        command.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
        command.add_argument("--directory", type=Path, help="where the data goes; default: a temporary one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.directory) as directory:
        return asyncio.run(_run(asked, Path(directory)))


async def _run(asked: argparse.Namespace, directory: Path) -> int:
    if asked.command == "million":
        many = await million(directory, asked.timers, asked.slow, say)
        say(many.summary())
        return int(bool(many.early or many.twice))
    say(f"seed {asked.seed}")
    if asked.command == "race":
        race = await race_rounds(directory, asked.rounds, asked.seed, say)
        say(
            f"{race.rounds} rounds in {race.seconds:.0f} s, {race.killed_unready} killed during their start, "
            f"{race.refused} of two refused; lost 0, two at once 0"
        )
        return 0
    report = await kill_rounds(directory, asked.rounds, asked.seed, power=asked.power, say=say)
    say(report.summary())
    for line in report.wrong:
        say(f"WRONG {line}")
    return int(bool(report.wrong))


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
