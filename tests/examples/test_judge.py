"""The judge must see what it is there for: each kind of violation is planted and has to be found."""

from examples.feeds.cadence import Cadence
from examples.feeds.judge import Plan, Seen, Verdict, judge, percentile

CADENCE = Cadence(interval_ms=5_000, failed_interval_ms_max=10_000)
URL = "https://a.example/"
TIMES = [1_000, 6_400, 11_600, 17_900, 22_950]


def verdict(seen: list[Seen], ended: int = 27_000, outages: tuple[tuple[int, int], ...] = ()) -> Verdict:
    return judge(seen, Plan({URL: 1_000}, CADENCE, 1_000, ended, outages))


def good(*times: int) -> list[Seen]:
    return [Seen(at, URL, failed=False) for at in times]


def found(seen: list[Seen], ended: int = 27_000) -> list[str]:
    return [check.claim.split(" (")[0] for check in verdict(seen, ended).checks if check.violations]


MISSING = "every feed polled as often as its interval says"
EARLY = "none early"
LATE = "no lag above max_lag + 1 s"
TWICE = "none twice within an interval"


def test_a_good_run_passes() -> None:
    result = verdict(good(*TIMES))
    assert result.passed
    assert result.lags_ms == [0, 50, 200, 400, 1_300]
    assert (result.polls, result.fewest, result.most) == (5, 5, 5)


def test_an_early_poll_is_found() -> None:
    assert found(good(700, *TIMES[1:])) == [EARLY]


def test_a_poll_too_soon_after_a_failed_one_is_early() -> None:
    seen = [Seen(1_000, URL, failed=True), *good(7_000, 12_500, 18_000, 23_500)]
    assert found(seen) == [EARLY]


def test_a_poll_at_its_longer_interval_after_a_failed_one_is_right() -> None:
    assert found([Seen(1_000, URL, failed=True), *good(11_500, 17_000, 22_500)]) == []


def test_a_poll_twice_within_an_interval_is_found() -> None:
    assert TWICE in found(good(*TIMES[:3], TIMES[2] + 300, *TIMES[3:]))


def test_a_poll_twice_at_once_is_found() -> None:
    assert TWICE in found(good(*TIMES, TIMES[-1]))


def test_a_late_poll_is_found() -> None:
    assert found(good(*TIMES[:4], 25_000)) == [LATE]


def test_a_poll_left_out_is_late() -> None:
    assert found(good(*TIMES[:2], *TIMES[3:])) == [LATE]


def test_a_feed_that_is_polled_no_more_is_missing() -> None:
    assert found(good(*TIMES[:3])) == [MISSING]


def test_a_feed_never_polled_is_missing() -> None:
    assert found([]) == [MISSING]
    assert found([], ended=2_500) == []


def test_what_a_run_was_too_short_for_is_not_judged() -> None:
    # The second poll is due at 6,000 and may be 2,000 late.
    short, long = verdict(good(*TIMES[:2]), ended=7_999), verdict(good(*TIMES[:2]), ended=8_000)
    assert not any(check.judged for check in short.checks)
    assert (short.passed, short.failed) == (False, False)
    assert all(check.judged for check in long.checks)
    assert long.passed


def test_what_was_due_before_anybody_looked_is_not_judged_by_it() -> None:
    plan = Plan({URL: 1_000}, CADENCE, 1_000, 90_000, [(1_000, 95_000)], began=85_000)
    assert not judge([], plan).failed
    assert not judge([], plan).passed


def test_a_short_run_fails_by_what_it_did_show() -> None:
    assert verdict(good(700, 1_000), ended=3_000).failed


def test_after_a_kill_the_claims_that_allow_for_it_say_so() -> None:
    plan = Plan({URL: 1_000}, CADENCE, 1_000, 27_000, killed=True)
    assert [", while timerd was up" in check.claim for check in judge([], plan).checks] == [
        True,
        False,
        True,
        False,
        False,
    ]


def test_a_run_without_polls_does_not_pass() -> None:
    assert not verdict([], ended=2_500).passed


def test_what_is_not_on_the_list_is_found() -> None:
    assert found([*good(*TIMES), Seen(1, "https://b.example/", False)]) == ["nothing polled that is not on the list"]


def test_what_came_after_the_end_does_not_count() -> None:
    assert verdict(good(*TIMES, 27_001)).polls == 5


def test_an_outage_excuses_lateness_but_no_poll_too_many() -> None:
    outage = ((15_000, 18_000),)
    delayed = good(*TIMES[:3], 19_900, 25_000)
    assert found(delayed) == [LATE]
    assert verdict(delayed, outages=outage).passed
    assert not verdict(good(*TIMES[:3], 23_500), outages=outage).passed
    assert not verdict(good(*TIMES[:3], 17_000, 18_500, 23_500), outages=outage).passed


def test_the_cadence_doubles_up_to_its_bound() -> None:
    cadence = Cadence(5, 33)
    assert [cadence.after(failures) for failures in (0, 1, 2, 3, 1000)] == [5, 10, 20, 33, 33]
    assert Cadence(50, 33).after(1) == 50


def test_percentiles() -> None:
    assert [percentile(list(range(100)), share) for share in (0, 0.5, 0.99, 1)] == [0, 50, 99, 99]
    assert percentile([], 0.5) == 0
