"""The simulator in short: some seeds, and that a seed is a run.

More: `python -m tests.sim --seeds 1-2000 --jobs 2 --quiet`.
"""

import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from tests.sim.world import Report, run

ROOT = Path(__file__).parents[2]
SEEDS = (1, 2, 3, 4, 5, 6, 7, 8)
DIRECT, NETWORKED = 3, 2  # one of each kind


def once_failed() -> list[int]:
    """The seeds of seeds.txt."""
    text = Path(__file__).with_name("seeds.txt").read_text()
    return [int(found[1]) for found in re.finditer(r"^(\d+) ", text, re.MULTILINE)]


@lru_cache
def once(seed: int) -> Report:
    return run(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_breaks_no_promise(seed: int) -> None:
    report = once(seed)
    assert report.failure is None
    assert report.counted, "the run has too little in it"


@pytest.mark.slow
@pytest.mark.parametrize("seed", once_failed())
def test_what_once_failed_does_not(seed: int) -> None:
    assert run(seed).failure is None


@pytest.mark.parametrize("seed", [DIRECT, NETWORKED])
def test_a_seed_is_a_run(seed: int) -> None:
    first, second = once(seed), run(seed)
    assert first == second
    assert bool(first.counts["connections"]) == (seed == NETWORKED)


@pytest.mark.parametrize("seed", [DIRECT, NETWORKED])
def test_a_seed_is_the_same_run_whatever_the_hash_seed(seed: int) -> None:
    traces = set()
    for hash_seed in ("1", "4711"):
        code = f"from tests.sim.world import run; print(run({seed}).trace)"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        traces.add(done.stdout.strip())
    assert traces == {once(seed).trace}


def test_answers_for_old_generations_are_in_nearly_every_run() -> None:
    raced = [seed for seed in SEEDS if once(seed).counts["superseded"]]
    assert len(raced) >= len(SEEDS) - 1
