"""Slots move between shards under every kind of luck, and no invariant of the protocol breaks (cluster/PROTOCOL.md).

`TIMERD_MOVES=20000 pytest tests/property/test_moves.py -k many` tries that many histories.
"""

import os
from collections import Counter

import pytest

from tests.engine.moves_rig import run


@pytest.mark.parametrize("first", range(0, 240, 20))
def test_short_histories(first: int) -> None:
    for seed in range(first, first + 20):
        run(seed, 220)


def test_long_histories() -> None:
    rigs = [run(seed, 1_200) for seed in range(1_000, 1_016)]
    counts = sum((rig.counts for rig in rigs), Counter())
    assert min(counts[what] for what in ("starts", "crashes", "lost", "bounced", "tables")) > 30, counts


@pytest.mark.skipif("TIMERD_MOVES" not in os.environ, reason="TIMERD_MOVES says how many")
def test_many() -> None:
    for seed in range(10_000, 10_000 + int(os.environ["TIMERD_MOVES"])):
        run(seed, 300)
