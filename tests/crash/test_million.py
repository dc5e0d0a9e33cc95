"""Very many due at once for a slow target, to the last. `python -m tests.crash million` is the long form."""

from pathlib import Path

import pytest

from tests.crash.million import million
from tests.support.cases import sized

TIMERS = sized(1_000_000, 20_000)
SLOW_S = sized(1.0, 0.3)
GROWTH_BYTES_MAX = 100_000_000
ANSWER_S_MAX = 20  # milliseconds on a machine that has nothing else to do; what matters is that it answers


@pytest.mark.slow
async def test_very_many_due_at_once_are_all_delivered_in_bounded_memory(tmp_path: Path) -> None:
    report = await million(tmp_path, TIMERS, SLOW_S)
    print(report.summary())
    assert not report.early
    assert not report.twice
    assert report.open_max <= 16
    assert report.growth_bytes < GROWTH_BYTES_MAX
    assert report.calm_lags
    assert max(report.answers) < ANSWER_S_MAX
