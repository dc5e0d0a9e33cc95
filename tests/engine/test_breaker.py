"""The breaker alone: what opens it, what closes it, and when a probe may leave."""

from timerd.engine.breaker import OPENS_AT, WHOLE_PROBES, Breaker
from timerd.engine.timer import RetryPolicy

POLICY = RetryPolicy(min_backoff_ms=1000, max_backoff_ms=5000)


def suspect(breaker: Breaker, batch_no: int, at: int, alone: str | None = None, jitter: float = 1.0) -> None:
    breaker.suspect(batch_no, alone, POLICY, at, jitter)


def opened() -> Breaker:
    breaker = Breaker()
    for n in range(OPENS_AT):
        suspect(breaker, n, 100)
    assert breaker.open
    return breaker


def test_it_opens_at_the_third_failure_with_no_success_between() -> None:
    breaker = Breaker()
    for n in range(OPENS_AT - 1):
        suspect(breaker, n, 0)
    assert not breaker.open
    breaker.succeed(5)
    for n in range(OPENS_AT - 1):
        suspect(breaker, n, 10)
    assert not breaker.open
    breaker.hear()
    suspect(breaker, 9, 20)
    assert breaker.open
    assert breaker.probe_at == 1020


def test_a_timer_alone_is_heard_once() -> None:
    breaker = Breaker()
    for n in range(10):
        suspect(breaker, n, 0, "a")
    suspect(breaker, 10, 0, "b")
    assert not breaker.open
    suspect(breaker, 11, 0, "c")
    assert breaker.open


def test_a_success_makes_it_forget_whom_it_has_heard() -> None:
    breaker = Breaker()
    for alone in ("a", "b"):
        suspect(breaker, 0, 0, alone)
    breaker.succeed(1)
    for alone in ("a", "b", "c"):
        suspect(breaker, 0, 2, alone)
    assert breaker.open


def test_gaps_between_probes_grow_and_never_pass_max_backoff() -> None:
    breaker = opened()
    gaps = []
    at = breaker.probe_at
    for n in range(10, 16):
        breaker.send_probe(n)
        suspect(breaker, n, at, jitter=1.2)
        gaps.append(breaker.probe_at - at)
        at = breaker.probe_at
    assert gaps == [2400, 4800, 5000, 5000, 5000, 5000]


def test_only_the_probe_moves_the_next_probe() -> None:
    breaker = opened()
    breaker.send_probe(10)
    suspect(breaker, 3, 5000)
    assert (breaker.probe, breaker.probe_at) == (10, 1100)
    suspect(breaker, 10, 6000)
    assert (breaker.probe, breaker.probe_at) == (None, 8000)


def test_probes_are_whole_at_first_and_then_single() -> None:
    breaker = opened()
    singles = []
    for n in range(10, 10 + WHOLE_PROBES + 2):
        singles.append(breaker.probes_single)
        breaker.send_probe(n)
        suspect(breaker, n, 0)
    assert singles == [False] * WHOLE_PROBES + [True, True]


def test_success_or_any_answer_of_a_target_that_is_up_closes_it() -> None:
    for close in (lambda breaker: breaker.succeed(200), Breaker.hear):
        breaker = opened()
        breaker.send_probe(10)
        close(breaker)
        assert not breaker.open
        assert breaker.probe is None
        suspect(breaker, 11, 300)
        assert not breaker.open
    assert opened().succeeded_at == 0


def test_a_new_outage_begins_with_whole_probes_and_short_gaps() -> None:
    breaker = opened()
    for n in range(10, 20):
        breaker.send_probe(n)
        suspect(breaker, n, 0)
    breaker.succeed(1000)
    for n in range(OPENS_AT):
        suspect(breaker, n, 2000)
    assert not breaker.probes_single
    assert breaker.probe_at == 3000


def test_a_probe_that_was_not_sent_leaves_its_place_to_the_next() -> None:
    breaker = opened()
    breaker.send_probe(10)
    breaker.drop_probe(9)
    assert breaker.probe == 10
    breaker.drop_probe(10)
    assert breaker.probe is None
    assert breaker.probe_at == 1100
