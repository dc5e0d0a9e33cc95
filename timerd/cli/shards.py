"""The command about shards: `timerd shards`, and how many there are to be."""

from typing import Annotated

import typer

from timerd.cli.call import DEFAULT_URL, CaFile, Key, Server, Url, show


def shards_command(
    scale: Annotated[int | None, typer.Option(help="Have so many from now on.", min=1, max=1024)] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca_file: CaFile = None,
) -> None:
    """Show the shards, one JSON object a line; or change their number while everything runs."""
    server = Server(url, key, ca_file)
    if scale is not None:
        show(server.call("POST", "/v1/shards:scale", {"shards": scale}), None)
        return
    for shard in server.call("GET", "/v1/shards")["shards"]:
        show(shard, None)
