"""Start, kill, start at once. `python -m tests.crash race --rounds 50` is the long form."""

from pathlib import Path

import pytest

from tests.crash.race import race_rounds
from tests.support.cases import sized


@pytest.mark.slow
async def test_a_start_right_behind_a_kill_has_the_directory(tmp_path: Path) -> None:
    report = await race_rounds(tmp_path, sized(50, 3), seed=3)
    assert report.refused
