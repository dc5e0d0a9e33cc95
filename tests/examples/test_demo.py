"""The whole thing, as a user runs it: its words, its exit codes, and that it leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEMO = [sys.executable, "-m", "examples.feeds", "--demo", "--interval", "4"]
ROOT = Path(__file__).parents[2]


def run(*options: str, tmp: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *options], cwd=ROOT, env=env(tmp), capture_output=True, text=True, timeout=90)


def env(tmp: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(tmp)}


def running(tmp: Path) -> list[str]:
    """Commands that were started for this test: each has a path in its folder as an argument."""
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(tmp) in command:
            commands.append(command)
    return commands


def test_a_bad_list_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    file = tmp_path / "list.opml"
    file.write_text("hello")
    ended = run("--opml", str(file), tmp=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: {file}: not an OPML file")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "options",
    [
        ("--interval", "1"),
        ("--kill", "--timerd", "http://127.0.0.1:1"),
        ("--max-lag", "-1"),
        ("--timerd", "127.0.0.1:8470"),
    ],
)
def test_options_that_can_t_work_are_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    ended = run(*options, tmp=tmp_path)
    assert ended.returncode == 2
    assert "error: " in ended.stderr


@pytest.mark.slow
def test_a_timerd_that_is_not_there_is_named(tmp_path: Path) -> None:
    ended = run("--timerd", "http://127.0.0.1:1", tmp=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: timerd at http://127.0.0.1:1: ")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--kill",)], ids=["plain", "kill"])
def test_a_short_run_passes(tmp_path: Path, options: tuple[str, ...]) -> None:
    ended = run("--seconds", "14", *options, tmp=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("This starts a timerd of its own and a local provider of 30")
    assert "30 feeds from 1 file (" in ended.stdout
    assert "judged by the provider's own log" in ended.stdout
    assert ended.stdout.rstrip().endswith("passed")
    assert ended.stdout.count("  ok  ") == 5
    assert ("was killed" in ended.stdout) == bool(options)
    assert ended.stdout.count(", while timerd was up") == (2 if options else 0)
    polls = re.search(r"^  polls +(\d+) ", ended.stdout, re.MULTILINE)
    assert polls is not None
    assert int(polls[1]) > 50
    assert running(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_it_with_a_summary_and_without_a_trace(tmp_path: Path) -> None:
    command = [*DEMO, "--seconds", "60"]
    with subprocess.Popen(command, cwd=ROOT, env=env(tmp_path), stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        while "polls/s" not in demo.stdout.readline():
            assert demo.poll() is None
        time.sleep(5)
        assert len(running(tmp_path)) == 2
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
        assert demo.wait(30) == 130
    assert rest.count("  not judged  ") == 5
    assert rest.rstrip().endswith("not judged: it was interrupted before every feed had been due twice")
    assert running(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
