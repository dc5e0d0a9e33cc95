"""Failing deliveries are told once, and then now and then."""

import pytest
import structlog

from timerd.engine.command import TargetTurned
from timerd.troubles import QUIET_MS, TURNS_MAX, Troubles


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
    troubles.look(QUIET_MS - 1)
    assert [line["event"] for line in lines] == ["delivery_failed", "delivery_resumed"]
    troubles.look(QUIET_MS + 49)
    assert [line["event"] for line in lines[2:]] == ["delivery_failed", "delivery_resumed"]
    assert sum(line.get("batches", 0) for line in lines) == 50


def test_what_failed_and_was_not_told_is_told_when_it_is_well_again(lines):
    troubles = Troubles()
    for n in range(6):
        troubles.failed(n, "t", "u", "HTTP 500", 1)
    troubles.taken(6, "t")
    troubles.look(QUIET_MS)
    troubles.end()
    assert [line["event"] for line in lines] == ["delivery_failed", "delivery_resumed"]
    assert lines[1]["unnoted"] == "5"


def test_it_is_not_called_well_when_it_failed_again_since(lines):
    troubles = Troubles()
    for n in range(2):
        troubles.failed(n, "t", "u", "HTTP 500", 1)
        troubles.taken(n, "t")
    troubles.failed(2, "t", "u", "HTTP 500", 1)
    troubles.look(QUIET_MS + 2)
    assert [line["event"] for line in lines] == ["delivery_failed", "delivery_resumed", "delivery_failed"]
    assert lines[-1]["batches"] == 2


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


def test_what_was_held_back_is_told_when_the_quiet_is_over(lines):
    troubles = Troubles()
    for n in range(6):
        troubles.buried(n, "a", 1)
    troubles.buried(7, "b", 1)
    troubles.buried(8, "b", 2)
    troubles.look(QUIET_MS - 1)
    assert [line["timers"] for line in lines] == [1, 1]
    troubles.look(QUIET_MS)
    assert [line["timers"] for line in lines] == [1, 1, 5]
    troubles.look(QUIET_MS + 7)
    assert [(line["type"], line["timers"]) for line in lines[2:]] == [("a", 5), ("b", 2)]
    for later in (2 * QUIET_MS, 3 * QUIET_MS):
        troubles.look(later)
    troubles.end()
    assert len(lines) == 4, "nothing is told twice"


def test_what_was_held_back_is_told_at_the_end(lines):
    troubles = Troubles()
    for n in range(3):
        troubles.buried(n, "a", 1)
        troubles.failed(n, "a", "u", "HTTP 500", 1)
    for n in range(TURNS_MAX + 3):
        troubles.turned(n, TargetTurned("hook", f"http://h{n}:80", "breaker_opened", "connect"))
    troubles.end()
    assert sum(line["timers"] for line in lines if line["event"] == "timers_buried") == 3
    assert sum(line["batches"] for line in lines if line["event"] == "delivery_failed") == 3
    opened = [line for line in lines if line["event"] == "breaker_opened"]
    assert len(opened) == TURNS_MAX + 1
    assert (opened[-1]["host"], opened[-1]["unnoted"]) == ("http://h12:80", "2")


def test_drops_are_counted_by_type_and_told_now_and_then(lines):
    troubles = Troubles()
    for n in range(100):
        troubles.dropped(n, "a", 200)
    troubles.dropped(1, "b", 1)
    troubles.dropped(QUIET_MS, "a", 1)
    assert [(line["type"], line["timers"]) for line in lines] == [("a", 200), ("b", 1), ("a", 19_801)]
    assert {(line["event"], line["reason"]) for line in lines} == {("timers_dropped", "misfire")}
