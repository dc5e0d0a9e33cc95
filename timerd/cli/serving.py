"""`timerd serve` and `timerd dev`: flags, environment and file become one checked configuration."""

import os
import tempfile
from collections.abc import Mapping
from functools import wraps
from typing import Annotated, Any, Final

import typer

from timerd import serve
from timerd.config import Config, ConfigError, read_config

DEV_HELP: Final = (
    "Serve on a virtual clock, which stands still until POST /v1/clock:advance turns it: to try out, and to test, what "
    "happens in sixty days. The options are those of serve, but for --data: without it everything is gone at the end."
)


def serve_command(
    config: Annotated[str | None, typer.Option(help="TOML file with any of the options below, and types.")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Directory that holds everything.  [default: timerd-data; of dev a temporary one]"),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for any.  [default: 8470]")] = None,
    node: Annotated[
        str | None, typer.Option(help="This node's name.  [default: timerd; in a cluster the host's]")
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(help="Of a new data directory, and a floor later; of a new cluster, for good.  [default: 8; 24]"),
    ] = None,
    shard_capacity: Annotated[
        int | None, typer.Option(help="Timers of a shard; beyond 80 % there will be more shards.  [default: 100000]")
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
    cluster: Annotated[
        str | None,
        typer.Option(help="NATS servers that hold everything instead of --data, like nats://a:4222,nats://b:4222."),
    ] = None,
    cluster_prefix: Annotated[
        str | None, typer.Option(help="What the names of its streams begin with.  [default: timerd]")
    ] = None,
    cluster_replicas: Annotated[
        int | None, typer.Option(help="On how many of the servers each is kept: 1, 3 or 5.  [default: 3]")
    ] = None,
    cluster_lease: Annotated[
        float | None, typer.Option(help="Seconds that a shard of a node that died waits.  [default: 5]")
    ] = None,
    cluster_address: Annotated[
        str | None,
        typer.Option(help="URL at which the other nodes reach this one.  [default: made of --host and --port]"),
    ] = None,
    cluster_new_catalog: Annotated[
        bool | None,
        typer.Option("--cluster-new-catalog", help="Begin another catalogue for logs that have lost theirs; once."),
    ] = None,
    cluster_new_shard: Annotated[
        list[int] | None,
        typer.Option(help="Begin this shard without a timer, whose streams are lost; once; repeatable."),
    ] = None,
    cluster_secret: Annotated[
        str | None,
        typer.Option(
            help="What nodes know each other by; better given as TIMERD_CLUSTER_SECRET.  [default: made once]"
        ),
    ] = None,
    max_body: Annotated[int | None, typer.Option(help="Largest request body in bytes.  [default: 16 MiB]")] = None,
    max_payload: Annotated[int | None, typer.Option(help="Largest payload in bytes.  [default: 64 KiB]")] = None,
    max_horizon: Annotated[str | None, typer.Option(help="How far ahead may be armed.  [default: 3660d]")] = None,
    max_retry_after: Annotated[
        str | None, typer.Option(help="Longest Retry-After that is honoured.  [default: 1h]")
    ] = None,
    callback_allow: Annotated[
        list[str] | None,
        typer.Option(help="Network that callbacks may go to though it is not public, like 10.1.0.0/16; repeatable."),
    ] = None,
    callback_ca: Annotated[
        str | None, typer.Option(help="PEM file of authorities that callbacks trust beside the system's.")
    ] = None,
    callback_cert: Annotated[
        str | None, typer.Option(help="PEM certificate chain that callbacks show to who asks for one.")
    ] = None,
    callback_key: Annotated[str | None, typer.Option(help="Its PEM private key.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.  [default: info]")] = None,
) -> None:
    """Serve until SIGTERM. Options are also TIMERD_<NAME> and keys in the file: flag over environment over file."""
    raise typer.Exit(serve.run(_read(locals(), {})))


@wraps(serve_command)
def dev_command(**options: Any) -> None:
    """Serve by a clock that stands still until it is turned."""
    with tempfile.TemporaryDirectory(prefix="timerd-dev-") as scratch:
        raise typer.Exit(serve.run(_read(options, {"data": scratch}), virtual=True))


def _read(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Config:
    flags = {name: value for name, value in options.items() if name != "config"}
    try:
        return read_config(flags, os.environ, options["config"] or os.environ.get("TIMERD_CONFIG"), defaults)
    except ConfigError as error:
        typer.echo(f"timerd: {error}", err=True)
        raise typer.Exit(serve.EXIT_CONFIG) from None
