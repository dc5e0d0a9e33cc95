"""The list of cases is complete: every case has its file, and a line in the README."""

import re
from pathlib import Path

HERE = Path(__file__).parent
CASES = {f"A{n:02}" for n in range(1, 28)}


def test_every_case_has_its_file_and_its_line() -> None:
    files = {file.name: file for file in HERE.glob("test_a[0-9]*.py")}
    assert {name[5:8].upper() for name in files} == CASES
    for name, file in files.items():
        assert file.read_text().startswith(f'"""{name[5:8].upper()}: '), f"{name} does not begin with its case"
    lines = re.findall(r"^\| (A\d\d) \| \[\w+\]\((\w+\.py)\) \| \S.*\. \|$", (HERE / "README.md").read_text(), re.M)
    assert {case for case, _ in lines} == CASES
    assert {name for _, name in lines} == files.keys()
