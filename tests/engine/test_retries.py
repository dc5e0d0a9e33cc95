"""Retries by the end of their gaps."""

from itertools import permutations

import pytest

from timerd.engine.now import Now
from timerd.engine.retries import RetryQueue
from timerd.engine.timer import GONE, RETRYING, BodyRef, Failure, Timer

COPIES = (b"{}", None, BodyRef(1, 0, 600, b"d" * 16))


@pytest.mark.parametrize("payloads", list(permutations(COPIES)))
def test_a_generation_that_left_and_came_back_is_there_once(payloads: tuple[bytes | None, ...]) -> None:
    """Its old entries are still in the queue, with the same moment and the same generation."""
    queue = RetryQueue(50)
    copies = [
        Timer(10, 7, "a", "t", payload, 0, Failure(1, 1, 100, 50, "HTTP 500", since=1_000), RETRYING)
        for payload in payloads
    ]
    for copy in copies:
        assert copy.failure is not None
        queue.push(copy, copy.failure)
    for copy in copies[:-1]:
        copy.state = GONE
        queue.stale += 1
    queue.pop_due(Now(5_000, 1_100), 10)
    assert not queue.ready, "its gap is over, and its time has not come"
    queue.pop_due(Now(20_000, 1_100), 10)
    assert [entry[3] for entry in queue.ready] == copies[-1:]
    assert (queue.ready_count, queue.stale, queue.next_at()) == (1, 0, None)
