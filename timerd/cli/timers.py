"""Commands that talk to a running timerd: arm, get, cancel, list, types, stats.

They print the service's JSON, so that scripts can read it; a problem goes to stderr in words, and exits with 1.
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Annotated, Any

import typer

Url = Annotated[str, typer.Option("--url", envvar="TIMERD_URL", help="Where timerd listens.")]
Key = Annotated[str | None, typer.Option("--key", envvar="TIMERD_API_KEY", help="Bearer key.", show_default=False)]
DEFAULT_URL = "http://127.0.0.1:8470"
TIMEOUT_S = 30


def arm_command(
    id: Annotated[str, typer.Argument(help="The timer's id.")],
    type: Annotated[str, typer.Option("--type", help="Its type.")],
    at: Annotated[str | None, typer.Option(help="Fire time: RFC 3339 with an offset, or Unix ms.")] = None,
    delay: Annotated[str | None, typer.Option("--in", help='Time from now: "10s", "36h", "60d".')] = None,
    payload: Annotated[str | None, typer.Option(help="Payload, as JSON.")] = None,
    mode: Annotated[str, typer.Option(help="replace, earliest, latest or keep.")] = "replace",
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Arm a timer, or move it."""
    if (at is None) == (delay is None):
        _refuse("give one of --at and --in")
    item: dict[str, Any] = {"id": id, "type": type, "mode": mode}
    if at is not None:
        item["fire_at"] = int(at) if at.lstrip("-").isdigit() else at
    else:
        item["delay"] = delay
    if payload is not None:
        try:
            item["payload"] = json.loads(payload)
        except ValueError as error:
            _refuse(f"--payload is no JSON: {error}")
    answer = _call(url, key, "POST", "/v1/timers", {"timers": [item]})
    _print(answer["results"][0])


def get_command(id: str, url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Show a timer."""
    _print(_call(url, key, "GET", f"/v1/timers/{_segment(id)}"))


def cancel_command(ids: list[str], url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Cancel timers."""
    _print(_call(url, key, "POST", "/v1/timers:cancel", {"ids": ids}))


def list_command(
    type: Annotated[str | None, typer.Option("--type", help="Only of this type.")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only in this state: armed, due, in_flight, retrying, paused, dead.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="Only ids that begin so.")] = None,
    soonest: Annotated[bool, typer.Option("--soonest", help="The soonest due, in order.")] = False,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """List timers, one JSON object a line."""
    if soonest:
        query = _query(type=type, limit=min(limit, 1000))
        for timer in _call(url, key, "GET", f"/v1/timers:next{query}")["timers"]:
            _print(timer, indent=None)
        return
    token: str | None = None
    while limit > 0:
        query = _query(type=type, state=state, id_prefix=prefix, page_size=min(limit, 1000), page_token=token)
        page = _call(url, key, "GET", f"/v1/timers{query}")
        for timer in page["timers"]:
            _print(timer, indent=None)
        limit -= len(page["timers"])
        token = page.get("next_page_token")
        if token is None:
            break


def types_command(url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Show all types."""
    _print(_call(url, key, "GET", "/v1/types"))


def stats_command(url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Show counts by type, and how the service is."""
    _print({"status": _call(url, key, "GET", "/v1/status"), **_call(url, key, "GET", "/v1/stats")})


def _segment(id: str) -> str:
    return urllib.parse.quote(id, safe="")


def _query(**fields: Any) -> str:
    given = {name: value for name, value in fields.items() if value is not None}
    return "?" + urllib.parse.urlencode(given) if given else ""


def _call(url: str, key: str | None, method: str, path: str, body: Any = None) -> Any:
    if not url.startswith(("http://", "https://")):
        _refuse(f"--url {url}: give it with http:// or https://")
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url.rstrip("/") + path, data, headers, method=method)  # noqa: S310 - scheme checked
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - scheme checked
            return json.load(answer)
    except urllib.error.HTTPError as error:
        _refuse(_problem(error))
    except (OSError, ValueError) as error:
        _refuse(f"no answer from {url}: {getattr(error, 'reason', error)}")


def _problem(error: urllib.error.HTTPError) -> str:
    try:
        problem = json.load(error)
        lines = [f"{error.code} {problem['type'].rsplit('/', 1)[-1]}: {problem.get('detail') or problem['title']}"]
        lines += [f"  {fault['pointer']}: {fault['detail']}" for fault in problem.get("errors", ())]
        return "\n".join(lines)
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"


def _print(value: Any, indent: int | None = 2) -> None:
    typer.echo(json.dumps(value, indent=indent, ensure_ascii=False))


def _refuse(why: str) -> Any:
    typer.echo(f"timerd: {why}", err=True)
    raise typer.Exit(1)
