"""What an operator sees of targets: reports, lines of the log, words of the command, plain causes."""

import errno
import socket
from unittest.mock import Mock

import aiohttp
import structlog

from timerd.cli.condition import lines
from timerd.engine.command import TargetTurned
from timerd.engine.condition import Condition, HostsCondition
from timerd.engine.now import Now
from timerd.targets import hosts_report, target_report
from timerd.troubles import QUIET_MS, TURNS_MAX, Troubles
from timerd.wording import wording

NOW = Now(1_796_025_600_000_000, 50_000)
WELL = {"since": None, "breaker": "closed", "window": 16, "bound": 16}
WELL |= {"held_until": None, "next_probe_at": None, "reason": ""}


def test_boot_times_become_wall_times():
    report = target_report(NOW, Condition("open", 1, 16, 0, 53_000, "connect", 20_000))
    assert (report.held_until, report.next_probe_at, report.since) == (None, 1_796_025_603_000, 1_796_025_570_000)


def test_hosts_are_told_by_name():
    host = Condition("closed", 2, 4, 0, 0, "HTTP 503", 20_000, "http://a:80")
    report = hosts_report(NOW, HostsCondition(7, 0, 1, 0, [host]))
    assert (report.known, report.slowed) == (7, 1)
    assert (report.troubled[0].host, report.troubled[0].slowed) == ("http://a:80", True)


def test_each_turn_of_a_target_is_a_line_and_many_hosts_are_few_lines():
    troubles = Troubles()
    with structlog.testing.capture_logs() as said:
        for n in range(100):
            troubles.turned(n, TargetTurned("hook", f"http://h{n}:80", "breaker_opened", "connect"))
        troubles.turned(200, TargetTurned("poll", "", "slow_down_ended", "HTTP 429"))
        troubles.turned(QUIET_MS + 1, TargetTurned("hook", "http://last:80", "breaker_opened", "connect"))
    assert len(said) == TURNS_MAX + 2
    assert said[0] == {
        "event": "breaker_opened", "log_level": "warning", "type": "hook", "host": "http://h0:80", "reason": "connect"
    }  # fmt: skip
    assert said[-2] == {"event": "slow_down_ended", "log_level": "info", "type": "poll", "reason": "HTTP 429"}
    assert said[-1]["unnoted"] == str(100 - TURNS_MAX)


def test_the_command_says_it_in_words():
    def of(**fields):
        return {"t": {"target": WELL | fields, "hosts": None}}

    assert lines(of()) == []
    assert lines(of(window=4, reason="HTTP 503")) == [
        "t: its target is slowed down to 4 of 16 requests at once (HTTP 503)"
    ]
    assert lines(of(held_until="then", reason="HTTP 429")) == ["t: its target is left alone until then (HTTP 429)"]
    assert lines(of(breaker="open", since="T1", next_probe_at="T2", reason="timeout")) == [
        "t: its target, in trouble since T1, is down (timeout); next probe at T2"
    ]
    assert lines(of(breaker="probing")) == ["t: its target is down; a probe is under way"]
    hosts = {"known": 9, "open": 3, "slowed": 0, "held": 0}
    hosts["troubled"] = [WELL | {"host": "http://a:80", "since": "then", "breaker": "probing"}]
    assert lines({"c": {"target": None, "hosts": hosts}}) == [
        "c: host http://a:80, in trouble since then, is down; a probe is under way",
        "c: and 2 hosts more",
    ]
    assert lines({"old": {"breaker": "open"}}) == [], "a service that does not tell"


def test_what_went_wrong_is_said_in_plain_words():
    key = Mock(host="h.example", port=9000, ssl=True)

    def connecting(cause):
        return wording(aiohttp.ClientConnectorError(key, cause))

    assert connecting(OSError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.9', 9000)")) == (
        "h.example:9000 refused the connection"
    )
    assert connecting(OSError(errno.ENETUNREACH, "x")) == "no connection to h.example:9000: network is unreachable"
    assert connecting(socket.gaierror(socket.EAI_NONAME, "Name or service not known")) == (
        "no address was found for h.example: Name or service not known"
    )
    assert wording(aiohttp.ServerDisconnectedError()) == "the connection was closed before an answer came"
    assert wording(ConnectionResetError(errno.ECONNRESET, "x")) == "connection reset by peer"
    assert wording(ValueError()) == "ValueError"
