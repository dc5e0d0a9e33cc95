"""What a run looks like: a table that moves in a terminal, a line every few seconds anywhere else.

It only shows. Figures come in as a value, and what it doesn't know yet it leaves open.
"""

from collections import Counter
from typing import NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .judge import EXAMPLES_SHOWN, Verdict, percentile

PLAIN_EVERY_S = 5.0
"""A log wants less than a table that overwrites itself."""


class Figures(NamedTuple):
    elapsed_s: float
    timers_live: int | None
    due: int | None
    polls_per_s: float
    batches: int | None
    batch_size_mean: float | None
    lag_p50_ms: float | None
    lag_p99_ms: float | None
    lag_max_ms: float | None
    polls: int
    failed: int
    unmodified: int
    new_entries: int
    note: str
    """The last thing that happened beside polling."""


class Screen:
    def __init__(self, console: Console, title: str, seconds: float | None) -> None:
        self._console = console
        self._title = title
        self._seconds = seconds
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._plain_at = 0.0
        self._note = ""

    def __enter__(self) -> "Screen":
        if self._live:
            self._live.__enter__()
        else:
            self._console.print(self._title, highlight=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)

    def show(self, figures: Figures) -> None:
        if self._live:
            self._live.update(self._table(figures), refresh=True)
            return
        if figures.note != self._note:
            self._note = figures.note
            self._console.print(figures.note, highlight=False)
        if figures.elapsed_s >= self._plain_at:
            self._plain_at = figures.elapsed_s + PLAIN_EVERY_S
            self._console.print(_line(figures), highlight=False, soft_wrap=True)

    def _table(self, figures: Figures) -> Group:
        table = Table(title=self._title, title_justify="left", show_header=False, min_width=56)
        table.add_column(style="dim")
        table.add_column(justify="right")
        of = f" of {self._seconds:g}" if self._seconds else ""
        for name, value in (
            ("seconds", f"{figures.elapsed_s:.0f}{of}"),
            ("timers live / due", f"{_count(figures.timers_live)} / {_count(figures.due)}"),
            ("polls a second", f"{figures.polls_per_s:.1f}"),
            ("batches, mean size", f"{_count(figures.batches)}, {_number(figures.batch_size_mean)}"),
            ("lag p50 / p99 / max", _lag(figures)),
            ("polls (304 / failed)", f"{figures.polls:,} ({figures.unmodified:,} / {figures.failed:,})"),
            ("new entries", f"{figures.new_entries:,}"),
        ):
            table.add_row(name, value)
        return Group(table, Text(figures.note, style="yellow"))


def _line(figures: Figures) -> str:
    return (
        f"{figures.elapsed_s:5.1f} s  live {_count(figures.timers_live)}  due {_count(figures.due)}"
        f"  polls/s {figures.polls_per_s:.1f}  batches {_count(figures.batches)}"
        f" of {_number(figures.batch_size_mean)}  lag p50/p99/max {_lag(figures)}"
        f"  polls {figures.polls} (304: {figures.unmodified}, failed: {figures.failed})"
        f"  new entries {figures.new_entries}"
    )


def show_verdict(
    console: Console, verdict: Verdict, judged_by: str, outcomes: Counter[str], *, cut_short: bool
) -> None:
    """The summary: the figures, then each check and what broke it."""
    lags = verdict.lags_ms
    p50, p99, most = percentile(lags, 0.5), percentile(lags, 0.99), lags[-1] if lags else 0
    kinds = ", ".join(f"{name} {count:,}" for name, count in outcomes.most_common())
    lines = [
        "",
        f"[bold]Summary[/bold], judged by {judged_by}",
        f"  polls      {verdict.polls:,} ({kinds})",
        f"  a feed     {verdict.fewest} to {verdict.most} polls",
        f"  lag        p50 {p50} ms, p99 {p99} ms, max {most} ms",
    ]
    for check in verdict.checks:
        if check.violations:
            mark, count = "[red]FAILED[/red]    ", f": {len(check.violations)} violations"
        else:
            mark, count = "[green]ok[/green]        " if check.judged else "[yellow]not judged[/yellow]", ""
        lines.append(f"  {mark}  {check.claim}{count}")
        lines += (f"                {escape(example)}" for example in check.violations[:EXAMPLES_SHOWN])
    until = ", until it was interrupted" if cut_short else ""
    if verdict.passed:
        lines.append(f"[bold green]passed[/bold green]{until}")
    elif verdict.failed:
        lines.append(f"[bold red]failed[/bold red]{until}")
    else:
        ended = "was interrupted" if cut_short else "ended"
        lines.append(f"[bold yellow]not judged[/bold yellow]: it {ended} before every feed had been due twice")
    console.print("\n".join(lines), highlight=False, soft_wrap=True)


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _lag(figures: Figures) -> str:
    lags = (figures.lag_p50_ms, figures.lag_p99_ms, figures.lag_max_ms)
    return " / ".join("-" if lag is None else f"{lag:.0f}" for lag in lags) + " ms"
