"""Commands about timers: arm, get, cancel, fire, list; and stats."""

import json
from typing import Annotated, Any, Final

import typer

from timerd.cli import condition
from timerd.cli.call import (
    DEFAULT_URL,
    PAGE_SIZE_MAX,
    CaFile,
    Key,
    Server,
    ServerUrl,
    Url,
    misuse,
    number,
    query_text,
    segment,
    show,
)

_ARM_NAMES: Final = {
    "/timers/0/id": "ID",
    "/timers/0/type": "--type",
    "/timers/0/fire_at": "--at",
    "/timers/0/delay": "--in",
    "/timers/0/payload": "--payload",
    "/timers/0/request": "--url",
    "/timers/0/request/url": "--url",
    "/timers/0/request/method": "--method",
    "/timers/0/request/headers": "--header",
    "/timers/0/request/body": "--body",
    "/timers/0/request/json": "--json",
    "/timers/0/mode": "--mode",
    "/timers/0/if_generation": "--if-generation",
}
_LIST_NAMES: Final = {"type": "--type", "state": "--state", "id_prefix": "--prefix"}
_ID_NAMES: Final = {"id": "ID"}
Id = Annotated[str, typer.Argument(help="The timer's id.")]


def arm_command(
    id: Id,
    type: Annotated[str, typer.Option("--type", help="Its type.")],
    at: Annotated[str | None, typer.Option(help="Fire time: RFC 3339 with an offset, or Unix ms.")] = None,
    delay: Annotated[
        str | None, typer.Option("--in", "--delay", help='Time from now: "10s", "36h", "60d", or plain seconds.')
    ] = None,
    payload: Annotated[str | None, typer.Option(help="Payload, as JSON.")] = None,
    target: Annotated[
        str | None, typer.Option("--url", help="Of a callback: where its request goes.", metavar="URL")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Of a callback: GET, POST, ...  [default: POST]")] = None,
    header: Annotated[
        list[str] | None, typer.Option(help='Of a callback: a header, as "Name: value"; repeatable.')
    ] = None,
    body: Annotated[str | None, typer.Option(help="Of a callback: its body, as text.")] = None,
    json_body: Annotated[str | None, typer.Option("--json", help="Of a callback: its body, as JSON.")] = None,
    mode: Annotated[str, typer.Option(help="replace, earliest, latest or keep.")] = "replace",
    if_generation: Annotated[
        int | None, typer.Option(help="Only over this generation; 0 = only if nothing stands.")
    ] = None,
    server: ServerUrl = DEFAULT_URL,
    key: Key = None,
    ca_file: CaFile = None,
) -> None:
    """Arm a timer, or move it. What is left out (a payload, a callback's --method too) is not kept from before.

    --url is the target of a callback here; timerd's own is --server, or TIMERD_URL.
    """
    item: dict[str, Any] = {"id": id, "type": type, "mode": mode}
    if at is not None and delay is None:
        item["fire_at"] = number(at)
    elif delay is not None and at is None:
        item["delay"] = number(delay)
    else:
        misuse("give one of --at and --in")
    if if_generation is not None:
        item["if_generation"] = if_generation
    if payload is not None:
        item["payload"] = _json(payload, "--payload")
    if target is not None:
        item["request"] = _request(target, method, header or [], body, json_body)
    elif method is not None or header or body is not None or json_body is not None:
        misuse("--method, --header, --body and --json are of a callback, and go with --url")
    answer = Server(server, key, ca_file).call("POST", "/v1/timers", {"timers": [item]}, _ARM_NAMES)
    show(answer["results"][0])


def get_command(id: Id, url: Url = DEFAULT_URL, key: Key = None, ca_file: CaFile = None) -> None:
    """Show a timer."""
    show(Server(url, key, ca_file).call("GET", f"/v1/timers/{segment(id)}", names=_ID_NAMES))


def fire_command(id: Id, url: Url = DEFAULT_URL, key: Key = None, ca_file: CaFile = None) -> None:
    """Re-arm a timer to now. It waits for no batch; one that is in flight is left alone."""
    show(Server(url, key, ca_file).call("POST", f"/v1/timers/{segment(id)}:fire", names=_ID_NAMES))


def cancel_command(
    ids: Annotated[list[str], typer.Argument(help="The timers' ids.")],
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca_file: CaFile = None,
) -> None:
    """Cancel timers, dead ones too."""
    show(Server(url, key, ca_file).call("POST", "/v1/timers:cancel", {"ids": ids}, id_names(ids)))


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
    ca_file: CaFile = None,
) -> None:
    """List timers, one JSON object a line. Without --soonest the order is stable, but not by time."""
    if not soonest:
        Server(url, key, ca_file).pages(
            "/v1/timers", "timers", limit, _LIST_NAMES, type=type, state=state, id_prefix=prefix
        )
        return
    if state is not None or prefix is not None:
        misuse("--soonest goes with --type and --limit, not with --state or --prefix")
    if limit > PAGE_SIZE_MAX:
        misuse(f"--soonest shows at most {PAGE_SIZE_MAX} timers; --limit is {limit}")
    query = query_text(type=type, limit=limit)
    server = Server(url, key, ca_file)
    timers = server.call("GET", f"/v1/timers:next{query}", names=_LIST_NAMES)["timers"]
    for timer in timers:
        show(timer, indent=None)
    server.note_type(type, timers)


def stats_command(url: Url = DEFAULT_URL, key: Key = None, ca_file: CaFile = None) -> None:
    """Show counts by type, and how the service is; targets in trouble in words, on stderr."""
    server = Server(url, key, ca_file)
    stats = server.call("GET", "/v1/stats")
    show({"status": server.call("GET", "/v1/status"), **stats})
    condition.tell(stats["types"])


def id_names(ids: list[str]) -> dict[str, str]:
    """What the command line calls the members of a body's `ids`."""
    return {f"/ids/{index}": f"ID {id!r}" for index, id in enumerate(ids)} | {"/ids": "ID"}


def _request(url: str, method: str | None, headers: list[str], body: str | None, text: str | None) -> dict[str, Any]:
    request: dict[str, Any] = {"url": url}
    if method is not None:
        request["method"] = method
    for header in headers:
        name, colon, value = header.partition(":")
        if not colon:
            misuse(f'--header {header!r} is not as "Name: value"')
        request.setdefault("headers", {})[name.strip()] = value.strip()
    if body is not None:
        request["body"] = body
    if text is not None:
        request["json"] = _json(text, "--json")
    return request


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        misuse(f"{option} is no JSON: {error}")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")
