"""Fuzzing led by coverage: one target under atheris, in a process of its own (`python -m tests.hostile.guided TARGET`).

libFuzzer ends the process when its time is over or an input fails, and says on stderr how many it ran. It sees the
Python that is instrumented; msgspec, zlib and httptools are closed to it.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MODULES = ["timerd.engine", "timerd.pages", "timerd.deliver", "timerd_api", "timerd_storage"]
MEMORY_MIB_MAX = 1024
SLOW_S = 5


def available() -> bool:
    """Whether atheris is there: it is made for Linux on x86 alone."""
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


def run(name: str, seed: int, seconds: float) -> tuple[int, list[tuple[bytes, str]]]:
    """Executions, and the inputs that failed, each with what was printed."""
    with tempfile.TemporaryDirectory(prefix="timerd-fuzz-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.hostile.guided", name, folder, f"-seed={seed}",
             f"-max_total_time={max(1, round(seconds))}", f"-timeout={SLOW_S}", f"-rss_limit_mb={MEMORY_MIB_MAX}",
             "-max_len=8192", "-print_final_stats=1", f"-artifact_prefix={folder}/"],
            capture_output=True, text=True, errors="replace",
        )  # fmt: skip
        stats = re.search(r"number_of_executed_units: *([0-9]+)", done.stderr)
        crashed = [file for file in Path(folder).iterdir() if re.match("crash|timeout|oom", file.name)]
        failures = [(file.read_bytes(), (done.stdout + done.stderr)[-3000:]) for file in crashed]
        if done.returncode != 0 and not failures:
            failures = [(b"", (done.stdout + done.stderr)[-3000:])]
        return int(stats[1]) if stats else 0, failures


def main(name: str, folder: str, options: list[str]) -> None:
    """Fuzz until libFuzzer says that it is enough."""
    import atheris

    with atheris.instrument_imports(include=MODULES):
        from tests.hostile.fuzz import TOKENS
        from tests.hostile.targets import TARGETS

    target = TARGETS[name]
    corpus = Path(folder) / "corpus"
    corpus.mkdir()
    for number, data in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(data)
    words = Path(folder) / "words"
    words.write_text("".join(f'"{"".join(f"{chr(92)}x{b:02x}" for b in t)}"\n' for t in TOKENS if len(t) < 100))
    atheris.Setup([sys.argv[0], *options, f"-dict={words}", os.fspath(corpus)], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
