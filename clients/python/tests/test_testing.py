"""timerd for tests, tested as its users would: sixty days in a moment, for plain tests and for coroutines."""

import asyncio
import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from timerd_client import Batch, rearm, retry
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


def test_the_example_in_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()
    files = re.findall(r"```python\n# (\w+\.py)[^\n]*\n(.*?)```", page, re.DOTALL)
    assert [name for name, _ in files] == ["conftest.py", "reminders.py", "test_reminders.py"]
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
    assert "1 passed" in ended.stdout
