"""Rounds of one scenario on one cluster: load, fault, recovery, and the comparison of everything with the book."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from tests.crash.kill import quantile
from tests.failover.cluster import Cluster
from tests.failover.load import Load
from tests.failover.scenarios import BOUNDS, REPEATS, SCENARIOS, UNFLAGGED, USUAL, Happened, Options, Stage
from tests.support.processor import Processor

DRAIN_S = 120
WARM_S = (2.0, 4.0)
AFTER_S = 2.0
SAID_MAX = 500
KINDS = ("lost", "early", "cancelled yet delivered", "finished, and delivered again", "came back", "changed",
         "generations", "chains broken", "bad answers", "books don't balance", "given up")  # fmt: skip
COUNTED = ("arms", "cancels", "fires", "re-arms", "duplicates", "flagged", "unflagged")

Say = Callable[[str], None]


class Report(msgspec.Struct):
    """What came of the rounds; those of several clusters add up."""

    scenario: str
    rounds: int = 0
    seconds: float = 0
    figures: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    wrong: list[str] = []
    logs: list[str] = []
    """The last lines of each node, when something was wrong."""

    def add(self, other: "Report") -> None:
        self.rounds += other.rounds
        self.seconds = max(self.seconds, other.seconds)
        for name, values in other.figures.items():
            self.figures.setdefault(name, []).extend(values)
        for name, count in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        self.wrong += other.wrong
        self.logs += other.logs

    def summary(self) -> str:
        """Some lines to print, and a row for docs/cluster.md."""
        counts = self.counts
        bounds = BOUNDS[self.scenario]
        lines = [
            f"{self.scenario}: {self.rounds} rounds in {self.seconds:.0f} s",
            f"acknowledged arms {counts.get('arms', 0)}, cancels {counts.get('cancels', 0)}; fires "
            f"{counts.get('fires', 0)}, re-arms in answers {counts.get('re-arms', 0)}",
            ", ".join(f"{kind} {counts.get(kind, 0)}" for kind in KINDS),
            f"duplicates {counts.get('duplicates', 0)}, flagged {counts.get('flagged', 0)}, "
            f"not flagged {counts.get('unflagged', 0)}",
        ]
        for name, values in self.figures.items():
            bound = f" (at most {bounds[name]:g})" if name in bounds else ""
            lines.append(f"{name}: p50 {quantile(values, 0.5):.2f}, max {max(values, default=0):.2f}{bound}")
        return "\n".join(lines)


async def failover_rounds(
    home: Path,
    scenario: str,
    rounds: int,
    seed: int,
    *options: str,
    shards: int = 12,
    nodes: int = 3,
    servers: int = 3,
    times: Options = USUAL,
    slower: float = 1.0,
    say: Say = print,
) -> Report:
    """Run them, to the first in which the book finds a fault. A bound that is broken (by `slower`) ends nothing."""
    rng = Random(seed)
    report = Report(scenario)
    began = time.monotonic()
    cluster = Cluster(home, *options, nodes=nodes, servers=servers, shards=shards, gated=scenario == "partition")
    load = Load(cluster, rng)
    stage = Stage(cluster, load, rng, times)
    async with Processor(load.answer) as processor:
        try:
            async with cluster:
                say(f"{nodes} nodes, {servers} servers, {shards} shards, ready in {time.monotonic() - began:.1f} s")
                await load.begin(processor.url)
                running = asyncio.create_task(load.run())
                try:
                    while report.rounds < rounds and not load.book.wrong:
                        say(await _round(stage, scenario, processor, report, slower))
                    if not load.book.wrong:
                        await _end(stage)
                finally:
                    running.cancel()
        except (AssertionError, TimeoutError) as error:
            load.book.fault("given up", f"{type(error).__name__} {str(error)[-SAID_MAX:]}")
        report.wrong += dict.fromkeys([*load.book.wrong, *cluster.complaints()])
    if report.wrong:
        report.logs = [
            f"{name} {line.rstrip()}" for name, node in cluster.nodes.items() for line in (node.stderr + node.log)
        ]
    report.counts = {kind: load.book.counts[kind] for kind in (*KINDS, *COUNTED)}
    report.seconds = time.monotonic() - began
    return report


async def _round(stage: Stage, scenario: str, processor: Processor, report: Report, slower: float) -> str:
    cluster, load, book = stage.cluster, stage.load, stage.load.book
    before = book.acknowledged
    book.new_round()
    await asyncio.sleep(stage.rng.uniform(*WARM_S))
    happened = await SCENARIOS[scenario](stage)
    await asyncio.sleep(AFTER_S)
    await load.pause()
    await cluster.settled()
    there = await _compare(stage)
    unflagged = _judge_repeats(stage, happened)
    happened.figures[REPEATS] = len(book.repeats)
    happened.figures[UNFLAGGED] = unflagged
    report.rounds += 1
    for name, value in happened.figures.items():
        report.figures.setdefault(name, []).append(value)
        bound = BOUNDS[scenario].get(name)
        if bound is not None and value > bound * slower:
            report.wrong.append(f"round {report.rounds}: {name} {value:.2f}, at most {bound:g}: {happened.what}")
    processor.deliveries.clear()
    load.go_on()
    figures = ", ".join(f"{name} {value:.2f}".replace(".00", "") for name, value in happened.figures.items())
    return (
        f"round {report.rounds}: {happened.what}: {figures}; {book.acknowledged - before} acknowledged, "
        f"{book.refusals} not, {there} there, {len(book.wrong) + len(report.wrong)} wrong"
    )


def _judge_repeats(stage: Stage, happened: Happened) -> int:
    """How many came without a flag. What was finished before the fault, or due only after it, may not come again."""
    unflagged = 0
    begin, end = happened.woken
    for repeat in stage.load.book.repeats:
        unflagged += not repeat.flagged
        if not repeat.excused(happened.begin, happened.effect_s):
            # A request that had left before the pause arrives when it ends; what it holds was due by the pause.
            if repeat.fire_at <= happened.begin and begin <= repeat.at <= end:
                continue
            stage.load.book.fault("finished, and delivered again", f"{repeat}; fault at {happened.begin:.3f}")
    return unflagged


async def _compare(stage: Stage) -> int:
    """Everything that is there with the book; how much that is."""
    node = stage.cluster.nodes[stage.rng.choice(stage.cluster.running)]
    listed = {timer["id"]: timer for timer in await node.list()}
    stage.load.book.settle(listed)
    await _balance(stage)
    return len(listed)


async def _balance(stage: Stage) -> None:
    """armed + revived = fired + cancelled + replaced + dead + dropped + live, of each type, over all nodes."""
    node = stage.cluster.nodes[stage.rng.choice(stage.cluster.running)]
    status, answer = await node.request("GET", "/v1/stats")
    assert status == 200, answer
    for name, t in answer["types"].items():
        dropped = sum(t["dropped"].values()) if isinstance(t["dropped"], dict) else int(t["dropped"])
        ended = t["fired"] + t["cancelled"] + t["replaced"] + t["dead"] + dropped + t["live"]
        if t["armed"] + t["revived"] != ended:
            stage.load.book.fault("books don't balance", f"{name}: {t}")


async def _end(stage: Stage) -> None:
    """All nodes are killed: what only they knew is gone. Then everything is made due, and everything arrives."""
    load, cluster = stage.load, stage.cluster
    await load.pause()
    for node in cluster.nodes.values():
        node.kill()
    await asyncio.gather(*(cluster.restart(name) for name in cluster.nodes))
    await cluster.settled()
    await _compare(stage)
    await load.close()
    node = cluster.nodes[cluster.running[0]]

    async def nothing_is_left() -> bool:
        status, answer = await node.request("GET", "/v1/stats")
        return status == 200 and all(t["live"] == 0 for t in answer["types"].values())

    await node.until(nothing_is_left, DRAIN_S)
    for id in load.book.unfired():
        load.book.fault("lost", f"{id}: never received")
    await _balance(stage)
