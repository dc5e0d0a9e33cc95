"""Hostile input, as long as one likes: `python -m tests.hostile schema|fuzz|abuse`. README.md has what they print."""

import argparse
import asyncio
import base64
import logging
import random
import sys
import time

import structlog


def schema(options: argparse.Namespace) -> int:
    """Every operation of the contract, with data that fits and data that does not."""
    from tests.hostile import schema as contract

    started = time.monotonic()
    result = asyncio.run(contract.run(options.seed, options.examples, "examples,coverage,fuzzing"))
    if result.failures:
        print(result.output)
    print(f"seed {options.seed}: {result.operations} operations ({len(result.accepted)} of them answered 2xx), "
          f"{result.cases} cases, {len(result.failures)} failures, {time.monotonic() - started:.0f} s")  # fmt: skip
    print("statuses: " + ", ".join(f"{status}: {count}" for status, count in sorted(result.statuses.items())))
    for failure in result.failures[:50]:
        print(failure)
    return bool(result.failures)


def fuzz(options: argparse.Namespace) -> int:
    """Every reader of bytes from outside, with random changes; with atheris half of the time is led by coverage."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
    )  # the table is what counts
    from tests.hostile import fuzz as plain
    from tests.hostile import guided

    names = [options.target] if options.target else list(plain.TARGETS)
    if options.replay is not None:
        _, failure = plain.once(options.target, base64.b64decode(options.replay))
        print("it passes" if failure is None else failure.why)
        return failure is not None
    seed = random.randrange(1 << 31) if options.seed is None else options.seed
    by_coverage = guided.available()
    share = options.seconds / len(names) / (2 if by_coverage else 1)
    failures = []
    print(f"seed {seed}\n{'target':14}{'at random':>12}{'behaviours':>12}{'by coverage':>13}{'failures':>10}")
    for name in names:
        run = plain.run(name, seed, seconds=share)
        executions, crashes = guided.run(name, seed, share) if by_coverage else (0, [])
        found = [*run.failures, *(plain.Failure(name, data, why) for data, why in crashes)]
        print(f"{name:14}{run.executions:>12,}{run.behaviours:>12,}{executions:>13,}{len(found):>10}", flush=True)
        failures += found
    for failure in failures:
        print(f"\n{failure.why}\n{failure.replay}")
    return bool(failures)


def abuse(options: argparse.Namespace) -> int:
    """What a well-behaved client feels of each attack."""
    from tests.hostile import abuse as measurement

    return measurement.main(options.attack, options.rounds, options.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("schema", help=schema.__doc__)
    command.add_argument("--seed", type=int, default=1)
    command.add_argument("--examples", type=int, default=150, help="an operation and phase; 150 take some minutes")
    command.set_defaults(run=schema)
    command = commands.add_parser("fuzz", help=fuzz.__doc__)
    command.add_argument("--seconds", type=float, default=60, help="for all targets together")
    command.add_argument("--seed", type=int)
    command.add_argument("--target")
    command.add_argument("--replay", help="what a failure printed")
    command.set_defaults(run=fuzz)
    command = commands.add_parser("abuse", help=abuse.__doc__)
    command.add_argument("attack", nargs="*", help="all of them unless named")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--seconds", type=float, default=4)
    command.set_defaults(run=abuse)
    options = parser.parse_args()
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
