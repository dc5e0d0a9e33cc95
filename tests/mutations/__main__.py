"""`python -m tests.mutations`: plant bugs one at a time, see that the checks catch them, and print a table.

Exit code 1 when one survives, no longer applies, or comes to no verdict.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutations.bench import Bench, Verdict
from tests.mutations.mutation import Mutation, Pytest, Simulator
from tests.mutations.planted import ALL

SHOWN = 90  # characters of a message


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="this one; may be given several times")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument("--seeds", type=int, help="give the simulator at most so many")
    asked = parser.parse_args()
    chosen = [mutation for mutation in ALL if not asked.only or mutation.name in asked.only]
    if unknown := set(asked.only or ()) - {mutation.name for mutation in chosen}:
        parser.error(f"no such mutation: {', '.join(sorted(unknown))}")
    if asked.list:
        for mutation in chosen:
            print(f"{mutation.name}: {mutation.planted} [{_where(mutation)}]")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="timerd-mutations-") as scratch, ThreadPoolExecutor(asked.jobs) as pool:
        verdicts = []
        for verdict in pool.map(Bench(Path(scratch), seeds=asked.seeds).try_out, chosen):
            verdicts.append(verdict)
            print(f"{verdict.seconds:6.1f} s  {verdict.mutation.name}: {verdict.by[:200]}", file=sys.stderr, flush=True)
    print(table(verdicts))
    caught = sum(verdict.caught for verdict in verdicts)
    print(f"\n{caught} of {len(verdicts)} caught, in {time.monotonic() - began:.0f} s with {asked.jobs} at a time.")
    return int(caught < len(verdicts))


def table(verdicts: Sequence[Verdict]) -> str:
    """As Markdown; then why some are not left to the simulator."""
    lines = ["| name | planted | caught by | as | seeds | s |", "| --- | --- | --- | --- | ---: | ---: |"]
    for verdict in verdicts:
        seeds = str(verdict.seeds) if verdict.seeds else ""
        cells = [verdict.mutation.name, verdict.mutation.planted, verdict.kind, _short(verdict), seeds]
        lines.append(f"| {' | '.join(cells)} | {verdict.seconds:.1f} |")
    tests = [verdict.mutation for verdict in verdicts if isinstance(verdict.mutation.check, Pytest)]
    if tests:
        lines += ["", "Not by the simulator:", ""]
        lines += [f"- {m.name}: {m.check.because}" for m in tests if isinstance(m.check, Pytest)]
    return "\n".join(lines)


def _short(verdict: Verdict) -> str:
    text = verdict.by.removeprefix("Violation: ").replace("|", "/").replace("\n", " ")
    if verdict.caught and verdict.kind != "simulator":
        return text.partition("::")[2].partition("[")[0] or text
    return text if len(text) <= SHOWN else text[:SHOWN].rsplit(" ", 1)[0] + " ..."


def _where(mutation: Mutation) -> str:
    check = mutation.check
    return f"simulator, {check.what}, seeds 1-{check.seeds}" if isinstance(check, Simulator) else " ".join(check.select)


if __name__ == "__main__":
    sys.exit(main())
