"""The commands that talk to a running timerd, against one; and what they say when something is typed wrongly."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.support.process import Process
from timerd.cli.app import app

Cli = Callable[..., Result]
WAIT_S = 20


class Target(BaseHTTPRequestHandler):
    """A processor that wants none of it; and, to a GET, a server that is no timerd."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(500)
        self.send_header("Timerd-No-Retry", "true")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"welcome")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Target) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with asyncio.Runner() as runner:
        process = Process(tmp_path_factory.mktemp("cli") / "data", "--log-level", "error")
        runner.run(process.start())
        yield process.url
        runner.run(process.__aexit__())


@pytest.fixture
def cli(url: str) -> Cli:
    def invoke(*arguments: str, env: dict[str, str] | None = None) -> Result:
        result = CliRunner().invoke(app, list(arguments), env={"TIMERD_URL": url, **(env or {})})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


@pytest.fixture
def type(cli: Cli, target: str, request: pytest.FixtureRequest) -> str:
    """A type of this test's own."""
    name = f"t{abs(hash(request.node.name)) % 10**9}"
    assert cli("type", "put", name, "--url", target, "--max-lag", "0").exit_code == 0
    return name


def told(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def lines(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_timer_from_arm_to_cancel(cli: Cli, type: str) -> None:
    armed = told(cli("arm", "a/b", "--type", type, "--in", "1h", "--payload", '{"n": 1}'))
    assert armed["status"] == "created"
    shown = told(cli("get", "a/b"))
    assert (shown["generation"], shown["payload"]) == (armed["generation"], {"n": 1})
    assert told(cli("cancel", "a/b", "nothing"))["cancelled"] == 1
    gone = cli("get", "a/b")
    assert (gone.exit_code, gone.stdout) == (1, "")
    assert gone.stderr == "timerd: 404 timer-not-found: there is no timer with the id 'a/b'\n"


@pytest.mark.parametrize("delay", ["3600", "3600.5", "60m"])
def test_in_takes_plain_seconds(cli: Cli, type: str, delay: str) -> None:
    armed = told(cli("arm", f"in-{delay}", "--type", type, "--in", delay))
    assert armed["status"] == "created"


def test_fire(cli: Cli, type: str) -> None:
    told(cli("arm", "soon", "--type", type, "--in", "1h"))
    assert told(cli("fire", "soon"))["status"] == "moved"
    until(lambda: any(letter["id"] == "soon" for letter in lines(cli("dead", "list", "--type", type))))
    assert "409 timer-dead" in cli("fire", "soon").stderr
    assert "404 timer-not-found" in cli("fire", "nothing").stderr


def test_a_type_from_put_to_delete(cli: Cli, target: str) -> None:
    put = told(
        cli("type", "put", "whole", "--url", target, "--max-lag", "250ms", "--batch-size", "7",
            "--max-per-second", "9.5", "--max-attempts", "3", "--min-backoff", "2", "--max-backoff", "1m",
            "--multiplier", "3", "--jitter", "0", "--request-timeout", "5s", "--max-in-flight", "2",
            "--misfire", "coalesce", "--misfire-grace", "30s", "--misfire-max-per-second", "5",
            "--secret", "whsec_" + "QUJD" * 8, "--header", "X-A: b", "--paused")
    )  # fmt: skip
    assert put == told(cli("type", "get", "whole"))
    assert (put["max_lag"], put["batch_size"], put["max_per_second"], put["state"]) == ("250ms", 7, 9.5, "paused")
    assert put["retry"] == {
        "max_attempts": 3,
        "min_backoff": "2s",
        "max_backoff": "1m",
        "multiplier": 3.0,
        "jitter": 0.0,
    }
    assert put["misfire"] == {"policy": "coalesce", "grace": "30s", "max_per_second": 5.0}
    assert (put["headers"], len(put["signing_secrets"])) == ({"X-A": "***"}, 1)
    again = told(cli("type", "put", "whole", "--url", target))
    assert (again["batch_size"], again["state"], len(again["signing_secrets"])) == (800, "active", 1)
    assert told(cli("type", "pause", "whole"))["state"] == "paused"
    assert told(cli("type", "resume", "whole"))["state"] == "active"
    assert "whole" in [each["name"] for each in told(cli("types"))["types"]]
    told(cli("arm", "one", "--type", "whole", "--in", "1h"))
    assert "409 type-in-use" in cli("type", "delete", "whole").stderr
    told(cli("cancel", "one"))
    deleted = cli("type", "delete", "whole")
    assert (deleted.exit_code, deleted.output) == (0, "")
    assert "404 type-not-found" in cli("type", "get", "whole").stderr


def test_shards_and_nodes(cli: Cli) -> None:
    (node,) = lines(cli("nodes"))
    shown = lines(cli("shards"))
    assert node["shards"] == [shard["id"] for shard in shown]
    assert told(cli("shards", "--scale", str(len(shown) + 1)))["shards"] == len(shown) + 1
    for count in range(len(shown) + 2, len(shown) + 6):  # one of them meets the move of the one before
        again = cli("shards", "--scale", str(count))
        if again.exit_code:
            assert again.stderr.startswith("timerd: 409 shards-moving: ")
            assert again.stderr.rstrip().endswith("; try again in 5 s")


def test_a_delay_may_be_called_so(cli: Cli, type: str) -> None:
    assert told(cli("arm", "so", "--type", type, "--delay", "1h"))["status"] == "created"
    told(cli("cancel", "so"))


def test_dead_letters(cli: Cli, type: str) -> None:
    for id in ("d1", "d2", "d3"):
        told(cli("arm", id, "--type", type, "--in", "0"))

    def dead() -> list[str]:
        return sorted(letter["id"] for letter in lines(cli("dead", "list", "--type", type)))

    until(lambda: dead() == ["d1", "d2", "d3"])
    assert len(lines(cli("dead", "list", "--type", type, "--limit", "2"))) == 2
    assert told(cli("dead", "purge", "d1", "nothing")) == {"purged": 1}
    assert told(cli("dead", "replay", "d2")) == {"replayed": 1}
    until(lambda: dead() == ["d2", "d3"])
    assert told(cli("dead", "replay", "--type", type)) == {"replayed": 2}
    until(lambda: dead() == ["d2", "d3"])
    assert told(cli("dead", "purge", "--type", type)) == {"purged": 2}


def test_list(cli: Cli, type: str) -> None:
    for n in range(3):
        told(cli("arm", f"l{n}", "--type", type, "--in", f"{3 - n}h"))
    assert sorted(timer["id"] for timer in lines(cli("list", "--type", type))) == ["l0", "l1", "l2"]
    assert [timer["id"] for timer in lines(cli("list", "--type", type, "--soonest", "--limit", "2"))] == ["l2", "l1"]
    assert [timer["id"] for timer in lines(cli("list", "--type", type, "--prefix", "l1"))] == ["l1"]
    assert lines(cli("list", "--type", type, "--state", "dead")) == []


def test_stats(cli: Cli, type: str) -> None:
    assert type in told(cli("stats"))["types"]


def test_a_callback_is_armed(cli: Cli) -> None:
    told(cli("type", "put", "call", "--kind", "callback"))
    told(
        cli("arm", "c", "--type", "call", "--in", "1h", "--url", "https://example.com/", "--method", "PUT",
            "--header", "X-A: b: c", "--json", '{"n": 1}')
    )  # fmt: skip
    shown = told(cli("get", "c"))["request"]
    assert shown == {"url": "https://example.com/", "method": "PUT", "headers": {"X-A": "b: c"}, "json": {"n": 1}}
    refused = cli("arm", "c", "--type", "call", "--in", "1h", "--url", "http://127.0.0.1/")
    assert refused.exit_code == 1
    assert "--url: 127.0.0.1 is loopback" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("arm", "a", "--type", "t"), "give one of --at and --in"),
        (("arm", "a", "--type", "t", "--in", "1", "--at", "2030-01-01T00:00:00Z"), "give one of --at and --in"),
        (("arm", "a", "--type", "t", "--in", "1", "--payload", "{"), "--payload is no JSON"),
        (("arm", "a", "--type", "t", "--in", "1", "--url", "http://a", "--json", "{"), "--json is no JSON"),
        (("arm", "a", "--type", "t", "--in", "1", "--url", "http://a", "--header", "x"), "Name: value"),
        (("arm", "a", "--type", "t", "--in", "1", "--body", "x"), "go with --url"),
        (("arm", "a", "--type", "t", "--in", "1", "--payload", "NaN"), "--payload is no JSON: JSON has no NaN"),
        (("list", "--soonest", "--state", "due"), "not with --state or --prefix"),
        (("list", "--soonest", "--prefix", "a"), "not with --state or --prefix"),
        (("list", "--soonest", "--limit", "1001"), "at most 1000"),
        (("list", "--limit", "0"), "--limit"),
        (("list", "--limit", "many"), "'--limit'"),
        (("dead", "replay"), "give ids, or --type"),
        (("dead", "purge", "a", "--type", "t"), "give ids, or --type"),
        (("type", "put", "t"), "--url"),
        (("type", "put", "t", "--url", "http://a", "--batch-size", "x"), "'--batch-size'"),
        (("type", "put", "t", "--url", "http://a", "--header", "no"), "Name: value"),
        (("get", "a", "--url", "127.0.0.1:8470"), "http:// or https://"),
        (("get", "a", "--key", "\u00fc"), "ASCII"),
        (("get", "a", "--url", "http://user:sesame@127.0.0.1/"), "--url may not have a user or password"),
        (("get", "a", "--url", "https://127.0.0.1:1", "--ca-file", "/nowhere.pem"), "--ca-file /nowhere.pem"),
        (("keys", "create", "--name", "n"), "'--scope'"),
    ],
)
def test_what_is_typed_wrongly_is_refused_by_its_name(cli: Cli, arguments: tuple[str, ...], says: str) -> None:
    result = cli(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--in", "soon"), "422 validation: --in: is no duration such as 250ms, 10s, 5m, 36h or 60d"),
        (("--in", "-5"), "422 validation: --in: is negative"),
        (("--at", "1796025600"), "422 validation: --at: is too small for milliseconds; was it seconds?"),
        (("--at", "1796025600.5"), "422 validation: --at: is too small for milliseconds; was it seconds?"),
        (("--at", "tomorrow"), "422 validation: --at: is no RFC 3339 time with an offset"),
        (("--in", "99999d"), "422 horizon-exceeded: --in: lies more than 3660 days ahead"),
    ],
)
def test_a_problem_is_told_once_and_names_the_option(
    cli: Cli, type: str, arguments: tuple[str, ...], says: str
) -> None:
    result = cli("arm", "a", "--type", type, *arguments)
    assert (result.exit_code, result.stderr) == (1, f"timerd: {says}\n")


def test_several_problems_have_a_line_each(cli: Cli) -> None:
    result = cli("arm", "", "--type", "none", "--in", "soon")
    assert result.stderr.splitlines()[0].startswith("timerd: 422 validation: ")
    result = cli("arm", "a", "--type", "none", "--in", "soon", "--mode", "replace")
    assert result.stderr.splitlines() == [
        "timerd: 422 validation:",
        "  --type: there is no type 'none': PUT /v1/types/none first",
        "  --in: is no duration such as 250ms, 10s, 5m, 36h or 60d",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("arm", "a", "--type", "t", "--in", "1", "--mode", "x"), "--mode: Invalid enum value 'x': must be one of"),
        (("list", "--state", "x"), "--state: must be one of armed, due"),
        (("list", "--type", "X"), "--type: a type's name is"),
        (("dead", "purge", "--type", "X"), "--type: a type's name is"),
        (("cancel", "a", "."), "ID '.': '.' and '..' can't be ids"),
        (("get", "."), "ID: '.' and '..' can't be ids"),
        (("get", "\udcff"), "400 malformed: the path is not UTF-8"),
        (("type", "put", "T", "--url", "http://a"), "NAME: a type's name is"),
        (("type", "put", "t", "--url", "http:/a"), "--url: has no host: 'http:/a'"),
        (("type", "put", "t", "--url", "http://a", "--batch-size", "0"), "--batch-size: Expected `int` >= 1"),
        (("type", "put", "t", "--url", "http://a", "--max-lag", "x"), "--max-lag: is no duration"),
        (("type", "put", "t", "--url", "http://a", "--secret", "x"), "--secret/0: must begin with whsec_"),
        (("type", "put", "t", "--url", "http://a", "--header", "Host: x"), "--header/Host: is set by timerd itself"),
    ],
)
def test_every_command_names_its_options(cli: Cli, arguments: tuple[str, ...], says: str) -> None:
    result = cli(*arguments)
    assert result.exit_code == 1
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["list", "list --soonest", "dead list", "dead replay", "dead purge"])
def test_a_type_that_is_not_there_is_named(cli: Cli, type: str, command: str) -> None:
    result = cli(*command.split(), "--type", "no-such")
    assert (result.exit_code, result.stderr) == (0, "timerd: there is no type 'no-such'\n")
    assert result.stdout == ("" if "list" in command else f'{{\n  "{command.split()[1].removesuffix("e")}ed": 0\n}}\n')
    known = cli(*command.split(), "--type", type)
    assert (known.exit_code, known.stderr) == (0, "")


def test_who_answers_is_no_timerd(cli: Cli, target: str) -> None:
    for arguments in (("get", "a"), ("stats",)):
        result = cli(*arguments, "--url", target)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == f"timerd: what answers at {target} is no timerd (HTTP 200)\n"
    result = cli("fire", "a", "--url", target)
    assert result.stderr == f"timerd: what answers at {target} is no timerd (HTTP 500)\n"


def test_a_key_does_not_follow_a_redirect(cli: Cli, target: str) -> None:
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(10_000))
                location = f"Location: {target}/v1/timers/a\r\n".encode()
                connection.sendall(b"HTTP/1.1 302 Found\r\n" + location + b"Content-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        result = cli("get", "a", "--url", url, env={"TIMERD_API_KEY": "sesame"})
        thread.join()
    assert b"Bearer sesame" in asked[0]
    assert (result.exit_code, result.stderr) == (1, f"timerd: what answers at {url} is no timerd (HTTP 302)\n")


def test_who_answers_speaks_no_http(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        result = cli("get", "a", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert result.exit_code == 1
    assert "no answer from a timerd" in result.stderr


def test_nobody_answers(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = cli("get", "a", "--url", f"http://127.0.0.1:{port}")
    assert result.exit_code == 1
    assert "refused" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["inspect", "verify", "repair"])
def test_the_log_of_no_data_directory(cli: Cli, tmp_path: Path, command: str) -> None:
    result = cli("log", command, str(tmp_path))
    assert result.exit_code == 2
    assert "no data directory" in result.output
    assert list(tmp_path.iterdir()) == []


def test_help_shows_defaults(cli: Cli) -> None:
    for arguments, says in (
        ("type put", "[default: 800]"),
        ("serve", "[default: 8470]"),
        ("type put", "[a-z]"),
        ("dev", "of dev a temporary one"),
        ("get", "in arm and type put --server alone"),
    ):
        assert says in " ".join(cli(*arguments.split(), "--help").stdout.split())
