"""Commands about API keys: `timerd keys create|list|revoke`. They need a key with the scope `admin`."""

from typing import Annotated, Any, Final

import typer

from timerd.cli.call import DEFAULT_URL, CaFile, Key, Server, Url, number, segment, show

app = typer.Typer(help="Make, list or revoke API keys.", no_args_is_help=True, rich_markup_mode=None)

_NAMES: Final = {
    "/name": "--name",
    "/scopes": "--scope",
    "/expires_in": "--expires",
    "/max_per_second": "--max-per-second",
}


@app.command("create")
def create_command(
    name: Annotated[str, typer.Option(help="A label; several keys may have the same.")],
    scope: Annotated[list[str], typer.Option(help="arm, read or admin (which has all of them); repeatable.")],
    expires: Annotated[
        str | None, typer.Option(help='How long it lives: "36h", "90d".  [default: until it is revoked]')
    ] = None,
    max_per_second: Annotated[
        float | None, typer.Option(help="Timers that it may name in a second.  [default: no limit]")
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca_file: CaFile = None,
) -> None:
    """Make a key and print it, with its text in `key`: this is the only time that it is shown."""
    body: dict[str, Any] = {"name": name, "scopes": scope}
    if expires is not None:
        body["expires_in"] = number(expires)
    if max_per_second is not None:
        body["max_per_second"] = max_per_second
    show(Server(url, key, ca_file).call("POST", "/v1/keys", body, _NAMES))


@app.command("list")
def list_command(url: Url = DEFAULT_URL, key: Key = None, ca_file: CaFile = None) -> None:
    """List all keys but the bootstrap key, without their texts."""
    show(Server(url, key, ca_file).call("GET", "/v1/keys"))


@app.command("revoke")
def revoke_command(
    id: Annotated[str, typer.Argument(help="Its id: the 8 characters behind td_.")],
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca_file: CaFile = None,
) -> None:
    """Revoke a key, at once. Prints nothing."""
    Server(url, key, ca_file).call("DELETE", f"/v1/keys/{segment(id)}")
