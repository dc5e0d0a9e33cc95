"""All commands in one tree."""

from typing import Annotated

import typer

from timerd import __version__
from timerd.cli import bench, dead, demo, keys, logs, serving, shards, timers, types

app = typer.Typer(
    name="timerd",
    help="A standalone, durable timer service.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # it takes "[default: 10s]" for markup, and leaves it out
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
app.command("dev", help=serving.DEV_HELP)(serving.dev_command)
app.command("demo")(demo.demo_command)
app.command("bench")(bench.bench_command)
app.command("arm")(timers.arm_command)
app.command("get")(timers.get_command)
app.command("cancel")(timers.cancel_command)
app.command("list")(timers.list_command)
app.command("fire")(timers.fire_command)
app.command("types")(types.types_command)
app.add_typer(types.app, name="type")
app.add_typer(dead.app, name="dead")
app.add_typer(keys.app, name="keys")
app.command("stats")(timers.stats_command)
app.command("shards")(shards.shards_command)
app.command("nodes")(shards.nodes_command)
app.add_typer(logs.app, name="log")
