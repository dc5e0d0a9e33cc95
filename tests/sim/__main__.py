"""`python -m tests.sim [cluster] --seed N | --seeds A-B [--jobs J]`: a line a seed; exit 1 when one fails."""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.sim import world
from tests.sim.cluster import shown as cluster
from tests.sim.swarm import FAULTS
from tests.sim.world import Report

SHOWN = {
    "power cuts": "cut", "kills": "kill", "stops": "stop", "log failures": "fail", "recoveries": "rec",
    "frames that came back": "back", "superseded": "race", "slices": "slice",
}  # fmt: skip
OWN = ("power cuts", "kills", "log failures")  # kinds of fault that have their own number in a line


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["machine", "cluster"], default="machine", help="what is simulated")
    parser.add_argument("--seed", type=int, help="run one")
    parser.add_argument("--seeds", help="run from A to B, both included: A-B")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    parser.add_argument("--keep-going", action="store_true", help="don't end at the first seed that fails")
    parser.add_argument("--quiet", action="store_true", help="print failures and the sum only")
    asked = parser.parse_args()
    if asked.seeds:
        first, _, last = asked.seeds.partition("-")
        seeds = list(range(int(first), int(last or first) + 1))
    else:
        seeds = [asked.seed or 0]
    began = time.perf_counter()
    reports: list[Any] = []
    run = cluster.run if asked.what == "cluster" else world.run
    for report in _reports(run, seeds, asked.jobs, asked.trace):
        reports.append(report)
        if report.failure or not asked.quiet:
            print((cluster.line if asked.what == "cluster" else line)(report), flush=True)
        if report.failure and not asked.keep_going:
            break
    if len(reports) > 1:
        print((cluster.total if asked.what == "cluster" else total)(reports, time.perf_counter() - began))
    return int(any(report.failure for report in reports))


def _reports(run: Callable[..., Any], seeds: Sequence[int], jobs: int, trace: bool) -> Iterator[Any]:
    if trace:
        yield from (run(seed, _show) for seed in seeds)
    elif jobs == 1:
        yield from map(run, seeds)
    else:
        with multiprocessing.Pool(jobs, maxtasksperchild=100) as pool:
            yield from pool.imap(run, seeds)


def _show(text: str) -> None:
    sys.stdout.write(text)


def line(report: Report) -> str:
    """A seed in a line: what it was and had in it, then its kinds of fault."""
    counts = report.counts
    numbers = " ".join(f"{short} {counts[name]}" for name, short in SHOWN.items() if counts[name])
    others = ", ".join(f"{kind} {counts[kind]}" for kind in report.kinds if kind not in OWN)
    text = (
        f"{report.seed:>6} {report.trace} {'ok' if report.counted else 'thin':4} {report.seconds:4.0f} s"
        f" {'net' if counts['connections'] else 'direct':6} arms {counts['arms']:>4} fires {counts['fired']:>4}"
        f" calls {counts['requests']:>4} | {numbers} | {len(report.kinds)} kinds: {others}"
    )
    if report.failure:
        text += f"\nFAILED {report.failure}\nreplay: python -m tests.sim --seed {report.seed} --trace"
    return text


def total(reports: list[Report], seconds: float) -> str:
    """All seeds in some lines; the last one is the sum."""
    sums: Counter[str] = Counter()
    for report in reports:
        sums.update(report.counts)
    failed = [report.seed for report in reports if report.failure]
    counted = [report for report in reports if report.counted and not report.failure]
    thin = [report.seed for report in reports if not report.counted and not report.failure]
    kinds = [kind for kind in FAULTS if sums[kind]]
    raced = sum(report.counts["superseded"] > 0 for report in reports)
    networked = sum(report.counts["connections"] > 0 for report in reports)
    return (
        f"all counts: {', '.join(f'{name} {count}' for name, count in sorted(sums.items()))}\n"
        f"worst over max_lag {max(r.worst_late_ms for r in reports)} ms,"
        f" worst disk {max(r.worst_disk for r in reports):.2f} of what is allowed,"
        f" answers for old generations in {raced} seeds, a network in {networked}\n"
        f"{len(kinds)} of {len(FAULTS)} kinds of fault: {', '.join(kinds)}\n"
        f"{len(reports)} seeds: {len(counted)} counted, {len(thin)} thin {thin[:20]}, {len(failed)} failed"
        f" {failed[:20]}; {len(kinds)} kinds of fault; {seconds:.1f} s, {len(reports) / seconds:.1f} seeds a second"
    )


if __name__ == "__main__":
    sys.exit(main())
