"""The verdict on a run: did every feed get the polls its interval says, and no others?

It is drawn from what was *seen* (the provider's log, or with --online the times at which polls left) and from the plan
(when each feed was first due, the cadence, max_lag). Nothing that timerd or the service counts comes into it.

A feed is due at its plan, and then each time one interval after the poll before: the ordinary one after a good poll,
a longer one after failures. Walking a feed's requests in order finds

    twice    a request within an ordinary interval of the one before
    early    a request before it was due
    late     a request more than max_lag + 1 s after it was due
    missing  a poll that was due that long before the end, and never came

While timerd was down on purpose it can't deliver, so time in an outage is not counted as lag. Twice and early get no
such allowance: a crash excuses no poll too many.

What a run was too short to show is not judged. A check is, once every feed should have been polled twice.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .cadence import Cadence

EARLY_MS_MAX = 250
"""An interval counts from when a poll leaves, the log says when it arrived. On a busy machine one request may be so
much longer on its way than the next."""
LATE_MS_MAX = 1000
"""Allowed beyond max_lag: 250 ms of timerd's own, the rest for a poller and a provider on the same two cores."""
RECOVERY_MS = 3000
"""An outage counts until so long after timerd is ready again. What was open when it went comes a second time, isn't due
yet, and is answered only with the slowest poll of its batch, 2 s later; and all that fell due comes at once."""
EXAMPLES_SHOWN = 5


class Seen(NamedTuple):
    at: int
    url: str
    failed: bool


class Plan(NamedTuple):
    """What should have happened. Times are Unix milliseconds."""

    first_due: Mapping[str, int]
    cadence: Cadence
    max_lag_ms: int
    ended: int
    outages: Sequence[tuple[int, int]] = ()
    began: int = 0
    """When somebody began to look; feeds may have been due before."""
    killed: bool = False
    """One of the outages is of timerd, and the claims that it bears on say so."""


class Check(NamedTuple):
    claim: str
    violations: list[str]
    judged: bool = True
    """Without violations, this tells a claim that held from one that was not put to the test."""


class Verdict(NamedTuple):
    checks: list[Check]
    polls: int
    lags_ms: list[int]
    """Sorted; how long after it was due each poll was seen."""
    fewest: int
    most: int
    """Polls of the feed that was polled least, and of the one polled most."""

    @property
    def passed(self) -> bool:
        """A run in which nothing happened, or not enough, proves nothing."""
        return self.polls > 0 and not self.failed and all(check.judged for check in self.checks)

    @property
    def failed(self) -> bool:
        return any(check.violations for check in self.checks)


def judge(seen: Iterable[Seen], plan: Plan) -> Verdict:
    """Compare what was seen with the plan."""
    by_url: dict[str, list[Seen]] = defaultdict(list)
    for one in sorted(seen):
        if one.at <= plan.ended:
            by_url[one.url].append(one)
    bound = plan.max_lag_ms + LATE_MS_MAX
    last_due = max([plan.began, *plan.first_due.values()])
    judged = plan.ended >= last_due + plan.cadence.interval_ms + bound
    up = ", while timerd was up" if plan.killed else ""
    missing = Check(f"every feed polled as often as its interval says{up}", [], judged)
    early = Check("none early", [], judged)
    late = Check(f"no lag above max_lag + 1 s ({bound / 1000:g} s){up}", [], judged)
    twice = Check("none twice within an interval", [], judged)
    unlisted = [url for url in by_url if url not in plan.first_due]
    strange = Check("nothing polled that is not on the list", unlisted, judged)
    lags: list[int] = []

    for url, due in plan.first_due.items():
        before: int | None = None
        failures = 0
        for at, _, failed in by_url[url]:
            lag = at - due
            if before is not None and at - before < plan.cadence.interval_ms - EARLY_MS_MAX:
                twice.violations.append(f"{url}: again after {_s(at - before)}")
            elif lag < -EARLY_MS_MAX:
                early.violations.append(f"{url}: {_s(-lag)} before it was due")
            elif lag - _overlap(due, at, plan.outages) > bound:
                late.violations.append(f"{url}: {_s(lag)} after it was due")
            lags.append(lag)
            failures = failures + 1 if failed else 0
            before, due = at, at + plan.cadence.after(failures)
        if plan.ended - due - _overlap(due, plan.ended, plan.outages) > bound:
            count = len(by_url[url])
            missing.violations.append(f"{url}: {count} polls, the next one due {_s(plan.ended - due)} before the end")

    counts = [len(by_url[url]) for url in plan.first_due]
    checks = [missing, early, late, twice, strange]
    return Verdict(checks, len(lags), sorted(lags), min(counts, default=0), max(counts, default=0))


def percentile(ordered: Sequence[int], share: float) -> int:
    """The value that `share` of a sorted list doesn't exceed; 0 for an empty list."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0


def _overlap(start: int, end: int, outages: Iterable[tuple[int, int]]) -> int:
    """How much of [start, end] lies in an outage."""
    return sum(max(0, min(end, ready + RECOVERY_MS) - max(start, down)) for down, ready in outages)


def _s(ms: int) -> str:
    return f"{ms / 1000:.2f} s"
