"""Every reader of bytes from outside, with the same random changes each time. The command `fuzz` draws new ones."""

import pytest

from tests.hostile import fuzz
from tests.hostile.targets import TARGETS

EXECUTIONS = {"connection": 1_500, "call": 3_000}


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_comes(name: str) -> None:
    run = fuzz.run(name, seed=1, executions=EXECUTIONS.get(name, 10_000))
    assert not run.failures, run.failures[0].why + run.failures[0].replay
