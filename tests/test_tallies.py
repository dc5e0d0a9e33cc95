"""Sums over shards, by type."""

from timerd.engine.message import ShardTally, TypeTally
from timerd.tallies import Delivered, sum_up


def tally(n: int, **more) -> TypeTally:
    return TypeTally(n, n, n, n, n, n, n, n, n, more.get("dropped", {}), n, n, n, n, n)


def test_counts_of_all_shards_are_added_and_every_known_type_shows():
    shards = [
        ShardTally(0, 1, {"a": tally(1, dropped={"x": 1}), "gone": tally(5)}, None),
        ShardTally(1, 1, {"a": tally(2, dropped={"x": 1, "y": 4})}, None),
    ]
    reports = sum_up(["a", "idle"], shards, {"a": Delivered(7, 70, 1, 3, "open")})
    assert list(reports) == ["a", "gone", "idle"]
    assert reports["a"].armed == reports["a"].dead_letters == 3
    assert reports["a"].dropped == {"x": 2, "y": 4}
    assert (reports["a"].batches, reports["a"].coalesced, reports["a"].breaker) == (7, 3, "open")
    assert reports["gone"].live == 5
    assert reports["idle"].armed == 0
