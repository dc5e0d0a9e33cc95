"""The pages under docs/ that tell what options, states and counters there are: they name each, with its default."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from timerd_api.exposition import TYPE_METRICS
from timerd_api.schema import ArmResultItem, MisfireBody, Mode, RetryBody, TimerState, TypeBody
from timerd_api.stats_schema import TypeStats

DOCS = Path(__file__).parents[2] / "docs"
NESTED = {"retry": RetryBody, "misfire": MisfireBody}


def options() -> dict[str, str]:
    """Every option of a type, and its default as it is written."""
    found = {}
    for prefix, struct in (("", TypeBody), *((f"{name}.", struct) for name, struct in NESTED.items())):
        for field in msgspec.structs.fields(struct):
            if field.name not in NESTED:
                default = field.default
                shown = "null" if default is None else f"{default:g}" if isinstance(default, float) else str(default)
                found[prefix + field.name] = shown if isinstance(default, str | int | float | None) else ""
    return found


@pytest.mark.parametrize(("name", "default"), options().items())
def test_types_tells_every_option_and_its_default(name: str, default: str) -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (.+?) \|", (DOCS / "types.md").read_text(), re.MULTILINE)
    shown = {option: text.strip("`") for option, text in rows}
    assert set(shown) == set(options())
    if default:
        assert shown[name] == default


def test_reference_tells_every_state_mode_status_and_counter() -> None:
    text = (DOCS / "reference.md").read_text()
    statuses = get_args(next(f.type for f in msgspec.structs.fields(ArmResultItem) if f.name == "status"))
    words = (*get_args(TimerState), *get_args(get_args(Mode)[0]), *statuses, *TypeStats.__struct_fields__)
    assert [word for word in words if f"`{word}`" not in text] == []


def test_alerts_are_on_metrics_that_there_are() -> None:
    text = (DOCS / "operations.md").read_text()
    known = {of_type.name + "_total" * of_type.counts for of_type in TYPE_METRICS}
    known |= {"timerd_lag_seconds", "timerd_oldest_due_timestamp_seconds", "timerd_log_disk_bytes"}
    assert set(re.findall(r"timerd_[a-z_]+", text)) <= known
