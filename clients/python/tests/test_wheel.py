"""The wheel holds one top-level package, typed, and what it imports is what it says it needs."""

import subprocess
import sys
import zipfile
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def test_the_wheel_holds_timerd_client_alone(tmp_path: Path) -> None:
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(tmp_path / run.stdout.split()[-1]) as wheel:
        names = wheel.namelist()
        metadata = next(wheel.read(name).decode() for name in names if name.endswith("/METADATA"))
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"timerd_client"}
    assert "timerd_client/py.typed" in names
    needs = {
        line.split(":")[1].split("<")[0].split(">")[0].strip()
        for line in metadata.splitlines()
        if "Requires-Dist" in line and "extra ==" not in line
    }
    assert needs == {"httpx", "msgspec", "sniffio"}
    extras = [line for line in metadata.splitlines() if "Requires-Dist" in line and "extra ==" in line]
    assert [line.partition(": ")[2].partition("<")[0] for line in extras] == ["xxhash"], "of routing alone"


def test_it_imports_nothing_else_and_not_the_server() -> None:
    code = (
        "import sys; before = set(sys.modules); import timerd_client; "
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    source = str(PROJECT / "src")
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": source}, capture_output=True, text=True, check=True
    )
    assert not {"timerd", "timerd_api", "aiohttp", "starlette", "uvicorn"} & set(run.stdout.split())
