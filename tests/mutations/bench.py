"""Tries mutations out, each in a copy of the tree: the checkout is read once and never written.

A mutation counts as caught when its check fails for it and passes without it; the second is looked at as well, for the
very seed or selection, so that a check that fails anyhow catches nothing. A check that crashes, hangs or collects
nothing is no catch either.
"""

import compileall
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutations.mutation import DoesNotApply, Mutation, Simulator, mutated

ROOT: Final = Path(__file__).parents[2]
LEFT_OUT: Final = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "node_modules", "dist", "build")
IMPORTED_FROM: Final = ("", "api", "storage", "cluster", "clients/python/src")
COMPILED: Final = ("timerd", "api", "storage", "cluster", "tests/sim")  # once, and not in each copy
LIMIT_S: Final = 900.0  # of one check: it hangs, or finds nothing for too long
KINDS: Final = (
    ("tests/property/", "property test"),
    ("tests/storage/test_crash_property", "property test"),
    ("tests/crash/", "crash test"),
    ("tests/cases/", "case"),
    ("tests/storage/test_memory_log", "conformance suite"),
)


class Verdict(NamedTuple):
    """What became of a mutation."""

    mutation: Mutation
    caught: bool
    kind: str
    """simulator | property test | crash test | case | unit test"""
    by: str
    """The checker's message or the test; or what is wrong."""
    seeds: int
    """The seed that failed, which is how many it took; 0 for tests."""
    seconds: float
    """Of the check that failed."""


class Bench:
    """A snapshot of the tree, and copies of it."""

    def __init__(self, scratch: Path, root: Path = ROOT, seeds: int | None = None) -> None:
        """`scratch` is an empty directory. `seeds`: at most so many, whatever a mutation asks for."""
        self._scratch = scratch
        self._most = seeds
        self._plain = scratch / "plain"
        shutil.copytree(root, self._plain, ignore=LEFT_OUT)
        for part in COMPILED:
            compileall.compile_dir(self._plain / part, quiet=2)
        self._passes: dict[tuple[str, ...], bool] = {}
        self._asking = threading.Lock()
        where = "import timerd, timerd_api, timerd_storage, tests.sim.world as w; print(timerd.__file__, w.__file__)"
        _, said, _ = _run(self._plain, ["-c", where])
        assert said.count(str(self._plain)) == 2, f"the copy is not what is imported: {said}"

    def try_out(self, mutation: Mutation) -> Verdict:
        """Plant it in a copy and run its check."""
        tree = self._scratch / mutation.name
        try:
            changed = mutated(self._plain, mutation)
        except DoesNotApply as error:
            return Verdict(mutation, False, "-", f"DOES NOT APPLY: {error}", 0, 0.0)
        shutil.copytree(self._plain, tree)
        try:
            for path, text in changed.items():
                target = tree / path.relative_to(self._plain)
                shutil.rmtree(target.parent / "__pycache__", ignore_errors=True)
                target.write_text(text)
            return self._judge(mutation, tree)
        finally:
            shutil.rmtree(tree, ignore_errors=True)

    def _judge(self, mutation: Mutation, tree: Path) -> Verdict:
        check = mutation.check
        if isinstance(check, Simulator):
            return self._simulate(mutation, tree, check.what, min(check.seeds, self._most or check.seeds))
        kind = kind_of(check.select[0])
        code, said, seconds = _run(tree, _pytest(*check.select))
        failed = re.search(r"^FAILED (.+?)(?: - .*)?$", said, re.MULTILINE)
        if code is None or (code and failed is None):
            return Verdict(mutation, False, kind, _no_verdict(code, said), 0, seconds)
        if failed is None:
            return Verdict(mutation, False, kind, "SURVIVED", 0, seconds)
        if not self._plain_passes(_pytest(*check.select)):
            return Verdict(mutation, False, kind, f"NO VERDICT: fails without it, too: {failed[1]}", 0, seconds)
        return Verdict(mutation, True, kind, failed[1], 0, seconds)

    def _simulate(self, mutation: Mutation, tree: Path, what: str, seeds: int) -> Verdict:
        """A seed that fails without the mutation says nothing: it is passed over."""
        first, spent_s, passed_over = 1, 0.0, ""
        while first <= seeds:
            code, said, seconds = _run(tree, ["-m", "tests.sim", what, "--seeds", f"{first}-{seeds}", "--quiet"])
            spent_s += seconds
            if code == 0:
                break
            seed = re.search(r"--seed (\d+)", said)
            message = re.search(r"^FAILED (.*)$", said, re.MULTILINE)
            if not code or seed is None or message is None:
                return Verdict(mutation, False, "simulator", _no_verdict(code, said), 0, spent_s)
            if self._plain_passes(["-m", "tests.sim", what, "--seed", seed[1]]):
                return Verdict(mutation, True, "simulator", message[1], int(seed[1]), spent_s)
            passed_over += f" {seed[1]}"
            first = int(seed[1]) + 1
        beside = f" (seeds that fail without it:{passed_over})" if passed_over else ""
        return Verdict(mutation, False, "simulator", f"SURVIVED {seeds} seeds{beside}", 0, spent_s)

    def _plain_passes(self, command: list[str]) -> bool:
        with self._asking:
            if tuple(command) not in self._passes:
                self._passes[tuple(command)] = _run(self._plain, command)[0] == 0
            return self._passes[tuple(command)]


def kind_of(path: str) -> str:
    """What sort of test a selection is."""
    return next((kind for start, kind in KINDS if path.startswith(start)), "unit test")


def _pytest(*select: str) -> list[str]:
    # The fuzzer's plugin compiles itself at the end of a run, and CPython 3.11 may crash there once a test has failed.
    without = ["-p", "no:cacheprovider", "-p", "no:schemathesis"]
    return ["-m", "pytest", "-q", "-x", "--no-header", "--tb=no", *without, *select]


def _no_verdict(code: int | None, said: str) -> str:
    return f"NO VERDICT: not done after {LIMIT_S:.0f} s" if code is None else f"NO VERDICT: {said[-300:]}"


def _run(tree: Path, arguments: list[str]) -> tuple[int | None, str, float]:
    """Exit code, output and seconds of Python in a copy. No code: it took too long, and was ended with its children."""
    environment = {name: value for name, value in os.environ.items() if name != "TIMERD_EXPLORE"}
    environment["PYTHONPATH"] = os.pathsep.join(str(tree / part) for part in IMPORTED_FROM)
    environment["COLUMNS"] = "400"
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    code: int | None = None
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
    return code, said, time.monotonic() - began
