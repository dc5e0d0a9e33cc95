"""kill -9 of the real process under load, and power cuts: 0 acknowledged timers lost.

`python -m tests.crash kill --rounds 200 --seed N [--power]` is the long form.
"""

from pathlib import Path

import pytest

from tests.crash.kill import kill_rounds
from tests.support.cases import sized

ROUNDS = sized(50, 4)
SEED = 11


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["kill -9", "power cuts"])
async def test_nothing_acknowledged_is_lost(tmp_path: Path, power: bool) -> None:
    report = await kill_rounds(tmp_path, ROUNDS, SEED + power, power=power)
    print(report.summary())
    assert not report.wrong
    assert report.book.counts["arms"] > ROUNDS * 100
    assert report.book.counts["re-arms"]
    assert report.book.counts["cancels"]
    assert report.book.counts["duplicates"] == report.book.counts["flagged"]
