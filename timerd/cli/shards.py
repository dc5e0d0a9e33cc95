"""The commands about shards and nodes: who has what, and how many shards there are to be."""

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


def nodes_command(url: Url = DEFAULT_URL, key: Key = None, ca_file: CaFile = None) -> None:
    """Show the nodes of a cluster, one JSON object a line: their addresses, and which shards each is to serve."""
    for node in Server(url, key, ca_file).call("GET", "/v1/nodes")["nodes"]:
        show(node, None)
