"""Counts of several nodes as one: each shard once, no trouble hidden, no lag shown too small."""

import msgspec

from timerd.engine.message import ShardTally, TypeTally
from timerd.merging import merged
from timerd.questions import CountAll, Counted, encode_answer, read_answer, read_told
from timerd.report import HostsReport, LagWindow, NodeTally, TargetReport, TypeReport


def shard(number: int, epoch: int, live: int, due: int = 0) -> ShardTally:
    counts = TypeTally(live + 1, 0, 1, 0, 0, 0, 0, 0, 0, {"misfire": 2}, live, 0, 0, 0, due)
    return ShardTally(number, epoch, {"t": counts}, None)


def node(*shards: ShardTally, **told: object) -> NodeTally:
    return NodeTally(list(shards), {"t": TypeReport(**told)}, 10, 20, 3, 4, 5, 6)  # type: ignore[arg-type]


def test_a_shard_that_two_tell_of_counts_once_as_its_last_owner_has_it() -> None:
    old, new = node(shard(0, 3, 50), shard(1, 1, 5)), node(shard(0, 4, 7))
    for tallies in ([old, new], [new, old]):
        tally = merged(tallies, ["t", "never used"])
        assert [(s.shard, s.epoch) for s in tally.shards] == [(0, 4), (1, 1)]
        assert tally.types["t"].live == 12
        assert tally.types["t"].armed == 14
        assert tally.types["t"].dropped == {"misfire": 4}
        assert tally.types["never used"].live == 0
        assert (tally.log_live_bytes, tally.log_disk_bytes, tally.bodies_copied_bytes) == (20, 40, 12)


def test_deliveries_add_up_and_lag_is_the_largest() -> None:
    one = node(shard(0, 1, 1), batches=2, batch_timers=10, unnamed=1, lag=LagWindow(5, 50, 60))
    two = node(shard(1, 1, 1), batches=3, batch_timers=5, coalesced=4, lag=LagWindow(9, 20, 90))
    report = merged([one, two, node()], []).types["t"]
    assert (report.batches, report.batch_timers, report.unnamed, report.coalesced) == (5, 15, 1, 4)
    assert report.lag == LagWindow(9, 50, 90)
    assert merged([node(shard(0, 1, 1))], []).types["t"].lag == LagWindow()


def test_trouble_that_one_node_sees_is_everybodys() -> None:
    well = TargetReport("closed", 8, 8)
    down = TargetReport("open", 1, 8, held_until=70, next_probe_at=50, reason="502", since=40)
    slow = TargetReport("probing", 2, 8, held_until=90, next_probe_at=60, reason="slow", since=45)
    tally = merged([node(shard(n, 1, 1, due=1), target=target, breaker=target.breaker)
                    for n, target in enumerate((well, slow, down))], [])  # fmt: skip
    report = tally.types["t"]
    assert report.breaker == "open"
    assert report.target == TargetReport("open", 11, 24, 90, 50, "502", 40)


def test_a_host_that_several_know_is_one() -> None:
    def hosts(known: int, *troubled: TargetReport) -> HostsReport:
        return HostsReport(known, len(troubled), 0, 0, list(troubled))

    a, b = TargetReport("open", 1, 4, since=5, host="a"), TargetReport("open", 1, 4, since=3, host="b")
    tally = merged(
        [node(shard(0, 1, 1, due=1), hosts=hosts(9, a)), node(shard(1, 1, 1, due=1), hosts=hosts(4, a, b))], []
    )
    found = tally.types["t"].hosts
    assert found is not None
    assert (found.known, found.open) == (9, 2)
    assert [(host.host, host.bound) for host in found.troubled] == [("b", 4), ("a", 8)]


def test_lags_of_another_node_are_the_integers_that_they_were() -> None:
    told = Counted(merged([node(shard(0, 1, 1), lag=LagWindow(5, 50, 60))], []))
    read = read_answer(read_told(encode_answer(1, told)), CountAll())
    assert isinstance(read, Counted)
    lag = read.tally.types["t"].lag
    assert msgspec.json.encode(lag) == b'{"p50_ms":5,"p99_ms":50,"max_ms":60}'
