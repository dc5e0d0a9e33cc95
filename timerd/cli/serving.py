"""`timerd serve`: flags, environment and file become one checked configuration."""

import os
from typing import Annotated, Any

import typer

from timerd import serve
from timerd.config import ConfigError, read_config


def serve_command(
    config: Annotated[str | None, typer.Option(help="TOML file with any of the options below, and types.")] = None,
    data: Annotated[str | None, typer.Option(help="Directory that holds everything.  [default: timerd-data]")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for any.  [default: 8470]")] = None,
    node: Annotated[str | None, typer.Option(help="This node's name.  [default: timerd]")] = None,
    shards: Annotated[
        int | None, typer.Option(help="Shards of a new data directory; fixed afterwards.  [default: 8]")
    ] = None,
    grace: Annotated[
        float | None, typer.Option(help="Seconds that open deliveries get at a stop.  [default: 30]")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="Bearer key; better given as TIMERD_API_KEY.")] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="Listen beyond loopback without a key.")] = None,
    tls_cert: Annotated[str | None, typer.Option(help="PEM certificate chain.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="PEM private key.")] = None,
    segment_bytes: Annotated[
        int | None, typer.Option(help="Size of a log segment.  [default: 16 MiB, less on a small disk]")
    ] = None,
    max_body: Annotated[int | None, typer.Option(help="Largest request body in bytes.  [default: 16 MiB]")] = None,
    max_payload: Annotated[int | None, typer.Option(help="Largest payload in bytes.  [default: 64 KiB]")] = None,
    max_horizon: Annotated[str | None, typer.Option(help="How far ahead may be armed.  [default: 3660d]")] = None,
    max_retry_after: Annotated[
        str | None, typer.Option(help="Longest Retry-After that is honoured.  [default: 1h]")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.  [default: info]")] = None,
) -> None:
    """Serve until SIGTERM. Options are also TIMERD_<NAME> and keys in the file: flag over environment over file."""
    flags: dict[str, Any] = {name: value for name, value in locals().items() if name != "config"}
    try:
        settings = read_config(flags, os.environ, config or os.environ.get("TIMERD_CONFIG"))
    except ConfigError as error:
        typer.echo(f"timerd: {error}", err=True)
        raise typer.Exit(serve.EXIT_CONFIG) from None
    raise typer.Exit(serve.run(settings))
