"""Figures: a value a round, the median of them, and how busy the machine was with others' work meanwhile."""

import os
import statistics
import time
from pathlib import Path

import msgspec

from benchmarks.server import SERVER_CORE, TICKS_A_SECOND, Server


class Figure(msgspec.Struct):
    """One quantity under one setting."""

    name: str
    unit: str
    values: list[float]
    others: float = 0.0
    """The median share of the server's core that others had."""

    @property
    def median(self) -> float:
        return statistics.median(self.values)


Round = dict[str, tuple[float, str]]
"""name -> (value, unit)"""


class Stopwatch:
    """Time, the server's CPU, and others' share of its core, from one moment to another."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._cpu = server.cpu_s()
        self._busy = _busy_s()
        self._begin = time.perf_counter()
        self.took_s = self.cpu_s = self.others = 0.0

    def stop(self) -> None:
        self.took_s = time.perf_counter() - self._begin
        self.cpu_s = self._server.cpu_s() - self._cpu
        self.others = max(0.0, (_busy_s() - self._busy - self.cpu_s) / self.took_s)


def gather(rounds: list[Round], others: list[float]) -> list[Figure]:
    """The figures that these rounds came to."""
    share = statistics.median(others) if others else 0.0
    return [Figure(name, unit, [each[name][0] for each in rounds], share) for name, (_, unit) in rounds[0].items()]


def show(figures: list[Figure]) -> str:
    """A table in Markdown."""
    lines = ["| figure | median | of | others on its core |", "| --- | --- | --- | --- |"]
    for each in figures:
        values = ", ".join(_number(value) for value in each.values)
        lines.append(f"| {each.name} | {_number(each.median)} {each.unit} | {values} | {each.others:.0%} |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _busy_s() -> float:
    """Seconds for which the server's core has been busy, with whatever."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{SERVER_CORE}":
            user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
            return (user + nice + system + irq + softirq + steal) / TICKS_A_SECOND
    return 0.0


def load() -> str:
    return f"{os.getloadavg()[0]:.2f}"
