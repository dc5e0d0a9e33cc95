"""A timerd that fits on a page: timers in a dict, real sockets, real expiry, nothing durable.

It keeps the parts of the contract that the client leans on: all-or-nothing arms with pointers, order within a request,
generations, `Timerd-Now`, `Timerd-Expires`, percent-encoded ids. `seen` lists every request with what came of it, and
`before` may answer in its place. It runs on an event loop in a thread of its own, so both clients can be tested
against it in the same way.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote, unquote_to_bytes

T = TypeVar("T")


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def stop(self) -> None:
        async def cancel() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class HttpRequest(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    raw: bytes


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return HttpRequest(method, target, headers, body, head + body)


Answer = tuple[int, Any]
"""A status and a body: a value, or bytes sent as they are with nothing of timerd's around."""


class Refused(Exception):
    def __init__(self, status: int, name: str, errors: list[tuple[str, str]] | None = None) -> None:
        self.status, self.name, self.errors = status, name, errors or []


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class FakeTimerd:
    def __init__(self) -> None:
        self.types = {"poll"}
        self.timers: dict[str, dict[str, Any]] = {}
        self.seen: list[tuple[HttpRequest, int]] = []
        self.applied: list[tuple[str, int]] = []  # (id, fire_at) in the order in which arms were applied
        self.before: Callable[[HttpRequest], Answer | None] = lambda request: None
        self.clock_offset_ms = 0
        self.retry_after = "0"
        self.delay_s = 0.0
        self.open = 0
        self._generation = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.clock_offset_ms

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 25)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while (request := await read_request(reader)) is not None:
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                status, body = self.answer(request)
                self.seen.append((request, status))
                if isinstance(body, bytes):
                    writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)
                    continue
                data = b"" if status == 204 else json.dumps(body).encode()
                kind = "application/problem+json" if status >= 400 else "application/json"
                head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ntimerd-now: {iso(self.now_ms())}\r\n"
                if status in (429, 503):
                    head += f"retry-after: {self.retry_after}\r\n"
                writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()

    def answer(self, request: HttpRequest) -> Answer:
        scripted = self.before(request)
        if scripted is not None:
            return scripted
        try:
            expires = request.headers.get("timerd-expires")
            if expires and self.now_ms() > datetime.fromisoformat(expires).timestamp() * 1000:
                raise Refused(409, "expired")
            return self._route(request)
        except Refused as refused:
            errors = [{"pointer": pointer, "detail": detail} for pointer, detail in refused.errors]
            return refused.status, problem(refused.name, errors)

    def _route(self, request: HttpRequest) -> Answer:
        path, _, query = request.target.partition("?")
        body = json.loads(request.body) if request.body else {}
        if path == "/healthz":
            return 200, {"status": "ok"}
        if (request.method, path) == ("POST", "/v1/timers"):
            return self._arm(body["timers"])
        if (request.method, path) == ("GET", "/v1/timers"):
            return 200, self._page(parse_qs(query))
        if path == "/v1/timers:cancel":
            results = [self._cancel(id) for id in body["ids"]]
            return 200, {"cancelled": sum(r["status"] == "cancelled" for r in results), "results": results}
        if path.startswith("/v1/timers/"):
            return self._one(request.method, path.removeprefix("/v1/timers/"))
        if path.startswith("/v1/types/"):
            self.types.add(unquote(path.removeprefix("/v1/types/")))
            return 200, {"name": path.removeprefix("/v1/types/"), **body}
        raise Refused(404, "not-found")

    def _arm(self, items: list[dict[str, Any]]) -> Answer:
        errors = [(f"/timers/{at}/type", "no such type") for at, i in enumerate(items) if i["type"] not in self.types]
        horizon = self.now_ms() + 10 * 366 * 86_400_000
        errors += [(f"/timers/{at}/fire_at", "too far") for at, i in enumerate(items) if i.get("fire_at", 0) > horizon]
        if errors:
            one = "unknown-type" if errors[0][0].endswith("type") else "horizon-exceeded"
            raise Refused(422, one if len(errors) == 1 else "validation", errors[:100])
        results = [self._arm_one(item) for item in items]
        return 200, {"now": iso(self.now_ms()), "armed": len(items), "conflicts": 0, "results": results}

    def _arm_one(self, item: dict[str, Any]) -> dict[str, Any]:
        there = self.timers.get(item["id"])
        generation = there["generation"] if there else 0
        if item.get("if_generation", generation) != generation:
            return {"id": item["id"], "status": "conflict", "generation": generation, "fire_at": None}
        fire_at = item.get("fire_at") or self.now_ms() + int(float(item["delay"]) * 1000)
        self._generation += 1
        self.applied.append((item["id"], fire_at))
        self.timers[item["id"]] = {
            "id": item["id"],
            "type": item["type"],
            "state": "armed",
            "fire_at": iso(fire_at),
            "generation": self._generation,
            "payload": item.get("payload"),
        }
        status = "moved" if there else "created"
        return {"id": item["id"], "status": status, "generation": self._generation, "fire_at": iso(fire_at)}

    def _one(self, method: str, segment: str) -> Answer:
        raw, verb, _ = segment.partition(":fire")
        assert "/" not in raw, "an id is one segment"
        id = unquote_to_bytes(raw).decode()
        if id not in self.timers:
            raise Refused(404, "timer-not-found")
        if method == "DELETE":
            return 200, self._cancel(id)
        if verb:
            return 200, self._arm_one({"id": id, "type": self.timers[id]["type"], "fire_at": self.now_ms()})
        return 200, self.timers[id]

    def _cancel(self, id: str) -> dict[str, Any]:
        there = self.timers.pop(id, None)
        return {"id": id, "status": "cancelled" if there else "not_found", "in_flight": False}

    def _page(self, query: dict[str, list[str]]) -> dict[str, Any]:
        size, start = int(query.get("page_size", ["100"])[0]), int(query.get("page_token", ["0"])[0])
        ids = sorted(self.timers)
        page: dict[str, Any] = {"timers": [self.timers[id] for id in ids[start : start + size]]}
        if start + size < len(ids):
            page["next_page_token"] = str(start + size)
        return page


def problem(name: str, errors: list[dict[str, str]] | None = None) -> dict[str, Any]:
    return {"type": f"https://timerd.dev/problems/{name}", "title": name, "detail": name, "errors": errors or []}


@contextmanager
def fake_timerd() -> Iterator[tuple[FakeTimerd, str, Loop]]:
    loop, fake = Loop(), FakeTimerd()
    try:
        yield fake, f"http://127.0.0.1:{loop.run(fake.start())}", loop
    finally:
        loop.stop()
