"""Sums over shards, by type."""

import msgspec
import pytest

from timerd.engine.message import ShardTally, TypeTally
from timerd.report import HostsReport, TargetReport, TypeReport
from timerd.tallies import Delivered, sum_up

DOWN = TargetReport("open", 1, 16, None, 5_000, "connect: refused", 1_000)
HOSTS = HostsReport(3, 1, 0, 0, [DOWN])


def tally(n: int, **more) -> TypeTally:
    return TypeTally(n, n, n, n, n, n, n, n, n, more.get("dropped", {}), n, n, n, n, n, n)


def test_counts_of_all_shards_are_added_and_every_known_type_shows():
    shards = [
        ShardTally(0, 1, {"a": tally(1, dropped={"x": 1}), "gone": tally(5)}, None),
        ShardTally(1, 1, {"a": tally(2, dropped={"x": 1, "y": 4})}, None),
    ]
    reports = sum_up(["a", "idle"], shards, {"a": Delivered(7, 70, 1, 3, "open")})
    assert list(reports) == ["a", "gone", "idle"]
    assert reports["a"].armed == reports["a"].dead_letters == reports["a"].missed == 3
    assert reports["a"].dropped == {"x": 2, "y": 4}
    assert (reports["a"].batches, reports["a"].coalesced, reports["a"].breaker) == (7, 3, "open")
    assert reports["gone"].live == 5
    assert reports["idle"].armed == 0


def report_of(told: Delivered, **waiting: int) -> TypeReport:
    """Of a type with many timers in two shards, of which so many are waited for."""
    rest = msgspec.structs.replace(tally(9), due=0, in_flight=0, retrying=0)
    shards = [rest, msgspec.structs.replace(rest, **waiting)]
    return sum_up([], [ShardTally(n, 1, {"t": each}, None) for n, each in enumerate(shards)], {"t": told})["t"]


@pytest.mark.parametrize("what", ["due", "in_flight", "retrying"])
def test_trouble_shows_while_something_waits_for_the_target(what: str) -> None:
    processor = report_of(Delivered(breaker="open", target=DOWN), **{what: 1})
    assert (processor.breaker, processor.target) == ("open", DOWN)
    callbacks = report_of(Delivered(breaker="open", hosts=HOSTS), **{what: 1})
    assert (callbacks.breaker, callbacks.hosts) == ("open", HOSTS)


def test_no_trouble_shows_when_nothing_waits_for_the_target() -> None:
    processor = report_of(Delivered(batches=7, breaker="open", target=DOWN))
    assert (processor.live, processor.batches, processor.breaker) == (18, 7, "closed")
    assert processor.target == TargetReport("closed", 16, 16)
    callbacks = report_of(Delivered(breaker="open", hosts=HOSTS))
    assert (callbacks.breaker, callbacks.hosts) == ("closed", HostsReport(3, 0, 0, 0, []))
    held = report_of(Delivered(target=TargetReport("closed", 1, 16, 9_000, None, "HTTP 429", 1_000)))
    assert (held.slowed, held.held) == (0, 0)
