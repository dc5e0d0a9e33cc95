"""The mutations in short: each can still be planted, and one of each kind is really run.

All: `python -m tests.mutations --jobs 2`.
"""

from pathlib import Path

import pytest

from tests.mutations.bench import ROOT, Bench
from tests.mutations.mutation import DoesNotApply, Mutation, Pytest, Simulator, mutated
from tests.mutations.planted import ALL

BY_NAME = {mutation.name: mutation for mutation in ALL}


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_it_can_be_planted(mutation: Mutation) -> None:
    changed = mutated(ROOT, mutation)
    assert all(text != path.read_text() for path, text in changed.items())
    if isinstance(mutation.check, Pytest):
        assert all((ROOT / path.partition("::")[0]).exists() for path in mutation.check.select)


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(ALL)


def test_the_last_table_has_them_all() -> None:
    lines = Path(__file__).with_name("README.md").read_text().splitlines()
    shown = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    assert shown[2:] == list(BY_NAME)


def test_a_text_that_is_not_there_or_twice_is_told() -> None:
    nowhere = Mutation("nowhere", "", "timerd/engine/now.py", "no such text", "", Simulator(1))
    twice = Mutation("twice", "", "timerd/engine/now.py", "int", "", Simulator(1))
    for mutation in (nowhere, twice):
        with pytest.raises(DoesNotApply, match=mutation.name):
            mutated(ROOT, mutation)


@pytest.mark.slow
def test_two_are_caught_and_what_breaks_nothing_is_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for name in ("effects-before-the-append", "body-hash-not-checked"):
        verdict = bench.try_out(BY_NAME[name])
        assert verdict.caught, verdict.by
    now = "timerd/engine/now.py"
    harmless = Mutation("harmless", "", now, "rounded down", "never rounded up", Simulator(1))
    verdict = bench.try_out(harmless)
    assert not verdict.caught
    assert verdict.by == "SURVIVED 1 seeds"
