"""Callbacks and what happens to a service: hosts that are down, crashes, stops. Each has a process of its own."""

import time
from pathlib import Path

from tests.callbacks.conftest import ALLOW, Calls, callback, callbacks
from tests.callbacks.target import Reply, Target
from tests.support.process import Process

DEAD = 2_000


async def test_a_dead_host_holds_up_nobody_and_comes_back(tmp_path: Path) -> None:
    async with Process(tmp_path / "data", *ALLOW) as timerd, Target() as target, Target() as down:
        await down.stop()
        calls = Calls(timerd, "call")
        retry = {"min_backoff": "100ms", "max_backoff": "500ms", "max_attempts": 0}
        await calls.put(max_lag="1s", max_in_flight=256, retry=retry)
        await calls.arm(*callbacks([f"dead{n}" for n in range(DEAD)], down.url, body="x" * 600))
        due = time.time() + 0.5
        await calls.arm(*callbacks([f"good{n}" for n in range(200)], target.url, delay=0.5))
        await target.until(lambda: len(target.got) == 200)
        assert target.got[-1].at - due < 5
        before, at = timerd.cpu_s(), time.monotonic()

        async def waited() -> bool:
            return time.monotonic() > at + 2

        await timerd.until(waited)
        assert (timerd.cpu_s() - before) / (time.monotonic() - at) < 0.3, "those of the dead host are not polled"
        assert (await calls.stats())["retried"] < 300, "what was under way before, and then one probe at a time"
        # What waits can be cancelled, moved and read like any other timer.
        last, moved = f"dead{DEAD - 1}", f"dead{DEAD - 2}"
        assert (await timerd.get(last) or {})["state"] in ("due", "retrying")
        status, answer = await timerd.request("DELETE", f"/v1/timers/{last}")
        assert (status, answer["in_flight"]) == (200, False)
        await calls.arm(callback(moved, target.url))
        await target.until(lambda: moved in target.ids)
        await down.start()
        await down.until(lambda: len(set(down.ids)) == DEAD - 2, 60)
        await calls.until_fired(DEAD - 2 + 201)
        assert last not in down.ids
        assert not timerd.complaints()


async def test_after_a_kill_what_waited_is_due_and_what_flew_may_be_a_repeat(tmp_path: Path) -> None:
    async with Process(tmp_path / "data", *ALLOW) as timerd, Target(lambda got: Reply(delay_s=30)) as target:
        calls = Calls(timerd, "call")
        await calls.put(max_in_flight=4)
        await calls.arm(*callbacks([str(n) for n in range(10)], target.url))
        await target.until(lambda: bool(target.got))
        timerd.kill()
        target.answer = lambda got: Reply()
        before = len(target.got)
        await timerd.start()
        await target.until(lambda: len(target.got) == before + 10)
        assert all(got.headers["timerd-possible-duplicate"] == "true" for got in target.got[before:])
        assert sorted(got.id for got in target.got[before:]) == [str(n) for n in range(10)]


async def test_a_stop_lets_requests_end_and_begins_none(tmp_path: Path) -> None:
    async with Process(tmp_path / "data", *ALLOW) as timerd, Target() as target:
        # The first comes back at once; until then the host would get one at a time.
        target.answer = lambda got: Reply(delay_s=1 if len(target.got) > 1 else 0)
        calls = Calls(timerd, "call")
        await calls.put(max_in_flight=8)
        await calls.arm(*callbacks([str(n) for n in range(10)], target.url))
        await target.until(lambda: target.open == 2)
        assert await timerd.stop() == 0
        assert len(target.got) == 3
        target.answer = lambda got: Reply()
        await timerd.start()
        await target.until(lambda: len(target.got) == 10)
        assert not any("timerd-possible-duplicate" in got.headers for got in target.got)
        assert not timerd.complaints()
