"""Commands about dead letters, the timers that were given up: `timerd dead list|replay|purge`."""

from typing import Annotated, Any, Final

import typer

from timerd.cli.call import DEFAULT_URL, CaFile, Key, Server, Url, misuse, show
from timerd.cli.timers import id_names

app = typer.Typer(help="List, replay or purge dead letters.", no_args_is_help=True, rich_markup_mode=None)
Ids = Annotated[list[str] | None, typer.Argument(help="Ids of dead letters.")]
AllOf = Annotated[str | None, typer.Option("--type", help="All dead letters of this type, instead of ids.")]
_NAMES: Final = {"/type": "--type"}


@app.command("list")
def list_command(
    type: Annotated[str | None, typer.Option("--type", help="Only of this type.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca_file: CaFile = None,
) -> None:
    """List dead letters, one JSON object a line."""
    Server(url, key, ca_file).pages("/v1/dead-letters", "dead_letters", limit, {"type": "--type"}, type=type)


@app.command("replay")
def replay_command(
    ids: Ids = None, type: AllOf = None, url: Url = DEFAULT_URL, key: Key = None, ca_file: CaFile = None
) -> None:
    """Let dead letters live again, as new generations that are due by their old fire times. Prints how many."""
    _show_done(Server(url, key, ca_file), "replay", ids, type)


@app.command("purge")
def purge_command(
    ids: Ids = None, type: AllOf = None, url: Url = DEFAULT_URL, key: Key = None, ca_file: CaFile = None
) -> None:
    """Forget dead letters for ever. Prints how many."""
    _show_done(Server(url, key, ca_file), "purge", ids, type)


def _show_done(server: Server, what: str, ids: list[str] | None, type: str | None) -> None:
    answer = server.call("POST", f"/v1/dead-letters:{what}", *_chosen(ids, type))
    show(answer)
    server.note_type(type, any(answer.values()))


def _chosen(ids: list[str] | None, type: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The body, and what the command line calls its parts."""
    if bool(ids) == (type is not None):
        misuse("give ids, or --type for all of a type")
    return ({"ids": ids}, id_names(ids)) if ids else ({"type": type}, _NAMES)
