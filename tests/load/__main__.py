"""`python -m tests.load metastability | soak`: load on the real process, for minutes; exit 1 when a promise is broken.

The server runs on core 0, callers, target and judge on core 1.
"""

import argparse
import resource
import sys

import uvloop

from tests.load import metastability, soak
from tests.load.perturb import PERTURBATIONS
from tests.load.server import LOAD_CORE, pin


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", help="directory to make the data directories in; put it on the disk meant")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("metastability", help="something happens and ends; is all as before, without help?")
    one.add_argument("--only", action="append", choices=[each.name for each in PERTURBATIONS], default=[])
    one.add_argument("--seconds", type=float, default=30, help="how long a perturbation lasts (default 30)")
    one.add_argument("--load", type=float, help="timers a second; else it is found first, and 80 %% of it taken")
    other = commands.add_parser("soak", help="the same timers go round and round, with kills; does anything grow?")
    other.add_argument("--minutes", type=float, default=20)
    other.add_argument("--timers", type=int, default=500_000)
    other.add_argument("--interval", type=float, default=60, help="seconds from a fire to the next")
    other.add_argument("--kill-every", type=float, default=120, help="seconds, about; 0 = never")
    other.add_argument("--seed", type=int, default=argparse.SUPPRESS)
    given = parser.parse_args()
    pin(LOAD_CORE)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    if given.command == "metastability":
        work = metastability.run(given.only, given.seconds, given.load, given.seed, given.data)
    else:
        work = soak.run(given.minutes, given.timers, given.interval, given.kill_every, given.seed, given.data)
    return uvloop.run(work)


if __name__ == "__main__":
    sys.exit(main())
