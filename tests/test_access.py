"""Access to a real timerd: keys from their making to their end, over restarts, and what is said of them."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.support.process import Process
from tests.support.processor import Answer, Processor
from timerd.cli.app import app
from timerd_client import AsyncTimerd, Forbidden, RateLimited, Unauthorized

OWNER = "open-sesame-0123456789"
ENV = {"TIMERD_API_KEY": OWNER}
FAR = 2_050_000_000_000
Cli = Callable[..., Result]


def bearer(key: str) -> dict[str, dict[str, str]]:
    return {"headers": {"Authorization": f"Bearer {key}"}}


async def cli(timerd: Process, *arguments: str, key: str | None = OWNER) -> Result:
    env = {"TIMERD_URL": timerd.url, "TIMERD_API_KEY": key}
    result = await asyncio.to_thread(CliRunner().invoke, app, list(arguments), env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


async def create(timerd: Process, *scopes: str, **options: str) -> Any:
    arguments = ["keys", "create", "--name", "n"]
    for scope in scopes:
        arguments += ["--scope", scope]
    for name, value in options.items():
        arguments += [f"--{name.replace('_', '-')}", value]
    result = await cli(timerd, *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


async def status(timerd: Process, method: str, path: str, key: str, body: Any = None) -> int:
    return (await timerd.request(method, path, body, **bearer(key)))[0]


def problem(answer: Any) -> str:
    return str(answer["type"].rsplit("/", 1)[1])


async def test_keys_by_the_command_each_for_its_scope_and_over_restarts(tmp_path: Path) -> None:
    async with Process(tmp_path / "data", env=ENV) as timerd:
        arm, read = await create(timerd, "arm"), await create(timerd, "read", expires="90d")
        admin = await create(timerd, "admin")
        put = {"url": "http://127.0.0.1:9/"}
        item = {"timers": [{"id": "a", "type": "t", "fire_at": FAR}]}
        assert await status(timerd, "PUT", "/v1/types/t", arm["key"], put) == 403
        assert await status(timerd, "PUT", "/v1/types/t", admin["key"], put) == 201
        for _ in range(2):
            assert await status(timerd, "POST", "/v1/timers", arm["key"], item) == 200
            code, answer = await timerd.request("POST", "/v1/timers", item, **bearer(read["key"]))
            assert (code, problem(answer)) == (403, "forbidden")
            assert "'arm'" in answer["detail"]
            assert await status(timerd, "GET", "/v1/timers/a", read["key"]) == 200
            assert await status(timerd, "GET", "/v1/timers/a", arm["key"]) == 403
            for path in ("/metrics", "/v1/stats", "/v1/status"):
                assert await status(timerd, "GET", path, read["key"]) == 200
                assert await status(timerd, "GET", path, arm["key"]) == 403
                assert (await timerd.request("GET", path))[0] == 401
            for path in ("/healthz", "/readyz"):
                assert (await timerd.request("GET", path))[0] == 200
            assert await status(timerd, "GET", "/docs", arm["key"]) == 200
            timerd.kill()  # and all of it holds after a kill -9
            await timerd.start()
        listed = json.loads((await cli(timerd, "keys", "list")).stdout)["keys"]
        assert {key["id"] for key in listed} == {arm["id"], read["id"], admin["id"]}
        assert not re.search(r"td_[a-z2-7]{8}_", json.dumps(listed))
        refused = await cli(timerd, "get", "a", key=arm["key"])
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr == (
            "timerd: 403 forbidden: this call needs the scope 'read', which this key does not have\n"
        )
        revoked = await cli(timerd, "keys", "revoke", arm["id"])
        assert (revoked.exit_code, revoked.output) == (0, "")
        assert await status(timerd, "POST", "/v1/timers", arm["key"], item) == 401
        timerd.kill()
        await timerd.start()
        assert await status(timerd, "POST", "/v1/timers", arm["key"], item) == 401
        assert await status(timerd, "GET", "/v1/timers/a", read["key"]) == 200
        wrong = await cli(timerd, "keys", "create", "--name", "a b", "--scope", "read")
        assert "--name: a key's name is" in wrong.stderr
        assert "--scope" in (await cli(timerd, "keys", "create", "--name", "n", "--scope", "write")).stderr


async def test_no_request_is_served_after_a_revocation_was_answered_or_a_key_has_expired(tmp_path: Path) -> None:
    async with Process(tmp_path / "data", env=ENV) as timerd:
        key, short = await create(timerd, "read"), await create(timerd, "read", expires="5s")
        assert await status(timerd, "GET", "/v1/timers", short["key"]) == 200
        revoked = asyncio.Event()
        late: list[int] = []

        async def ask() -> None:
            while True:
                after = revoked.is_set()
                code = await status(timerd, "GET", "/v1/timers", key["key"])
                if after:
                    late.append(code)
                    return

        asking = [asyncio.create_task(ask()) for _ in range(8)]
        assert await status(timerd, "DELETE", f"/v1/keys/{key['id']}", OWNER) == 204
        revoked.set()
        await asyncio.gather(*asking)
        assert late == [401] * 8

        async def expired() -> bool:
            code, answer = await timerd.request("GET", "/v1/timers", **bearer(short["key"]))
            return code == 401 and "expired" in answer["detail"]

        await timerd.until(expired)


async def test_a_lost_key_is_no_lock_out_and_keys_alone_are_keys(tmp_path: Path) -> None:
    timerd = Process(tmp_path / "data", env=ENV)
    async with timerd:
        admin = await create(timerd, "admin")
        assert await timerd.stop() == 0
        timerd.env = {}
        timerd.options = ("--host", "0.0.0.0")  # keys of the catalogue are keys
        await timerd.start()
        timerd.url = timerd.url.replace("0.0.0.0", "127.0.0.1")
        assert (await timerd.request("GET", "/v1/keys"))[0] == 401
        assert await status(timerd, "GET", "/v1/keys", OWNER) == 401
        assert await status(timerd, "GET", "/v1/keys", admin["key"]) == 200
        assert await timerd.stop() == 0
        timerd.env = {"TIMERD_API_KEY": "another"}  # whoever can restart it gets in
        await timerd.start()
        timerd.url = timerd.url.replace("0.0.0.0", "127.0.0.1")
        assert await status(timerd, "DELETE", f"/v1/keys/{admin['id']}", "another") == 204
        assert await timerd.stop() == 0
        timerd.env = {}  # none is left
        assert not await (await timerd.spawn())
        assert await timerd.wait() == 2
        assert "--insecure" in timerd.stderr[-1]
        recovered = [line for line in timerd.stderr if "event=recovered" in line]
        assert len(recovered) == 3  # the fourth start ended before it touched the log
        timerd.options = ()
        await timerd.start()
        assert (await timerd.request("GET", "/v1/keys"))[0] == 200


async def test_a_limit_holds_and_the_client_keeps_to_it(tmp_path: Path) -> None:
    async with Process(tmp_path / "data", env=ENV) as timerd:
        await timerd.request("PUT", "/v1/types/t", {"url": "http://127.0.0.1:9/"}, **bearer(OWNER))
        key = await create(timerd, "arm", max_per_second="50")
        items = {"timers": [{"id": f"{n}", "type": "t", "fire_at": FAR} for n in range(100)]}
        async with timerd.session.post(timerd.url + "/v1/timers", json=items, **bearer(key["key"])) as answer:
            assert answer.status == 200
            assert answer.headers["RateLimit-Policy"] == '"key";q=50;qu="timers";w=1'
            assert re.fullmatch(r'"key";r=0;t=[12]', answer.headers["RateLimit"])
        async with timerd.session.post(timerd.url + "/v1/timers", json=items, **bearer(key["key"])) as answer:
            assert answer.status == 429
            assert problem(await answer.json(content_type=None)) == "rate-limited"
            assert answer.headers["Retry-After"] in ("1", "2")
            assert answer.headers["RateLimit"] == f'"key";r=0;t={answer.headers["Retry-After"]}'
        refused = await cli(timerd, "arm", "x", "--type", "t", "--in", "1h", key=key["key"])
        assert (refused.exit_code, "429 rate-limited" in refused.stderr) == (1, True)
        assert await status(timerd, "GET", "/v1/timers", OWNER) == 200
        async with AsyncTimerd(timerd.url, key=key["key"], timeout=20) as client:
            done = await client.arm("later", "t", delay=3_600)  # is told to wait, and does
            assert done.armed
        slow = await create(timerd, "arm", max_per_second="1")
        async with AsyncTimerd(timerd.url, key=slow["key"], timeout=3) as client:
            await asyncio.gather(*(client.arm(f"s{n}", "t", delay=3_600) for n in range(60)))
            with pytest.raises(RateLimited) as limited:
                await client.arm("one-more", "t", delay=3_600)
            assert limited.value.retry_after is not None
            assert limited.value.retry_after > 3
        async with AsyncTimerd(timerd.url, key=slow["key"][:-1]) as client:
            with pytest.raises(Unauthorized):
                await client.get("a")
        reader = await create(timerd, "read")
        async with AsyncTimerd(timerd.url, key=reader["key"]) as client:
            with pytest.raises(Forbidden, match="'arm'"):
                await client.arm("a", "t", delay=1)


async def test_no_secret_is_in_anything_that_leaves(tmp_path: Path) -> None:
    """Secrets of every kind are planted; all that is answered, printed, logged and stored is searched for them."""
    webhook = "whsec_" + "UGxhbnRlZFNlY3JldA" * 2
    header = "planted-header-value"
    said: list[str] = []
    async with Processor() as processor, Process(tmp_path / "data", "--log-level", "debug", env=ENV) as timerd:
        processor.answer = lambda delivery: Answer(500)
        admin = (await create(timerd, "admin"))["key"]
        gone = await create(timerd, "admin")
        secrets = [OWNER, admin, gone["key"], admin.split("_", 2)[2], gone["key"].split("_", 2)[2]]

        async def ask(method: str, path: str, body: Any = None, key: str | None = admin, **headers: str) -> int:
            if key is not None:
                headers["Authorization"] = f"Bearer {key}"
            async with timerd.session.request(method, timerd.url + path, json=body, headers=headers) as answer:
                said.append(f"{answer.headers} {await answer.text()}")
                return answer.status

        planted = {"url": processor.url, "signing_secrets": [webhook], "headers": {"X-Auth": header}, "max_lag": 0}
        assert await ask("PUT", "/v1/types/t", {**planted, "retry": {"max_attempts": 1}}) == 201
        assert await ask("POST", "/v1/timers", {"timers": [{"id": "a", "type": "t", "delay": 0}]}) == 200
        await processor.until(lambda: bool(processor.deliveries))
        for body in ({**planted, "url": "h"}, {**planted, "max_lag": "x"}, {**planted, "headers": {"host": header}}):
            assert await ask("PUT", "/v1/types/t", body) == 422
        assert await ask("PUT", "/v1/types/t", {**planted, "signing_secrets": [webhook + "!"]}) == 422
        for path in ("/v1/types", "/v1/types/t", "/v1/keys", "/v1/stats", "/v1/status", "/v1/shards", "/metrics"):
            assert await ask("GET", path) == 200
        for path in ("/v1/timers", "/v1/timers/a", "/v1/dead-letters", "/docs", "/openapi.json", "/v1/nothing"):
            await ask("GET", path)
        await ask("DELETE", f"/v1/keys/{gone['key']}")  # a key where its id should be
        await ask("DELETE", f"/v1/keys/{gone['id']}")
        for key in (gone["key"], OWNER + "x", admin + "x", admin[:-1], None):
            assert await ask("GET", "/v1/timers", key=key) == 401
        assert await ask("POST", "/v1/keys", {"name": admin, "scopes": ["read"]}) == 422
        await ask("POST", "/v1/timers:cancel", {"ids": ["x"]}, Timerd_Expires=admin)
        with_address = ["get", "a", "--url", f"http://u:{admin}@h/"]
        for command in ("types", "keys list", "type get t", "stats", "arm --help", "serve --help", with_address):
            arguments = command.split() if isinstance(command, str) else command
            said += [(await cli(timerd, *arguments, key=admin)).output]
        assert await timerd.stop() == 0
        assert timerd.complaints() == []
        said += timerd.stderr + timerd.log
        assert any("event=audit" in line for line in timerd.stderr)
    secrets += [webhook, webhook.removeprefix("whsec_"), header]
    assert [text for text in said if any(secret in text for secret in secrets)] == []
    stored = b"".join(file.read_bytes() for file in (tmp_path / "data").iterdir())
    assert [secret for secret in secrets[:5] if secret.encode() in stored] == []
