"""Commands about types: `timerd types`, and `timerd type put|get|pause|resume|delete`."""

from typing import Annotated, Any, Final

import typer

from timerd.cli import condition
from timerd.cli.call import DEFAULT_URL, CaFile, Key, Server, ServerUrl, Url, misuse, number, segment, show

app = typer.Typer(help="Put, show, pause, resume or delete a timer type.", no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(help="The type's name: [a-z][a-z0-9_.-]{0,63}.")]

_NAMES: Final = {
    "name": "NAME",
    "/url": "--url",
    "/kind": "--kind",
    "/batch_size": "--batch-size",
    "/max_lag": "--max-lag",
    "/request_timeout": "--request-timeout",
    "/max_in_flight": "--max-in-flight",
    "/max_per_second": "--max-per-second",
    "/retry/max_attempts": "--max-attempts",
    "/retry/min_backoff": "--min-backoff",
    "/retry/max_backoff": "--max-backoff",
    "/retry/multiplier": "--multiplier",
    "/retry/jitter": "--jitter",
    "/misfire/policy": "--misfire",
    "/misfire/grace": "--misfire-grace",
    "/misfire/max_per_second": "--misfire-max-per-second",
    "/signing_secrets": "--secret",
    "/headers": "--header",
}


def types_command(url: Url = DEFAULT_URL, key: Key = None, ca_file: CaFile = None) -> None:
    """Show all types."""
    show(Server(url, key, ca_file).call("GET", "/v1/types"))


@app.command("put")
def put_command(
    name: Name,
    target: Annotated[
        str | None, typer.Option("--url", help="Where its batches are POSTed. None with --kind callback.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="processor or callback.  [default: processor]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Most timers in one POST.  [default: 800]")] = None,
    max_lag: Annotated[
        str | None, typer.Option(help="How long a due timer may wait for its batch to fill.  [default: 10s]")
    ] = None,
    request_timeout: Annotated[str | None, typer.Option(help="For one whole exchange.  [default: 30s]")] = None,
    max_in_flight: Annotated[int | None, typer.Option(help="POSTs under way at once.  [default: 16]")] = None,
    max_per_second: Annotated[float | None, typer.Option(help="Timers a second.  [default: no limit]")] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(help="Counted failures until a dead letter, 0 = no limit.  [default: 0; 10 for callbacks]"),
    ] = None,
    min_backoff: Annotated[str | None, typer.Option(help="Wait after a first failure.  [default: 1s]")] = None,
    max_backoff: Annotated[str | None, typer.Option(help="Longest wait.  [default: 5m]")] = None,
    multiplier: Annotated[float | None, typer.Option(help="What the wait grows by.  [default: 2]")] = None,
    jitter: Annotated[float | None, typer.Option(help="Random part of a wait, 0 to 1.  [default: 0.2]")] = None,
    misfire: Annotated[
        str | None, typer.Option(help="What becomes of overdue timers: fire, drop or coalesce.  [default: fire]")
    ] = None,
    misfire_grace: Annotated[str | None, typer.Option(help="Overdue by more than this.  [default: 1m]")] = None,
    misfire_max_per_second: Annotated[
        float | None, typer.Option(help="Overdue timers a second.  [default: no limit]")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            help="Signing secret: env:NAME, file:/PATH, or whsec_...; repeatable. Without one, those that stand stay."
        ),
    ] = None,
    header: Annotated[list[str] | None, typer.Option(help="Sent with every POST, 'Name: value'; repeatable.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Let its timers wait.")] = False,
    server: ServerUrl = DEFAULT_URL,
    key: Key = None,
    ca_file: CaFile = None,
) -> None:
    """Put a type in place of what was there: what is left out takes its default, so a paused type goes on.

    --url is the processor's here; timerd's own is --server, or TIMERD_URL.
    """
    if target is None and kind != "callback":
        misuse("give --url, or --kind callback")
    retry = {
        "max_attempts": max_attempts,
        "min_backoff": _duration(min_backoff),
        "max_backoff": _duration(max_backoff),
        "multiplier": multiplier,
        "jitter": jitter,
    }
    overdue = {
        "policy": misfire,
        "grace": _duration(misfire_grace),
        "max_per_second": misfire_max_per_second,
    }
    body: dict[str, Any] = {
        "url": target,
        "kind": kind,
        "batch_size": batch_size,
        "max_lag": _duration(max_lag),
        "request_timeout": _duration(request_timeout),
        "max_in_flight": max_in_flight,
        "max_per_second": max_per_second,
        "retry": _given(retry) or None,
        "misfire": _given(overdue) or None,
        "signing_secrets": secret or None,
        "headers": _headers(header or []) or None,
        "state": "paused" if paused else None,
    }
    show(Server(server, key, ca_file).call("PUT", f"/v1/types/{segment(name)}", _given(body), _NAMES))


@app.command("get")
def get_command(name: Name, url: Url = DEFAULT_URL, key: Key = None, ca_file: CaFile = None) -> None:
    """Show a type; secrets as hints (references as they are), header values masked.

    If its target is in trouble, that is said on stderr.
    """
    server = Server(url, key, ca_file)
    show(server.call("GET", f"/v1/types/{segment(name)}"))
    of_all = server.call("GET", "/v1/stats")["types"]
    condition.tell({name: of_all[name]} if name in of_all else {})


@app.command("pause")
def pause_command(name: Name, url: Url = DEFAULT_URL, key: Key = None, ca_file: CaFile = None) -> None:
    """Let its timers wait."""
    show(Server(url, key, ca_file).call("POST", f"/v1/types/{segment(name)}:pause"))


@app.command("resume")
def resume_command(name: Name, url: Url = DEFAULT_URL, key: Key = None, ca_file: CaFile = None) -> None:
    """Deliver its timers again."""
    show(Server(url, key, ca_file).call("POST", f"/v1/types/{segment(name)}:resume"))


@app.command("delete")
def delete_command(name: Name, url: Url = DEFAULT_URL, key: Key = None, ca_file: CaFile = None) -> None:
    """Delete a type that no timer lives of. Prints nothing."""
    Server(url, key, ca_file).call("DELETE", f"/v1/types/{segment(name)}")


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _duration(text: str | None) -> int | float | str | None:
    return None if text is None else number(text)


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            misuse(f"--header {line!r}: give it as 'Name: value'")
        if name in headers:
            misuse(f"--header {name} is given twice")
        headers[name] = value.strip()
    return headers
