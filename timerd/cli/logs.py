"""`timerd log`: look at a data directory's log, check it, mend it. No running timerd is asked."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from timerd_storage import inspect as inspection
from timerd_storage import repair as mending

app = typer.Typer(
    help="Inspect, verify or repair the log of a data directory.", no_args_is_help=True, rich_markup_mode=None
)
Directory = Annotated[Path, typer.Argument(help="A data directory.", exists=True, file_okay=False)]


@app.command("inspect")
def inspect_command(directory: Directory) -> None:
    """Print segments, frames and records, where damage is and what it is taken for. Changes nothing."""
    raise typer.Exit(inspection.inspect(directory, sys.stdout))


@app.command("verify")
def verify_command(directory: Directory) -> None:
    """Read everything. Exit 0: a start would have all of it. 1: damaged. 2: no data directory. Changes nothing."""
    raise typer.Exit(inspection.verify(directory, sys.stdout))


@app.command("repair")
def repair_command(directory: Directory) -> None:
    """Cut a damaged log at its last good frame, after a copy was made. Says what is given up."""
    raise typer.Exit(mending.repair(directory, sys.stdout))
