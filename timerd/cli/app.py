"""All commands in one tree."""

from typing import Annotated

import typer

from timerd import __version__
from timerd.cli import bench, demo, logs, serving, timers

app = typer.Typer(
    name="timerd",
    help="A standalone, durable timer service.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"timerd {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A standalone, durable timer service."""


app.command("serve")(serving.serve_command)
app.command("demo")(demo.demo_command)
app.command("bench")(bench.bench_command)
app.command("arm")(timers.arm_command)
app.command("get")(timers.get_command)
app.command("cancel")(timers.cancel_command)
app.command("list")(timers.list_command)
app.command("types")(timers.types_command)
app.command("stats")(timers.stats_command)
app.add_typer(logs.app, name="log")
