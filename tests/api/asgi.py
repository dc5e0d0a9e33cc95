"""A caller that says exactly what an ASGI server would hand on: raw path, chunks, headers as bytes."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from starlette.types import ASGIApp, Message

HOST = (b"host", b"127.0.0.1:8470")
JSON = (b"content-type", b"application/json")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def problem(self) -> str:
        """The problem's name, once its form has been checked."""
        assert self.headers["content-type"] == "application/problem+json", self
        problem = self.json()
        assert problem["status"] == self.status
        assert problem["title"]
        assert problem["detail"]
        prefix, _, name = problem["type"].rpartition("/")
        assert prefix == "https://timerd.dev/problems"
        return str(name)

    @property
    def pointers(self) -> list[str]:
        return [error["pointer"] for error in self.json().get("errors", [])]


async def call(
    app: ASGIApp,
    method: str,
    target: str,
    body: bytes | Iterable[bytes] = b"",
    headers: Sequence[tuple[bytes, bytes]] = (HOST, JSON),
    *,
    announce: bool = True,
) -> Answer:
    """One request. `body` in pieces comes as chunks with no length announced."""
    path, _, query = target.partition("?")
    chunks = [body] if isinstance(body, bytes) else list(body)
    all_headers = list(headers)
    if isinstance(body, bytes) and announce:
        all_headers.append((b"content-length", str(len(body)).encode()))
    waiting = [
        {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
        for number, chunk in enumerate(chunks, 1)
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()  # a server says nothing more until the client is gone
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "root_path": "",
        "headers": all_headers,
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8470),
    }
    await app(scope, receive, send)
    start, *rest = sent
    assert start["type"] == "http.response.start"
    assert [m["type"] for m in rest] == ["http.response.body"] * len(rest)
    names = [name for name, _ in start["headers"]]
    assert len(set(names)) == len(names), names
    answer_headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert answer_headers["timerd-now"] == "2026-11-30T08:00:00.000Z"
    return Answer(start["status"], answer_headers, b"".join(m.get("body", b"") for m in rest))
