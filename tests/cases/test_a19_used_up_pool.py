"""A19: timed-out requests use up the connection pool for good.

A request that was cancelled while its connection was being set up left the slot occupied, neither closed nor idle:
after a spell of time-outs everything failed until a restart (encode/httpx #1461, #1171, encode/httpcore PR #1099).
"""

import asyncio
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.callbacks.target import Target
from tests.support.cases import SLACK_S, each, millis, outside, seeded, sized
from tests.support.hanging import FullQueue, Silent, dropping_address, open_sockets, until_sockets
from tests.support.process import Process
from tests.support.processor import Processor
from timerd_client import AsyncTimerd, Timerd, TimerdError

SLOTS = 10
TIMEOUT_S = sized(1.0, 0.4)
PHASE_1_S = sized(60.0, 3.0)
HUNG = 300
ANEW = 500
MAX_LAG_S = 1.0
SPARE_SOCKETS = 8  # the requests of the test itself
CLIENT_TIMEOUT_S = 1.5
BACK_S_MAX = 20
CLIENT_PHASE_1_S = sized(60.0, 0.0)
CALLS = 300


@pytest.mark.slow
async def test_targets_that_hung_are_served_as_soon_as_they_are_well(tmp_path: Path) -> None:
    rng = seeded()
    silent, tls, full = Silent(), Silent(), FullQueue()
    urls = {
        "silent": f"http://127.0.0.1:{silent.port}/",
        "tls": f"https://127.0.0.1:{tls.port}/",
        "full": f"http://127.0.0.1:{full.port}/",
    }
    if address := dropping_address():
        urls["dropped"] = f"http://{address}:81/"
    else:
        print("no address here drops SYNs; a full accept queue does")
    retry = {"min_backoff": "20ms", "max_backoff": "100ms"}
    options = {"batch_size": 1, "max_in_flight": SLOTS, "request_timeout": TIMEOUT_S, "retry": retry}

    async with Process(tmp_path / "data") as timerd, AsyncExitStack() as healthy:
        for name, url in urls.items():
            await timerd.put_type(name, url=url, max_lag=MAX_LAG_S, **options)
        before = open_sockets(timerd.pid)
        hung = {f"hung-{n}": list(urls)[n % len(urls)] for n in range(HUNG)}
        begin = time.time()
        await timerd.arm([{"id": id, "type": type, "delay": 0} for id, type in hung.items()])
        most = 0
        while time.time() < begin + PHASE_1_S:
            most = max(most, open_sockets(timerd.pid))
            await asyncio.sleep(0.05)
        stats = {name: await timerd.stats(name) for name in urls}
        print({name: (each["batches"], each["breaker"]) for name, each in stats.items()}, f"{most} sockets at most")
        assert all(each["batches"] > SLOTS for each in stats.values()), "nothing was tried again"
        assert all(each["fired"] == 0 for each in stats.values())
        assert most <= before + len(urls) * SLOTS + SPARE_SOCKETS

        processors = {}
        for name, port in (("silent", silent.end()), ("full", full.end()), ("tls", tls.end()), ("dropped", 0)):
            if name in urls:
                processors[name] = await healthy.enter_async_context(Processor(port=port))
                if name in ("tls", "dropped"):  # no certificate that it trusts, and nobody at that address
                    await timerd.put_type(name, url=processors[name].url, max_lag=MAX_LAG_S, **options)
        at = time.time() + 0.5
        anew = {f"anew-{n}": (rng.choice(list(urls)), at + rng.random() * 2) for n in range(ANEW)}
        await timerd.arm([{"id": id, "type": type, "fire_at": millis(when)} for id, (type, when) in anew.items()])
        for name, processor in processors.items():
            due = {id: millis(when) / 1000 for id, (type, when) in anew.items() if type == name}
            expected = due.keys() | {id for id, type in hung.items() if type == name}
            await processor.until(lambda: processor.ids >= expected)  # noqa: B023 (done with before the next round)
            assert not outside(processor, due, max_lag_s=MAX_LAG_S)
            assert processor.ids == expected

        async def all_fired() -> bool:
            return all([(await timerd.stats(name))["live"] == 0 for name in urls])

        await timerd.until(all_fired)
        await until_sockets(before + SPARE_SOCKETS, timerd.pid)
        assert not timerd.complaints()


@pytest.mark.slow
async def test_hosts_of_callbacks_that_hung_are_served_as_soon_as_they_are_well(tmp_path: Path) -> None:
    """The same for callbacks, whose connections are others: guarded, looked up anew, counted by host."""
    rng = seeded()
    silent, tls, full = Silent(), Silent(), FullQueue()
    urls = {
        "silent": f"http://127.0.0.1:{silent.port}/",
        "full": f"http://127.0.0.1:{full.port}/",
        "tls": f"https://127.0.0.1:{tls.port}/",
    }
    options = ["--callback-allow", "127.0.0.0/8"]
    if address := dropping_address():
        urls["dropped"] = f"http://{address}:81/"
        options += ["--callback-allow", f"{address}/32"]
    retry = {"min_backoff": "20ms", "max_backoff": "100ms", "max_attempts": 0}

    async with Process(tmp_path / "data", *options) as timerd, AsyncExitStack() as healthy:
        # A host gets a quarter.
        fields = {"kind": "callback", "max_in_flight": 4 * SLOTS, "request_timeout": TIMEOUT_S, "max_lag": MAX_LAG_S}
        await timerd.put_type("c", retry=retry, **fields)
        before = open_sockets(timerd.pid)
        hung = {f"hung-{n}": list(urls)[n % len(urls)] for n in range(HUNG)}
        begin = time.time()
        await timerd.arm([callback(id, urls[name], delay=0) for id, name in hung.items()])
        most = 0
        while time.time() < begin + PHASE_1_S:
            most = max(most, open_sockets(timerd.pid))
            await asyncio.sleep(0.05)
        stats = await timerd.stats("c")
        print(f"{stats['batches']} batches, {stats['retried']} failures, {most} sockets at most")
        assert stats["retried"] > len(urls), "nothing was tried again"
        assert stats["fired"] == 0
        assert most <= before + len(urls) * SLOTS + SPARE_SOCKETS

        targets = {"silent": Target(), "full": Target()}
        for name, port in (("silent", silent.end()), ("full", full.end())):
            targets[name].port = port
            await healthy.enter_async_context(targets[name])
        # The others have nobody with a certificate that is trusted, or nobody at all: their callbacks get another URL.
        moved = [id for id, name in hung.items() if name not in targets]
        await timerd.arm([callback(id, targets["silent"].url, delay=0) for id in moved])
        at = time.time() + 0.5
        due = {f"anew-{n}": millis(at + rng.random() * 2) / 1000 for n in range(ANEW)}
        to = {id: rng.choice(list(targets)) for id in due}
        await timerd.arm([callback(id, targets[to[id]].url, fire_at=millis(when)) for id, when in due.items()])

        async def all_fired() -> bool:
            return bool((await timerd.stats("c"))["live"] == 0)

        await timerd.until(all_fired)
        got = {each.id: each for target in targets.values() for each in target.got}
        assert got.keys() == due.keys() | hung.keys()
        late = {id: got[id].at - when for id, when in due.items()}
        print(f"lag of new ones {min(late.values()):.3f} to {max(late.values()):.3f} s")
        assert min(late.values()) >= 0
        assert max(late.values()) <= MAX_LAG_S + SLACK_S
        await until_sockets(before + SPARE_SOCKETS, timerd.pid)
        assert not timerd.complaints()


def callback(id: str, url: str, **when: Any) -> dict[str, Any]:
    return {"id": id, "type": "c", "request": {"url": url, "body": id}, **when}


class Caller:
    """The same calls on either client, as many at a time as there are."""

    def __init__(self, make: "Client", url: str) -> None:
        self._client: Any = make(url, timeout=CLIENT_TIMEOUT_S)
        self._threads = ThreadPoolExecutor(CALLS) if make is Timerd else None

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        call = partial(getattr(self._client, name), *args, **options)
        if self._threads is None:
            return await call()
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def arm(self, id: str) -> Any:
        return await self._call("arm", id, "t", delay=3_600)

    async def read(self, id: str) -> Any:
        """Given up early: the async client's task is cancelled while its connection is made, or while it waits."""
        return await asyncio.wait_for(self._call("get", id), CLIENT_TIMEOUT_S / 3)

    async def close(self) -> None:
        await self._call("close")
        if self._threads is not None:
            self._threads.shutdown()


Client = type[Timerd] | type[AsyncTimerd]


@pytest.mark.slow
async def test_the_client_outlives_a_timerd_that_hung(tmp_path: Path) -> None:
    seeded()
    before = open_sockets()

    async def run(make: Client) -> None:
        await outlives(tmp_path / make.__name__, make)

    await each(run, [Timerd, AsyncTimerd])
    await until_sockets(before)


async def outlives(data: Path, make: Client) -> None:
    """Twice: one whose accept queue is full before it comes up, and one that is stopped in the middle."""
    full = FullQueue()
    client = Caller(make, f"http://127.0.0.1:{full.port}")

    async def everything_fails(prefix: str) -> None:
        until = time.monotonic() + CLIENT_PHASE_1_S
        while True:
            ids = [f"{prefix}-{n}" for n in range(CALLS // 2)]
            outcomes = await asyncio.gather(*map(client.arm, ids), *map(client.read, ids), return_exceptions=True)
            assert all(isinstance(outcome, (TimerdError, TimeoutError)) for outcome in outcomes), outcomes
            if time.monotonic() >= until:
                return

    async def comes_back() -> None:
        """What its callers have given up in the meantime, it has to look at and refuse first."""
        begin = time.monotonic()
        async with asyncio.timeout(BACK_S_MAX):
            while True:
                try:
                    await client.arm("back")
                    break
                except TimerdError:
                    continue
        print(f"back {time.monotonic() - begin:.1f} s after it was frozen")

    async def everything_works(prefix: str) -> None:
        ids = {f"{prefix}-{n}" for n in range(ANEW)}
        results = await asyncio.gather(*map(client.arm, ids))
        assert {result.id for result in results} == ids
        assert {timer["id"] for timer in await timerd.list(f"&id_prefix={prefix}")} == ids

    await everything_fails("refused")
    async with Process(data, "--port", str(full.end())) as timerd:
        await timerd.put_type("t", url="http://127.0.0.1:9/")
        await everything_works("first")
        timerd.signal(signal.SIGSTOP)
        await everything_fails("frozen")
        timerd.signal(signal.SIGCONT)
        await comes_back()
        await everything_works("second")
        await client.close()
        assert not timerd.complaints()
