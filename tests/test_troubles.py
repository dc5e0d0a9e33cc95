"""Failing deliveries are told once, and then now and then."""

import pytest
import structlog

from timerd.troubles import QUIET_MS, Troubles


@pytest.fixture
def lines(monkeypatch):
    with structlog.testing.capture_logs() as captured:
        yield captured


def test_the_first_failure_is_told_at_once_and_the_rest_are_counted(lines):
    troubles = Troubles()
    for n in range(100):
        troubles.failed(n, "t", "http://h/", "HTTP 500", 7)
    assert [line["event"] for line in lines] == ["delivery_failed"]
    troubles.failed(QUIET_MS + 1, "t", "http://h/", "HTTP 500", 7)
    assert lines[1]["batches"] == 100
    assert lines[1]["reason"] == "HTTP 500"


def test_that_it_is_well_again_is_told_once_a_while(lines):
    troubles = Troubles()
    for n in range(50):
        troubles.failed(n, "t", "u", "HTTP 500", 1)
        troubles.taken(n, "t")
    events = [line["event"] for line in lines]
    assert events.count("delivery_resumed") == 1


def test_what_was_never_failing_is_not_told(lines):
    Troubles().taken(0, "t")
    assert not lines


def test_burials_are_counted_by_type(lines):
    troubles = Troubles()
    troubles.buried(0, "a", 3)
    troubles.buried(1, "a", 3)
    troubles.buried(1, "b", 1)
    troubles.buried(QUIET_MS, "a", 1)
    assert [(line["type"], line["timers"]) for line in lines] == [("a", 3), ("b", 1), ("a", 4)]
