"""The simulator in short: some seeds, and that a seed is a run.

More: `python -m tests.sim --seeds 1-2000 --jobs 2 --quiet`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.world import run

ROOT = Path(__file__).parents[2]
SEEDS = (1, 3, 4, 5, 6, 7, 8, 9)


def once_failed() -> list[int]:
    """The seeds of seeds.txt."""
    text = Path(__file__).with_name("seeds.txt").read_text()
    return [int(found[1]) for found in re.finditer(r"^(\d+) ", text, re.MULTILINE)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_breaks_no_promise(seed: int) -> None:
    report = run(seed)
    assert report.failure is None
    assert report.counted, "the run has too little in it"


@pytest.mark.slow
@pytest.mark.parametrize("seed", once_failed())
def test_what_once_failed_does_not(seed: int) -> None:
    assert run(seed).failure is None


def test_a_seed_is_a_run() -> None:
    assert run(4).trace == run(4).trace


def test_a_seed_is_the_same_run_whatever_the_hash_seed() -> None:
    traces = set()
    for hash_seed in ("1", "4711"):
        code = "from tests.sim.world import run; print(run(4).trace)"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        traces.add(done.stdout.strip())
    assert traces == {run(4).trace}
