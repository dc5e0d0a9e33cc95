"""Every signal: what it does is what docs/operations.md says, and none loses an acknowledged timer."""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.cases import FULL
from tests.support.disk_shim import ALWAYS, DiskShim
from tests.support.process import Process
from tests.support.processor import Answer, Processor

STOPPING = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
ENDING = [
    signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGABRT, signal.SIGVTALRM, signal.SIGPROF,
    signal.SIGIO, signal.SIGSYS, signal.SIGXCPU, signal.SIGSEGV,
]  # fmt: skip
FREEZING = [signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGSTOP]
WITHOUT_EFFECT = [signal.SIGPIPE, signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT]
NO_CORE = ("prlimit", "--core=0", "--")
GRACE_S = 1.5
LATE_S = 10.0  # much more than a machine that has nothing else to do needs
ENDS_S = 20


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """The tests may run under nohup, or behind a shell's `&`, and a process inherits what is ignored."""
    ignored = [number for number in (*STOPPING, *ENDING) if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


async def arm(timerd: Process, prefix: str, count: int = 20) -> set[str]:
    """Timers that stay."""
    ids = {f"{prefix}-{n}" for n in range(count)}
    await timerd.arm([{"id": id, "type": "t", "delay": "1h", "payload": "x" * 600} for id in ids])
    return ids


async def listed(timerd: Process) -> set[str]:
    return {timer["id"] for timer in await timerd.list()}


@pytest.mark.slow
async def test_a_signal_that_ends_it_loses_nothing(tmp_path: Path) -> None:
    async with Process(tmp_path / "data", inside=NO_CORE) as timerd:
        await timerd.put_type("t", url="http://127.0.0.1:9/")
        armed: set[str] = set()
        for number in [*STOPPING, *ENDING] if FULL else [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1]:
            armed |= await arm(timerd, number.name)
            timerd.signal(number)
            assert await timerd.wait(ENDS_S) == (0 if number in STOPPING else -number), number.name
            await timerd.start()
            assert await listed(timerd) == armed, number.name
        for number in WITHOUT_EFFECT:
            timerd.signal(number)
            armed |= await arm(timerd, number.name)
        for number in FREEZING:
            timerd.signal(number)
            # (SIGTSTP and its like do nothing to a process without a shell that could continue it.)
            arming = asyncio.create_task(arm(timerd, number.name))
            await asyncio.wait([arming], timeout=0.2)
            assert not (number is signal.SIGSTOP and arming.done())
            timerd.signal(signal.SIGCONT)
            armed |= await arming
        assert await listed(timerd) == armed
        assert not timerd.complaints()


@pytest.mark.slow
async def test_under_nohup_a_hangup_is_ignored(tmp_path: Path) -> None:
    async with Process(tmp_path / "data", inside=("sh", "-c", 'trap "" HUP; exec "$@"', "sh")) as timerd:
        await timerd.put_type("t", url="http://127.0.0.1:9/")
        timerd.signal(signal.SIGHUP)
        assert await arm(timerd, "later") == await listed(timerd)
        assert await timerd.stop() == 0


@pytest.mark.slow
async def test_a_stop_with_a_hanging_delivery_ends_in_its_time_however_often_it_is_asked_for(tmp_path: Path) -> None:
    async def hang(_: object) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    async with Processor(hang) as hanging, Processor() as well:
        timerd = Process(tmp_path / "data", "--grace", str(GRACE_S))
        async with timerd:
            await timerd.put_type("hanging", url=hanging.url)
            await timerd.put_type("t", url=well.url, max_lag=0)
            far = await arm(timerd, "far")
            await timerd.arm([{"id": "hangs", "type": "hanging", "delay": 0}, {"id": "done", "type": "t", "delay": 0}])
            await hanging.until(lambda: "hangs" in hanging.ids)
            await well.until(lambda: "done" in well.ids)
            asked = time.monotonic()
            timerd.signal(signal.SIGTERM)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                await asyncio.sleep(GRACE_S / 6)
                timerd.signal(number)
            assert await timerd.wait(ENDS_S) == 0
            assert GRACE_S <= time.monotonic() - asked < GRACE_S + LATE_S
            await timerd.start()
            await hanging.until(lambda: hanging.counts["hangs"] == 2)
            repeated = [timer for _, timer in hanging.timers()][-1]
            assert repeated["possible_duplicate"]
            assert await listed(timerd) == far | {"hangs"}
            assert well.counts["done"] == 1 or [timer for _, timer in well.timers()][-1]["possible_duplicate"]
            assert not timerd.complaints()


@pytest.mark.slow
async def test_a_stop_during_the_start_is_prompt_and_loses_nothing(tmp_path: Path) -> None:
    disk = DiskShim(tmp_path)
    async with Process(tmp_path / "data", env=disk.env) as timerd:
        await timerd.put_type("t", url="http://127.0.0.1:9/")
        armed = await arm(timerd, "id")
        timerd.kill()
        for number in STOPPING if FULL else STOPPING[:1]:
            await timerd.wait()
            struck = len(disk.seen())
            disk.order("sync", ".log", "stuck", times=ALWAYS, ms=60_000)  # the start is in the middle of its recovery
            ready = await timerd.spawn()
            async with asyncio.timeout(ENDS_S):
                while len(disk.seen()) == struck:
                    await asyncio.sleep(0.02)
            timerd.signal(number)
            assert await timerd.wait(ENDS_S) == 0
            assert not await ready
            assert f"timerd: {number.name} before it was ready" in timerd.stderr[-1]
        disk.clear()
        await timerd.start()
        assert await listed(timerd) == armed


# ---- nobody reads what it prints


@contextlib.asynccontextmanager
async def unheard(data: Path, redirection: str) -> AsyncIterator[Process]:
    """Started on a port that we choose, since its ready line can't be read."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    timerd = Process(data, "--port", str(port), inside=("sh", "-c", f'exec "$@" {redirection}', "sh"))
    timerd.url = f"http://127.0.0.1:{port}"
    await timerd.spawn()

    async def is_ready() -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            return (await timerd.request("GET", "/readyz"))[0] == 200
        assert timerd.process is not None
        assert timerd.process.returncode is None
        return False

    try:
        await timerd.until(is_ready)
        yield timerd
    finally:
        await timerd.__aexit__()


@pytest.mark.slow
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "<&- >&- 2>&-"] if FULL else ["2>/dev/full"])
async def test_lines_that_nobody_takes_end_nothing(tmp_path: Path, redirection: str) -> None:
    async with (
        Processor(lambda delivery: Answer(500 if len(delivery.ids) > 1 else 200)) as processor,
        unheard(tmp_path / "data", redirection) as timerd,
    ):
        await timerd.put_type("t", url=processor.url, retry={"min_backoff": "50ms", "max_backoff": "100ms"})
        ids = {f"id-{n}" for n in range(4)}
        await timerd.arm([{"id": id, "type": "t", "delay": 0} for id in ids])
        await processor.until(lambda: processor.ids == ids and any(len(d.ids) == 1 for d in processor.deliveries))
        far = await arm(timerd, "far")
        assert far <= await listed(timerd)
        assert await timerd.stop() == 0
        assert b"level=" not in b"".join(path.read_bytes() for path in (tmp_path / "data").iterdir())


@pytest.mark.slow
async def test_a_reader_of_its_lines_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    async with Processor(lambda delivery: Answer(500)) as processor, Process(tmp_path / "data") as timerd:
        await timerd.put_type("t", url=processor.url)
        assert timerd.process is not None
        timerd.process._transport.get_pipe_transport(2).close()  # type: ignore[attr-defined]
        await timerd.arm([{"id": "id", "type": "t", "delay": 0}])
        await processor.until(lambda: bool(processor.deliveries))
        assert await arm(timerd, "later") <= await listed(timerd)
        assert await timerd.stop() == 0
