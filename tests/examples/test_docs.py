"""The programs of docs/processors.md and docs/callbacks.md, run as they stand there, against a real timerd."""

import asyncio
import json
import re
import shlex
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from typer.testing import CliRunner

from tests.support.process import Process
from timerd.cli.app import app
from timerd_client import DueTimer

DOCS = Path(__file__).parents[2] / "docs"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOW = 1_000


def block(page: str, begin: str) -> str:
    """The block of this page that begins so."""
    found = re.findall(rf"^```\w+\n({re.escape(begin)}.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert len(found) == 1, (page, begin)
    return str(found[0])


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def change(path: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement, values)


async def live(timerd: Process) -> list[str]:
    return [timer["id"] for timer in await timerd.list() if timer["state"] != "dead"]


class Flaky:
    """An app of which every answer gets lost the first time: the work is done, and 502 is what comes back."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._seen: set[bytes] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        key = dict(scope.get("headers", ())).get(b"webhook-id", b"")
        lost = scope["type"] == "http" and key not in self._seen
        self._seen.add(key)

        async def answer(message: Any) -> None:
            if lost and message["type"] == "http.response.start":
                message = {**message, "status": 502}
            await send(message)

        await self._app(scope, receive, answer)


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(10):
            while not server.started:
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


async def test_the_processor_does_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "orders.sqlite"
    monkeypatch.setenv("REMIND_DB", str(path))
    monkeypatch.setenv("REMIND_SECRET", SECRET)
    module: dict[str, Any] = {}
    exec(block("processors.md", "# remind.py"), module)
    for id in ("fine", "again", "bad"):
        change(path, "INSERT INTO orders VALUES (?, ?, 0)", id, None if id == "bad" else f"{id}@example.com")
    async with served(Flaky(module["app"])) as url, Process(tmp_path / "data") as timerd:
        retry = {"min_backoff": "100ms", "max_backoff": "200ms"}
        await timerd.put_type("remind", url=f"{url}/", signing_secrets=[SECRET], retry=retry)
        due = [{"id": id, "type": "remind", "delay": 0} for id in ("fine", "again", "bad", "unknown")]
        generations = {each["id"]: each["generation"] for each in (await timerd.arm(due))["results"]}

        async def one_is_left() -> bool:
            return await live(timerd) == ["bad"]

        await timerd.until(one_is_left)
        assert [(letter["id"], letter["last_error"]) for letter in await timerd.dead_letters()] == [
            ("unknown", "no such order")
        ]
        assert "NOT NULL" in (await timerd.get("bad") or {})["last_error"]
        change(path, "UPDATE orders SET email = 'bad@example.com' WHERE id = 'bad'")

        async def none_is_left() -> bool:
            return await live(timerd) == []

        await timerd.until(none_is_left)
        assert not timerd.complaints()
    sent = {(f"{id}@example.com", id, generations[id]) for id in ("fine", "again", "bad")}
    assert sorted(rows(path, "SELECT * FROM outbox")) == sorted(sent)

    # A generation that is older than the row's does nothing; one that the row has not heard of yet counts.
    change(path, "UPDATE orders SET armed = ? WHERE id = 'again'", generations["again"] + 2)
    with closing(module["connect"]()) as db:
        for step, count in ((1, 3), (3, 4), (3, 4)):
            timer = DueTimer("again", generations["again"] + step, datetime.now(UTC), 1)
            assert module["remind_one"](db, timer).status == "ok"
            assert len(rows(path, "SELECT * FROM outbox")) == count


def test_a_claim_is_one_callers_until_it_runs_out() -> None:
    claim, done = (text + ";" for text in block("processors.md", "-- 1. Claim").split(";")[:2])
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE claims (id, generation, until, done, PRIMARY KEY (id, generation))")

        def claims(now: int, generation: int = 7) -> bool:
            return db.execute(claim, {"id": "a", "generation": generation, "now": now}).rowcount == 1

        assert claims(NOW)
        assert not claims(NOW + 59), "somebody has it"
        assert claims(NOW, 8)
        assert claims(NOW + 60), "it ran out"
        db.execute(done, {"id": "a", "generation": 7})
        assert not claims(NOW + 1_000), "it is over"
        assert claims(NOW + 1_000, 8)


async def test_the_receiver_of_callbacks_does_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hooks.sqlite"
    monkeypatch.setenv("HOOK_DB", str(path))
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    module: dict[str, Any] = {}
    exec(block("callbacks.md", "# hook.py"), module)
    options = ("--callback-allow", "127.0.0.0/8")
    async with served(Flaky(module["app"])) as url, Process(tmp_path / "data", *options) as timerd:
        fields = {"kind": "callback", "retry": {"min_backoff": "100ms", "max_backoff": "200ms"}}
        await timerd.put_type("webhook", signing_secrets=[SECRET], **fields)
        await timerd.put_type("unsigned", **{**fields, "retry": {"min_backoff": "100ms", "max_attempts": 2}})
        request = {"url": f"{url}/hooks/remind", "json": {"order": 42}}
        await timerd.arm([{"id": id, "type": "webhook", "delay": 0, "request": request} for id in ("a", "b")])
        await timerd.arm([{"id": "c", "type": "unsigned", "delay": 0, "request": request}])

        async def none_is_left() -> bool:
            return await live(timerd) == []

        await timerd.until(none_is_left)
        assert [(each["id"], each["last_error"]) for each in await timerd.dead_letters()] == [("c", "HTTP 401")]
        assert (await timerd.stats("webhook"))["retried"] == 2, "each answer was lost once"
        assert not timerd.complaints()
    assert sorted(rows(path, "SELECT * FROM reminders")) == [("a", b'{"order": 42}'), ("b", b'{"order": 42}')]


async def test_a_callback_is_moved_with_its_whole_request_and_cancelled(tmp_path: Path) -> None:
    commands = [
        shlex.split(line, comments=True)
        for line in block("callbacks.md", "timerd arm remind:44").replace("\\\n", "").splitlines()
    ]
    assert [words[:3] for words in commands] == [["timerd", verb, "remind:44"] for verb in ("arm", "arm", "cancel")]
    async with Process(tmp_path / "data") as timerd:
        await timerd.put_type("webhook", kind="callback")
        said = []
        for words in commands:
            done = await asyncio.to_thread(CliRunner().invoke, app, words[1:], env={"TIMERD_URL": timerd.url})
            assert done.exit_code == 0, done.output
            said.append(json.loads(done.stdout))
            if words[1] == "arm":
                request = (await timerd.get("remind:44") or {})["request"]
                assert (request["method"], list(request["headers"])) == ("PUT", ["Authorization"])
        assert [each["status"] for each in (*said[:2], *said[2]["results"])] == ["created", "moved", "cancelled"]
