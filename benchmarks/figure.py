"""Figures: a value a round, the median of them, and how busy the machine was with others' work meanwhile."""

import os
import statistics
import time

import msgspec

from benchmarks.server import Server, busy_s


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


Round = dict[str, tuple[float, str, float]]
"""name -> (value, unit, share of the server's core that others had)"""


class Stopwatch:
    """Time, the server's CPU, and others' share of its core, from one moment to another."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._cpu = server.cpu_s()
        self._busy = busy_s()
        self._begin = time.perf_counter()
        self.took_s = self.cpu_s = self.others = 0.0

    def stop(self) -> None:
        self.took_s = time.perf_counter() - self._begin
        self.cpu_s = self._server.cpu_s() - self._cpu
        self.others = max(0.0, (busy_s() - self._busy - self.cpu_s) / self.took_s)


def gather(rounds: list[Round]) -> list[Figure]:
    """The figures that these rounds came to."""
    return [
        Figure(name, unit, [each[name][0] for each in rounds], statistics.median([each[name][2] for each in rounds]))
        for name, (_, unit, _) in rounds[0].items()
    ]


def show(figures: list[Figure]) -> str:
    """A table in Markdown."""
    lines = ["| figure | median | of | others on its core |", "| --- | --- | --- | --- |"]
    for each in figures:
        values = ", ".join(_number(value) for value in each.values)
        lines.append(f"| {each.name} | {_number(each.median)} {each.unit} | {values} | {each.others:.0%} |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def load() -> str:
    return f"{os.getloadavg()[0]:.2f}"
