"""The soak's judge finds what it is there for, and nothing where nothing is; so do the slopes."""

import random

import pytest

from tests.load.chains import STALE_MS, Chains
from tests.load.fit import slope

T0 = 1_796_025_600_000


@pytest.fixture
def chains() -> Chains:
    """One timer: armed as generation 1 for T0, delivered, and answered with a re-arm a second later."""
    made = Chains(1)
    made.call(0, T0)
    made.acknowledge(0, 1, T0, T0 - 1)
    assert made.deliver(0, 1, T0, False, T0)
    made.answer(0, T0 + 1_000)
    return made


def test_a_chain_that_goes_round_is_no_fault(chains: Chains) -> None:
    assert chains.deliver(0, 2, T0 + 1_000, False, T0 + 1_010)
    chains.answer(0, 0)
    chains.call(0, T0 + 2_000)
    chains.acknowledge(0, 3, T0 + 2_000, T0 + 1_020)
    chains.listed({0: (3, T0 + 2_000)})
    assert not chains.faults


def test_after_a_kill_the_same_version_may_come_again_if_it_says_so(chains: Chains) -> None:
    assert chains.deliver(0, 1, T0, True, T0 + 500)
    assert chains.repeated == 1
    assert not chains.faults
    chains.deliver(0, 1, T0, False, T0 + 600)
    assert set(chains.faults) == {"again, and not said to be a possible duplicate"}


def test_a_call_without_an_answer_may_have_been_heard_or_not(chains: Chains) -> None:
    chains.call(0, T0 + 7_000)
    chains.listed({0: (2, T0 + 1_000)})
    chains.listed({0: (2, T0 + 7_000)})
    assert not chains.faults


@pytest.mark.parametrize(
    ("listed", "fault"),
    [
        ({}, "lost"),
        ({0: (1, T0)}, "lost: its answer had no effect"),
        ({0: (2, T0 + 5)}, "a fire time nobody asked for"),
        ({0: (0, T0)}, "lost: an older version stands"),
        ({0: (2, T0 + 1_000), 7: (1, T0)}, "listed, and nobody armed it"),
    ],
)
def test_what_a_list_gives_away(chains: Chains, listed: dict[int, tuple[int, int]], fault: str) -> None:
    chains.listed(listed)
    assert set(chains.faults) == {fault}


def test_early_late_and_stale(chains: Chains) -> None:
    assert chains.overdue(T0 + 20_000, 15_000) == [0]
    assert not chains.overdue(T0 + 10_000, 15_000)
    chains.deliver(0, 2, T0 + 1_000, False, T0 + 999)
    chains.call(0, T0 + 9_000)
    chains.acknowledge(0, 3, T0 + 9_000, T0 + 1_500)
    assert not chains.deliver(0, 2, T0 + 1_000, True, T0 + 1_500 + STALE_MS), "it was under way"
    chains.deliver(0, 2, T0 + 1_000, True, T0 + 1_501 + STALE_MS)
    assert set(chains.faults) == {"early", "an old version after a newer was acknowledged"}


def test_a_leak_is_told_from_noise() -> None:
    rng = random.Random(1)
    at = [2.0 * n for n in range(200)]
    flat = [250e6 + rng.gauss(0, 3e6) for _ in at]
    leaking = [value + 60e6 * second / 400 for value, second in zip(flat, at, strict=True)]
    found = slope(at, flat)
    assert found is not None
    assert not found.grows
    found = slope(at, leaking)
    assert found is not None
    assert found.grows
    assert found.per_hour == pytest.approx(540e6, rel=0.1)
    assert slope(at[:20], flat[:20]) is None, "too short to say"
