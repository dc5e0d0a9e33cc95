"""Preload libraries: the C sources beside this file, compiled when a test needs them.

It knows the compiler and nothing of what the libraries do.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest


def compiler() -> str | None:
    """A C compiler, if there is one (Debian: gcc and libc6-dev)."""
    return shutil.which("gcc") or shutil.which("cc")


def build(name: str, directory: Path) -> Path:
    """The shared library of `<name>.c`, made in `directory`. Skips the test where no C compiler is."""
    found = compiler()
    if found is None:
        pytest.skip(f"{name}.c is compiled when it is needed, and there is no C compiler (gcc and libc6-dev)")
    library = directory / f"{name}.so"
    source = Path(__file__).parent / f"{name}.c"
    command = [found, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


def together(*environments: Mapping[str, str]) -> dict[str, str]:
    """One environment of several libraries'."""
    libraries = [each["LD_PRELOAD"] for each in environments if "LD_PRELOAD" in each]
    joined = {name: value for each in environments for name, value in each.items()}
    return {**joined, "LD_PRELOAD": ":".join(libraries)} if libraries else joined
