"""The pages under docs/ that tell what options, states and counters there are: they name each, with its default."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from timerd_api.exposition import (
    CLUSTER_METRICS,
    DROPPED,
    LAG,
    NODE_METRICS,
    OLDEST_DUE,
    SHARD_TIMERS,
    TYPE_METRICS,
)
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


def metrics() -> set[str]:
    """Every metric that there is, as it is scraped."""
    of_types = [(each.name, each.counts) for each in TYPE_METRICS]
    others = [(each.name, each.counts) for each in (*NODE_METRICS, *CLUSTER_METRICS)]
    plain = {LAG[0], SHARD_TIMERS[0], OLDEST_DUE[0], DROPPED[0] + "_total"}
    return plain | {name + "_total" * counts for name, counts in (*of_types, *others)}


def test_alerts_are_on_metrics_that_there_are() -> None:
    text = (DOCS / "operations.md").read_text() + (DOCS / "cluster.md").read_text()
    assert set(re.findall(r"timerd_[a-z_]+", text)) - {"timerd_client"} <= metrics()


def test_every_metric_is_told_of_once() -> None:
    rows = re.findall(r"^\| (`timerd_.+?) \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"`(timerd_[a-z_]+)`", row)]
    assert sorted(told) == sorted(metrics())
