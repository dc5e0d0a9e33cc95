"""The capacity model over the constants that were measured: what a load takes, or what so many nodes bear.

    python -m benchmarks model --rate 1e6 --pending 1e8     how many nodes, shards, servers, how much disk and memory
    python -m benchmarks model --nodes 3 --shards 24        what rate they bear
    python -m benchmarks model --take FIGURES.json          put the figures of `python -m benchmarks NAME --json
                                                            FIGURES.json` in place of the constants

constants.json has each constant with the benchmark and the figure that it comes from; nothing else has them. What
docs/capacity.md shows stands there under the command that printed it, and is renewed with the constants.
"""

import argparse
import math
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.capacity import SHARDS_MAX, Impossible, Load, Plan, bearable, plan
from benchmarks.figure import Figure

FILE: Final = Path(__file__).parent / "constants.json"
PAGE: Final = Path(__file__).parents[1] / "docs" / "capacity.md"


class Constant(msgspec.Struct, omit_defaults=True):
    """One number, and where it comes from."""

    name: str
    value: float
    unit: str
    benchmark: str
    """The name of a benchmark here; or a file of this project that says why it is so."""
    figure: str
    """What that benchmark calls it; or what the file does."""
    scale: float = 1.0
    """The figure, in the unit here."""
    when: str = ""
    """The day, and what the machine was like."""


def read(path: Path = FILE) -> list[Constant]:
    """All constants."""
    return msgspec.json.decode(path.read_bytes(), type=list[Constant])


def values(constants: list[Constant]) -> dict[str, float]:
    """By name, with those that follow from two figures: what a message and a KiB cost a NATS server."""
    found = {each.name: each.value for each in constants}
    small, large = found.pop("nats_turn_4k"), found.pop("nats_turn_512k")
    found["nats_kib"] = max(0.0, large - small) / (512 - 4)
    found["nats_message"] = small - 4 * found["nats_kib"]
    return found


def take(constants: list[Constant], figures: list[Figure], when: str) -> list[str]:
    """Put figures in place of the constants that come from them; a line for each."""
    medians = {figure.name: figure.median for figure in figures}
    said = []
    for each in constants:
        if each.figure in medians:
            value = max(0.0, medians[each.figure] * each.scale)
            said.append(f"{each.name}: {each.value:g} -> {value:g} {each.unit}")
            each.value, each.when = float(f"{value:.4g}"), when
    return said


def main(arguments: list[str]) -> None:
    given = _parser().parse_args(arguments)
    constants = read()
    if given.take:
        for path in given.take:
            figures = msgspec.json.decode(path.read_bytes(), type=list[Figure])
            print("\n".join(take(constants, figures, given.when)))
        FILE.write_bytes(msgspec.json.format(msgspec.json.encode(constants), indent=1) + b"\n")
        PAGE.write_text(renewed(PAGE.read_text(), constants))
        return
    try:
        print(answer(arguments, constants))
    except Impossible as error:
        sys.exit(f"not to be had: {error}")


def answer(arguments: list[str], constants: list[Constant]) -> str:
    """What the command prints. Raises Impossible."""
    given = _parser().parse_args(arguments)
    if given.constants:
        lines = ["| constant | value | from | |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{each.name}` | {each.value:,.10g} {each.unit} | `{each.benchmark}`: {each.figure} | {each.when} |"
            for each in constants
        ]
        return "\n".join(lines)
    rate = 1e6 if given.rate is None else given.rate
    pending = given.pending
    if pending is None:
        pending = 0 if given.nodes else 60 * rate
    load = Load(
        rate, pending, given.rearmed, given.payload, given.batch, given.request, given.routed, given.share,
        given.spare, given.replicas, given.nats_cores, given.shards,
    )  # fmt: skip
    if given.nodes:
        load, found = bearable(load, values(constants), given.nodes)
        return f"{given.nodes} nodes bear {table(load, found)}"
    return table(load, plan(load, values(constants)))


def renewed(page: str, constants: list[Constant]) -> str:
    """The page, with every table under `<!-- python -m benchmarks model ... -->` as that command prints it now."""

    def shown(found: re.Match[str]) -> str:
        return f"{found[1]}\n{answer(found[2].split(), constants)}\n<!-- end -->"

    return re.sub(r"(<!-- python -m benchmarks model(.*?) -->)\n.*?<!-- end -->", shown, page, flags=re.S)


def _float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _checked(read: Callable[[str], float], fits: Callable[[float], bool], must: str) -> Callable[[str], Any]:
    """For argparse, which says the option's name before it."""

    def check(text: str) -> float:
        value = read(text)
        if not fits(value):  # which nothing that is no number does
            raise argparse.ArgumentTypeError(f"must be {must}, not {text}")
        return value

    return check


def _whole(least: int, most: float = math.inf, must: str = "") -> Callable[[str], Any]:
    return _checked(
        lambda text: int(_float(text)) if _float(text).is_integer() else math.nan,
        lambda value: least <= value <= most,
        must or f"a whole number of {least} or more",
    )


def _parser() -> argparse.ArgumentParser:
    above_0 = _checked(_float, lambda value: value > 0, "above 0")
    least_0 = _checked(_float, lambda value: value >= 0, "0 or more")
    part = _checked(_float, lambda value: 0 <= value <= 1, "from 0 to 1")
    share = _checked(_float, lambda value: 0 < value <= 1, "above 0, and at most 1")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--rate", type=above_0, metavar="N", help="fires a second (1e6): what does it take?")
    asked.add_argument("--nodes", type=_whole(1), metavar="N", help="nodes, a core each: what rate do they bear?")
    load = parser.add_argument_group("the load")
    load.add_argument("--pending", type=least_0, metavar="N", help="timers that wait (60 s of the rate)")
    load.add_argument(
        "--rearmed", type=part, default=1.0, metavar="PART", help="of fires that the answer arms again (1); the rest "
        "is armed over HTTP",
    )  # fmt: skip
    load.add_argument("--payload", type=_whole(0), default=0, metavar="BYTES", help="of JSON (0)")
    load.add_argument("--batch", type=_whole(1), default=800, metavar="N", help="timers in a delivery (800)")
    load.add_argument(
        "--request", type=_whole(1), default=1_000, metavar="N", help="timers in a request that arms (1000)"
    )
    load.add_argument("--routed", action="store_true", help="clients send each timer to the node that has its shard")
    means = parser.add_argument_group("what bears it")
    means.add_argument(
        "--shards",
        type=_whole(1, SHARDS_MAX, f"from 1 to {SHARDS_MAX}"),
        metavar="N",
        help="four a node, 24 at least",
    )
    means.add_argument(
        "--share", type=share, default=0.6, metavar="PART", help="how busy nodes, NATS servers and disks may be (0.6)"
    )
    means.add_argument("--spare", type=_whole(0), default=1, metavar="N", help="nodes that may be missing (1)")
    means.add_argument("--replicas", type=int, choices=(1, 3, 5), default=3, help="of each stream (3)")
    means.add_argument("--nats-cores", type=_whole(1), default=4, metavar="N", help="cores of each NATS server (4)")
    figures = parser.add_argument_group("its constants")
    figures.add_argument("--constants", action="store_true", help="show them, and where they come from")
    figures.add_argument(
        "--take", type=Path, nargs="+", metavar="FIGURES.json", help="renew constants and page, no more"
    )
    figures.add_argument("--when", default=time.strftime("%Y-%m-%d"), help="of the figures that are taken")
    return parser


def table(load: Load, found: Plan) -> str:
    """In Markdown."""
    armed = "all by the answer" if load.rearmed == 1 else f"{load.rearmed:.0%} by the answer, the rest over HTTP"
    forwarded = f"{found.forwarded:.0%} of arms are forwarded" if load.rearmed < 1 else ""
    missing = f"with {load.spare} missing"
    rows = [
        ("timerd nodes, a core each", f"{found.nodes}", f"{load.spare} of them may be missing"),
        ("shards", f"{found.shards}", "`--shards`, for good at the first start"),
        (
            "busiest node",
            f"{found.node_cores:.0%} of a core",
            f"{found.node_cores_short:.0%} with {load.spare} missing",
        ),
        ("all nodes", f"{found.cores:.1f} cores", forwarded),
        ("memory of a node", _size(found.memory), missing),
        ("messages", f"{found.messages:,.0f}/s", f"{found.timers_a_message:,.0f} timers each"),
        ("messages into a stream", f"{found.messages_a_stream:,.0f}/s", f"of {found.stream_limit:,.0f} one by one"),
        ("bytes to NATS", f"{_size(found.bytes)}/s", f"{_size(found.bytes_written)}/s on all disks"),
        ("NATS servers", f"{found.nats_servers}", f"{found.nats_cores:.1f} cores in all"),
        ("syncs of each server's disk", f"{found.syncs:,.0f}/s", ""),
        ("disk of each server", _size(found.disk), "at the most"),
        ("take-over after kill -9", f"{found.takeover_s:.0f} s", "of a node"),
        ("one node on files instead", f"{found.files_cores:.0%} of a core", _fits(load, found)),
    ]
    head = f"{load.rate:,.0f} fires a second, {load.pending:,.0f} pending, armed again {armed}, payload {load.payload}"
    lines = [head, "", "| what | how much | |", "| --- | --- | --- |"]
    return "\n".join(lines + [f"| {name} | {much} | {more} |" for name, much, more in rows])


def _fits(load: Load, found: Plan) -> str:
    return "would do" if found.files_cores <= load.share else "would not do"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
