"""timerd for tests, tested as its users would: sixty days in a moment, for plain tests and for coroutines."""

import asyncio
import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from timerd_client import Batch, CallbackRequest, TimerdError, processor, rearm, retry
from timerd_client.testing import AsyncVirtualTimerd, VirtualTimerd, virtual_timerd

__all__ = ["virtual_timerd"]  # the fixture; elsewhere it comes with pytest_plugins


def test_a_reminder_after_sixty_days(virtual_timerd: VirtualTimerd) -> None:
    due = virtual_timerd.collect("reminder")
    armed_at = virtual_timerd.now
    virtual_timerd.client.arm("order:42", "reminder", delay=timedelta(days=60), payload={"order": 42})
    assert virtual_timerd.advance(timedelta(days=60) - timedelta(milliseconds=1)) == 0
    assert due == []
    assert virtual_timerd.advance(0.001) == 1
    (timer,) = due
    assert (timer.id, timer.payload) == ("order:42", {"order": 42})
    assert timer.fire_at == armed_at + timedelta(days=60) == virtual_timerd.now


def test_a_chain_of_re_arms_takes_every_step(virtual_timerd: VirtualTimerd) -> None:
    polled: list[datetime] = []

    def poll(batch: Batch) -> list[object]:
        polled.extend(timer.fire_at for timer in batch.timers)
        return [rearm(timer.id, delay=timedelta(minutes=5)) for timer in batch.timers]

    virtual_timerd.process("feed", poll, max_lag=0)
    virtual_timerd.client.arm("feed-1", "feed", delay=timedelta(minutes=5))
    began_at = virtual_timerd.now
    assert virtual_timerd.advance("1d") == 288
    assert polled == [began_at + timedelta(minutes=5 * n) for n in range(1, 289)]


def test_failures_are_tried_again_in_virtual_time(virtual_timerd: VirtualTimerd) -> None:
    attempts: list[tuple[datetime, int]] = []

    def fail(batch: Batch) -> list[object]:
        attempts.extend((virtual_timerd.now, timer.attempt) for timer in batch.timers)
        return [retry(timer.id, error="not yet") for timer in batch.timers]

    virtual_timerd.process("t", fail, retry={"max_attempts": 5, "min_backoff": "1h", "max_backoff": "1d"})
    virtual_timerd.client.arm("a", "t", delay=0)
    began = time.monotonic()
    assert virtual_timerd.advance("30d") == 0
    assert time.monotonic() - began < 10
    assert [attempt for _, attempt in attempts] == [1, 2, 3, 4, 5]
    assert attempts[-1][0] - attempts[0][0] > timedelta(hours=10)
    (letter,) = virtual_timerd.client.dead_letters()
    assert (letter.id, letter.attempts) == ("a", 5)


async def test_coroutines_on_their_own_loop() -> None:
    fired = asyncio.Event()
    async with AsyncVirtualTimerd(now=datetime(2031, 1, 1, tzinfo=UTC)) as timerd:

        async def handle(batch: Batch) -> None:
            fired.set()

        await timerd.process("t", handle)
        await timerd.client.arm("a", "t", fire_at=datetime(2031, 3, 1, tzinfo=UTC))
        assert await timerd.advance_to(datetime(2031, 2, 28, tzinfo=UTC)) == 0
        assert not fired.is_set()
        assert await timerd.advance_to(datetime(2031, 3, 1, tzinfo=UTC)) == 1
        assert fired.is_set()
        assert timerd.now == datetime(2031, 3, 1, tzinfo=UTC)
        with pytest.raises(ValueError, match="not turned back"):
            await timerd.advance_to(datetime(2031, 1, 1, tzinfo=UTC))


async def test_what_is_due_together_on_the_way_comes_together() -> None:
    async with AsyncVirtualTimerd() as timerd:
        batches: list[int] = []

        async def handle(batch: Batch) -> None:
            batches.append(len(batch.timers))

        await timerd.process("t", handle, max_lag=timedelta(seconds=10))
        for n in range(100):
            await timerd.client.arm(str(n), "t", delay=timedelta(hours=1, milliseconds=n))
        assert await timerd.advance("2h") == 100
        assert batches == [100]


async def test_an_app_that_raises_and_one_that_hangs_are_failures() -> None:
    async with AsyncVirtualTimerd() as timerd:
        calls: list[str] = []

        async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
            calls.append(scope["path"])
            if scope["path"] == "/raises":
                raise RuntimeError("no")
            await asyncio.Event().wait()

        timerd.mount("https://api.example.com", app)
        for name in ("raises", "hangs"):
            retries = {"max_attempts": 1}
            url = f"https://api.example.com/{name}"
            await timerd.client.put_type(name, url=url, request_timeout=timedelta(milliseconds=200), retry=retries)
            await timerd.client.arm(name, name, delay=0)
        await timerd.advance(0)
        assert sorted(calls) == ["/hangs", "/raises"]
        (letter,) = [letter async for letter in timerd.client.dead_letters()]
        assert (letter.id, letter.last_error) == ("raises", "HTTP 500: RuntimeError: no")


ORIGINS = [
    ("https://api.example.com", "https://API.example.com:443/hook?a=1"),
    ("http://127.0.0.1:9", "http://127.0.0.1:9/hook?a=1"),
    ("http://[::1]:80", "http://[::1]/hook?a=1"),
]


@pytest.mark.parametrize(("origin", "url"), ORIGINS)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_callback_after_sixty_days_to_a_mounted_app(
    virtual_timerd: VirtualTimerd, method: str, origin: str, url: str
) -> None:
    seen: list[tuple[object, ...]] = []

    async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        seen.append((scope["method"], scope["path"], scope["query_string"], (await receive())["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    virtual_timerd.mount(origin, app)
    virtual_timerd.client.put_type("c", kind="callback")
    body = None if method == "GET" else "x"
    request = CallbackRequest(url, method=method, body=body)
    virtual_timerd.client.arm("a", "c", delay=timedelta(days=60), request=request)
    assert virtual_timerd.advance(timedelta(days=59)) == 0
    assert virtual_timerd.advance(timedelta(days=1)) == 1
    assert seen == [(method, "/hook", b"a=1", (body or "").encode())]


def test_callbacks_to_this_machine_are_refused_where_nothing_is_mounted() -> None:
    request = CallbackRequest("http://127.0.0.1:9/")
    with VirtualTimerd() as timerd:
        timerd.client.put_type("c", kind="callback", retry={"max_attempts": 1})
        with pytest.raises(TimerdError, match="loopback"):
            timerd.client.arm("a", "c", delay=0, request=request)
        timerd.mount("http://127.0.0.1:10", lambda scope, receive, send: asyncio.sleep(0))
        timerd.client.arm("a", "c", delay=0, request=request)
        timerd.advance(0)
        (letter,) = timerd.client.dead_letters()
        assert "loopback" in letter.last_error
    with VirtualTimerd(callback_allow=["127.0.0.0/8"]) as timerd:
        timerd.client.put_type("c", kind="callback")
        timerd.client.arm("a", "c", delay=60, request=request)


@pytest.mark.parametrize(
    "origin", ["api.example.com", "https://a@b.example", "https://a.example/path", "ftp://a.example"]
)
def test_what_can_not_be_mounted(virtual_timerd: VirtualTimerd, origin: str) -> None:
    with pytest.raises(ValueError, match="origin"):
        virtual_timerd.mount(origin, lambda scope, receive, send: asyncio.sleep(0))


def test_secrets_by_reference_are_read_when_a_timer_is_due(
    virtual_timerd: VirtualTimerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = "whsec_" + "A" * 32, "whsec_" + "B" * 32
    came: list[str] = []
    (tmp_path / "hook").write_text(old)
    for name, secret in (("file", old), ("env", new)):
        app = processor(lambda batch: came.extend(timer.id for timer in batch.timers), secrets=[secret])
        virtual_timerd.mount(f"https://{name}.example.com", app)
        secrets = [f"file:{tmp_path}/hook", "env:TIMERD_TEST_HOOK"]
        put = virtual_timerd.client.put_type(name, url=f"https://{name}.example.com", signing_secrets=secrets)
        assert put.signing_secrets == secrets
        virtual_timerd.client.arm(name, name, delay=10)
    monkeypatch.setenv("TIMERD_TEST_HOOK", new)
    assert virtual_timerd.advance(10) == 2
    assert sorted(came) == ["env", "file"]


def test_a_handler_can_not_turn_the_clock(virtual_timerd: VirtualTimerd) -> None:
    errors: list[str] = []

    def handle(batch: Batch) -> None:
        try:
            virtual_timerd.advance("1h")
        except RuntimeError as error:
            errors.append(str(error))
        virtual_timerd.client.arm("b", "other", delay=0)  # this it can

    due = virtual_timerd.collect("other")
    virtual_timerd.process("t", handle)
    virtual_timerd.client.arm("a", "t", delay=60)
    assert virtual_timerd.advance("1h") == 2
    assert [error.partition(":")[0] for error in errors] == ["a handler can't turn the clock"]
    assert [timer.id for timer in due] == ["b"]


async def test_nor_can_one_that_is_a_coroutine_but_what_it_began_may() -> None:
    later: list[asyncio.Task[int]] = []
    go = asyncio.Event()
    async with AsyncVirtualTimerd() as timerd:

        async def turn() -> int:
            await go.wait()
            return await timerd.advance("1h")

        async def handle(batch: Batch) -> None:
            with pytest.raises(RuntimeError, match="a handler can't turn the clock"):
                await timerd.advance("1h")
            later.append(asyncio.create_task(turn()))

        await timerd.process("t", handle)
        await timerd.client.arm("a", "t", delay=60)
        assert await timerd.advance("1h") == 1
        go.set()
        assert await later[0] == 0


def test_a_coroutine_on_the_loop_can_not_wait_for_it(virtual_timerd: VirtualTimerd) -> None:
    errors: list[str] = []

    async def handle(batch: Batch) -> None:
        for call in (lambda: virtual_timerd.client.get("a"), lambda: virtual_timerd.advance(1)):
            try:
                call()
            except RuntimeError as error:
                errors.append(str(error))

    virtual_timerd.process("t", handle)
    virtual_timerd.client.arm("a", "t", delay=0)
    assert virtual_timerd.advance(0) == 1
    assert len(errors) == 2
    assert all("plain function" in error for error in errors)


async def test_outside_of_its_with_it_says_so() -> None:
    plain, own = VirtualTimerd(), AsyncVirtualTimerd()
    for _ in range(2):
        for call in (
            lambda: plain.client,
            lambda: plain.now,
            lambda: plain.advance(1),
            lambda: plain.collect("t"),
            lambda: own.client,
            lambda: own.now,
        ):
            with pytest.raises(RuntimeError, match="does not run"):
                call()
        with pytest.raises(RuntimeError, match="does not run"):
            await own.advance(1)
        if plain._thread.ident is None:
            with plain:
                kept = plain.client
            async with own:
                pass
            with pytest.raises(RuntimeError):
                kept.get("a")


async def test_a_turn_ends_when_its_timerd_is_closed() -> None:
    inside = asyncio.Event()
    async with AsyncVirtualTimerd() as timerd:

        async def handle(batch: Batch) -> None:
            inside.set()
            await asyncio.Event().wait()

        await timerd.process("t", handle)
        await timerd.client.arm("a", "t", delay=0)
        turn = asyncio.create_task(timerd.advance("1h"))
        await inside.wait()
    with pytest.raises(RuntimeError, match="closed"):
        await turn


def test_the_clock_ends_where_generations_do(virtual_timerd: VirtualTimerd) -> None:
    before = virtual_timerd.now
    with pytest.raises(ValueError, match="2200"):
        virtual_timerd.advance(timedelta(days=80_000))
    with pytest.raises(ValueError, match="2200"):
        virtual_timerd.advance_to(datetime(2200, 1, 1, tzinfo=UTC))
    assert virtual_timerd.now == before


def test_the_example_in_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()
    files = re.findall(r"```python\n# (\w+\.py)[^\n]*\n(.*?)```", page, re.DOTALL)
    assert [name for name, _ in files] == ["conftest.py", "reminders.py", "test_reminders.py", "test_webhook.py"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 passed" in ended.stdout
