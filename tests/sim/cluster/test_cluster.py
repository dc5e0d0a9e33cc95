"""The cluster's simulator in short: some seeds, and that a seed is a run.

More: `python -m tests.sim cluster --seeds 1-1000 --jobs 2 --quiet`.
"""

import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from tests.sim.cluster.world import Report, run

ROOT = Path(__file__).parents[3]
SEEDS = (1, 2, 3, 4, 5, 6)


def once_failed() -> list[int]:
    """The seeds of seeds.txt."""
    text = Path(__file__).with_name("seeds.txt").read_text()
    return [int(found[1]) for found in re.finditer(r"^(\d+) ", text, re.MULTILINE)]


@lru_cache
def once(seed: int) -> Report:
    return run(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_breaks_no_promise(seed: int) -> None:
    assert once(seed).failure is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", once_failed())
def test_what_once_failed_does_not(seed: int) -> None:
    assert run(seed).failure is None


def test_a_seed_is_a_run() -> None:
    assert once(1) == run(1)


def test_a_seed_is_the_same_run_whatever_the_hash_seed() -> None:
    traces = set()
    for hash_seed in ("1", "4711"):
        code = "from tests.sim.cluster.world import run; print(run(1).trace)"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        traces.add(done.stdout.strip())
    assert traces == {once(1).trace}
