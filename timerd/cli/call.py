"""A call of a running timerd by a command: the request, its answer, and a problem in the words of the command line.

Commands print the service's JSON, so that scripts can read it. What goes wrong goes to stderr in words, with exit 1;
what was typed wrongly with exit 2, as a command with a wrong option does anyway.
"""

import http.client
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Annotated, Any, Final, NoReturn

import typer

Url = Annotated[
    str,
    typer.Option(
        "--url",
        "--server",
        envvar="TIMERD_URL",
        help="Where timerd listens; in arm and type put --server alone is that.",
    ),
]
ServerUrl = Annotated[str, typer.Option("--server", envvar="TIMERD_URL", help="Where timerd listens.")]
"""Where --url is something else."""
Key = Annotated[
    str | None,
    typer.Option("--key", envvar="TIMERD_API_KEY", help="Bearer key; a flag is seen by others.", show_default=False),
]
CaFile = Annotated[
    str | None,
    typer.Option("--ca-file", envvar="TIMERD_CA_FILE", help="PEM file of who may sign the server's certificate."),
]
DEFAULT_URL: Final = "http://127.0.0.1:8470"
TIMEOUT_S: Final = 30
UNKNOWN_ISSUER: Final = frozenset({18, 19, 20, 21})  # OpenSSL's X509_V_ERR_*: the chain leads to nobody who is trusted
PAGE_SIZE_MAX: Final = 1_000

Names = Mapping[str, str]
"""What the command line calls the parts of a request, by pointer; a part of a part is called as that is."""


class Server:
    """Where commands go, with which key, and whose word on the server's name is taken."""

    def __init__(self, url: str, key: str | None, ca_file: str | None = None) -> None:
        if "@" in url:  # and it is not shown
            misuse("--url may not have a user or password; use --key")
        if not url.startswith(("http://", "https://")):
            misuse(f"--url {url}: give it with http:// or https://")
        if key is not None and not (key.isascii() and key.isprintable()):
            misuse("--key: a key has printable ASCII characters only")
        self._url = url.rstrip("/")
        self._key = key
        self._opener = urllib.request.build_opener(_Stay)
        if url.startswith("https://"):
            try:
                context = ssl.create_default_context(cafile=ca_file)
            except OSError as error:
                misuse(f"--ca-file {ca_file}: {error.strerror or error}")
            self._opener = urllib.request.build_opener(_Stay, urllib.request.HTTPSHandler(context=context))

    def call(self, method: str, path: str, body: Any = None, names: Names | None = None) -> Any:
        """The decoded answer, None if it has no body. Exits with the reason if there is none."""
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)  # noqa: S310 - scheme checked
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                self._check(answer.status, answer.headers)
                text = answer.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            self._check(error.code, error.headers)
            fail(_problem(error, names or {}))
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            fail(f"no answer from a timerd at {self._url}: {reason or type(error).__name__}{self._hint(reason)}")

    def note_type(self, name: str | None, found: object) -> None:
        """Where nothing was found of a type, say so if that is because there is no such type. Its dead letters stay."""
        if name is None or found:
            return
        if name not in [type["name"] for type in self.call("GET", "/v1/types")["types"]]:
            typer.echo(f"timerd: there is no type {name!r}", err=True)

    def pages(self, path: str, member: str, limit: int, names: Names, **query: Any) -> None:
        """Print up to `limit` of what a list holds, an object a line."""
        token: str | None = None
        most = limit
        while limit > 0:
            size = min(limit, PAGE_SIZE_MAX)
            page = self.call("GET", path + query_text(**query, page_size=size, page_token=token), names=names)
            for item in page[member]:
                show(item, indent=None)
            limit -= len(page[member])
            token = page.get("next_page_token")
            if token is None:
                self.note_type(query.get("type"), limit < most)
                return
        typer.echo("there may be more: raise --limit", err=True)

    def _hint(self, reason: object) -> str:
        if isinstance(reason, ssl.SSLCertVerificationError) and reason.verify_code in UNKNOWN_ISSUER:
            return "; --ca-file (TIMERD_CA_FILE) names a PEM file of who may have signed it"
        if isinstance(reason, ssl.SSLError) and getattr(reason, "reason", "") == "WRONG_VERSION_NUMBER":
            return "; no TLS is spoken there: http:// and not https://?"
        # A server that speaks TLS hangs up on who does not, by the one way or the other.
        if self._url.startswith("http:") and isinstance(reason, (http.client.BadStatusLine, ConnectionResetError)):
            return "; https:// and not http://?"
        return ""

    def _check(self, status: int, headers: Any) -> None:
        """Every answer of a timerd says what time it has."""
        if headers.get("Timerd-Now") is None:
            fail(f"what answers at {self._url} is no timerd (HTTP {status})")


class _Stay(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else: a timerd sends nobody on, and a key is for the server that it was given for."""

    def redirect_request(self, *_: Any) -> None:
        return None


def segment(text: str) -> str:
    """An id or name as one segment of a path. What is no UTF-8 on the command line goes out as it came."""
    return urllib.parse.quote(text, safe="", errors="surrogateescape")


def query_text(**fields: Any) -> str:
    """The query string of those that are given."""
    given = {name: value for name, value in fields.items() if value is not None}
    return "?" + urllib.parse.urlencode(given, errors="surrogateescape") if given else ""


def number(text: str) -> int | float | str:
    """What looks like a number as one: plain seconds, or Unix milliseconds. The service judges all else."""
    if re.fullmatch(r"-?[0-9]{1,30}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?[0-9]{1,30}\.[0-9]{1,30}", text) else text


def _problem(error: urllib.error.HTTPError, names: Names) -> str:
    """A problem, each fault of it once, by the name that the command line has for it."""
    try:
        problem = json.load(error)
        head = f"{error.code} {problem['type'].rsplit('/', 1)[-1]}"
        faults = [(fault["pointer"], fault["detail"]) for fault in problem.get("errors", ())]
        text = problem.get("detail") or problem["title"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
    if not faults:
        pause = error.headers.get("Retry-After")
        return f"{head}: {text}" + (f"; try again in {pause} s" if pause else "")
    lines = [f"{_named(pointer, names)} {detail}".strip() for pointer, detail in dict.fromkeys(faults)]
    return f"{head}: {lines[0]}" if len(lines) == 1 else "\n  ".join([f"{head}:", *lines])


def _named(pointer: str, names: Names) -> str:
    """The longest part of a pointer that has a name, and what is left behind it."""
    end = len(pointer)
    while end > 0:
        if (name := names.get(pointer[:end])) is not None:
            return f"{name}{pointer[end:]}:"
        end = pointer.rfind("/", 0, end)
    return f"{pointer}:" if pointer else ""


def show(value: Any, indent: int | None = 2) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=indent, ensure_ascii=False))


def fail(why: str) -> NoReturn:
    """Say what went wrong, and end."""
    typer.echo(f"timerd: {why}", err=True)
    raise typer.Exit(1)


def misuse(why: str) -> NoReturn:
    """Say what was typed wrongly, and end."""
    typer.echo(f"timerd: {why}", err=True)
    raise typer.Exit(2)
