"""The tree obeys its own rules: what the wheels hold, what must not be in them, and how long files are."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = [ROOT / "timerd", ROOT / "api", ROOT / "storage", ROOT / "cluster", ROOT / "clients/python/src"]
SOURCES = [path for package in PACKAGES for path in package.rglob("*.py")]


def top_level(project: Path, out: Path) -> set[str]:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(project)],
        check=True,
        capture_output=True,
    )
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name.split("/")[0] for name in archive.namelist()}
    return {name for name in names if not name.endswith(".dist-info")}


def test_the_wheel_holds_four_packages_and_nothing_else(tmp_path):
    assert top_level(ROOT, tmp_path) == {"timerd", "timerd_api", "timerd_storage", "timerd_cluster"}


def test_the_client_is_a_wheel_of_its_own(tmp_path):
    assert top_level(ROOT / "clients/python", tmp_path) == {"timerd_client"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree) or not tree.body, f"{path} opens with no docstring"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_nouns_and_of_a_size_to_read(path):
    assert path.stem not in {"utils", "util", "helpers", "common", "manager", "misc", "base"}
    lines = len(path.read_text().splitlines())
    assert lines <= 460, f"{path} has {lines} lines: does it still hold one idea?"


def test_assertions_are_on():
    assert __debug__, "assertions are part of the service: run without -O and PYTHONOPTIMIZE"


def test_the_image_keeps_assertions_on():
    assert "PYTHONOPTIMIZE" not in (ROOT / "Dockerfile").read_text()
