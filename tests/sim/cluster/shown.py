"""A run of a cluster in a line, and many in some."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from tests.sim.cluster.swarm import FAULTS
from tests.sim.cluster.world import Report, run

__all__ = ["line", "run", "total"]

SHOWN: Final = {
    "takes": "take", "kills": "kill", "pauses": "pause", "stops": "stop", "cut off": "cut", "not sent": "unsent",
}  # fmt: skip


def line(report: Report) -> str:
    """A seed in a line."""
    counts = report.counts
    numbers = " ".join(f"{short} {counts[name]}" for name, short in SHOWN.items() if counts[name])
    others = ", ".join(f"{kind} {counts[kind]}" for kind in report.kinds if kind not in SHOWN)
    text = (
        f"{report.seed:>6} {report.trace} {'ok' if report.counted else 'thin':4} {report.seconds:4.0f} s"
        f" arms {counts['arms']:>4} fires {counts['fired']:>4} asked {counts['requests']:>5} | {numbers} | {others}"
    )
    if report.failure:
        text += f"\nFAILED {report.failure}\nreplay: python -m tests.sim cluster --seed {report.seed} --trace"
    return text


def total(reports: Sequence[Report], seconds: float) -> str:
    """All seeds in some lines; the last one is the sum."""
    sums: Counter[str] = Counter()
    for report in reports:
        sums.update(report.counts)
    failed = [report.seed for report in reports if report.failure]
    counted = [report for report in reports if report.counted and not report.failure]
    thin = [report.seed for report in reports if not report.counted and not report.failure]
    kinds = [kind for kind in FAULTS if sums[kind]]
    return (
        f"all counts: {', '.join(f'{name} {count}' for name, count in sorted(sums.items()))}\n"
        f"{len(kinds)} of {len(FAULTS)} kinds of fault: {', '.join(kinds)}\n"
        f"{len(reports)} seeds: {len(counted)} counted, {len(thin)} thin {thin[:20]}, {len(failed)} failed"
        f" {failed[:20]}; {seconds:.1f} s, {len(reports) / seconds:.1f} seeds a second"
    )
