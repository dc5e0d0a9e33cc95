"""A whole run: timerd, the feeds' side and the service, watched, and judged at the end.

The order of the ends matters. timerd goes first, and lets the open deliveries finish; then the service has nothing more
to answer; the provider goes last, and its log is complete when it is read.
"""

import asyncio
import shutil
import signal
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from timerd_client import AsyncTimerd, TimerdError, TypeStats, processor

from . import opml, provider
from .cadence import Cadence
from .child import Child, ChildFailed, provider_command, timerd_command
from .judge import Plan, Seen, Verdict, judge
from .listener import free_port, listening
from .poller import Poller
from .screen import Figures, Screen, show_verdict
from .service import BACKOFF_S_MAX, CUTOFF_S, TYPE, Poll, Service, now_ms, start, timer_id
from .store import Store

HOST = "127.0.0.1"
TICK_S = 0.5
LOOKUPS_MAX = 64
ASK_S_MAX = 1.0
RATE_TICKS = 10
"""Polls a second are counted over the last 5 s: an interval of the demo."""
INTERRUPTED = 130


class Options(NamedTuple):
    opml: Path
    judged: bool
    """End with a verdict. Otherwise run until Ctrl-C."""
    seconds: float | None
    interval: timedelta
    failed_interval_max: timedelta
    max_lag: timedelta
    online: bool
    kill: bool
    db: Path | None
    timerd: str | None
    key: str | None
    host: str
    port: int
    seed: int


async def run(options: Options, console: Console) -> int:
    """Run until the time is up or a signal comes. Answers the exit code."""
    lists = opml.read(options.opml)
    if options.judged:
        console.print(_plan(options, len(lists.feeds)), highlight=False)
    files = "1 file" if lists.files == 1 else f"{lists.files} files"
    console.print(
        f"{len(lists.feeds):,} feeds from {files} ({lists.duplicates} named twice, {len(lists.skipped)} skipped)",
        highlight=False,
    )
    for skipped in lists.skipped:
        console.print(f"  skipped {skipped}", markup=False, highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="timerd-feeds-"))
    kept = True
    try:
        code = await _Run(options, console, lists.feeds, folder).run()
        kept = code not in (0, INTERRUPTED)
        return code
    finally:
        if kept:
            console.print(f"logs are kept in {folder}", highlight=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _plan(options: Options, feeds: int) -> str:
    """What a demo is about to do, for somebody who sees it the first time."""
    timerd = f"This uses the timerd at {options.timerd}" if options.timerd else "This starts a timerd of its own"
    if options.online:
        source, log = f"polls {feeds:,} feeds on the network", "the times at which polls left"
    else:
        source = f"a local provider of {feeds:,} feeds, some of them broken or slow on purpose"
        source, log = f"starts {source}" if options.timerd else source, "the provider's log of requests"
    kill = "\nHalfway timerd is killed with kill -9 and started again on the same data." if options.kill else ""
    return (
        f"{timerd} and {source}.\n"
        f"Each feed is polled every {options.interval.total_seconds():g} s, for {options.seconds:g} s; "
        f"then the run is judged by {log}.{kill}\n"
    )


class _Run:
    def __init__(self, options: Options, console: Console, feeds: list[opml.Listed], folder: Path) -> None:
        self._options = options
        self._console = console
        self._feeds = feeds
        self._folder = folder
        self._polls: list[Poll] = []
        self._outages: list[tuple[int, int]] = []
        self._killed = False
        self._children: dict[str, Child] = {}
        self._interrupted = asyncio.Event()
        self._stats = TypeStats()
        self._due: int | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        # Names are looked up in threads, and a handful, as by default, is soon full of hosts that don't answer.
        loop.set_default_executor(ThreadPoolExecutor(LOOKUPS_MAX))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupted.set)
        options = self._options
        async with AsyncExitStack() as stack:
            resolve = None if options.online else await self._start_provider(stack)
            store = Store(options.db or self._folder / "feeds.sqlite")
            stack.callback(store.close)
            poller = await stack.enter_async_context(Poller(CUTOFF_S, resolve))
            watch = self._polls.append if options.judged and options.online else None
            service = Service(store, poller.poll, options.failed_interval_max, watch)
            url = await stack.enter_async_context(listening(processor(service.handle), options.host, options.port))
            timerd = options.timerd or await self._start_timerd(stack)
            client = await stack.enter_async_context(AsyncTimerd(timerd, key=options.key))
            began = now_ms()
            first_due = await start(client, store, self._feeds, url, options.interval, options.max_lag)
            self._count_absence(min(first_due.values()))
            await self._watch(client, service)
            ended = now_ms()
            if options.timerd and not options.db:
                # The store goes with this run, and its timers would poll for nobody.
                with suppress(TimerdError):
                    await client.cancel_many([timer_id(feed.url) for feed in self._feeds])
        if not options.judged:
            return 0
        cadence = Cadence(_ms(options.interval), _ms(options.failed_interval_max))
        max_lag_ms = _ms(options.max_lag)
        verdict = self._judge(Plan(first_due, cadence, max_lag_ms, ended, self._outages, began, self._killed))
        return INTERRUPTED if self._interrupted.is_set() else 0 if verdict.passed else 1

    def _count_absence(self, oldest_due: int) -> None:
        """A store with overdue feeds: no service ran for a while, and timerd may wait until its next try."""
        if oldest_due < now_ms():
            self._outages.append((oldest_due, now_ms() + int(BACKOFF_S_MAX * 1000)))

    async def _start_provider(self, stack: AsyncExitStack) -> Callable[[str], str]:
        urls = self._folder / "urls.txt"
        urls.write_text("".join(f"{feed.url}\n" for feed in self._feeds))
        slow_s = max(CUTOFF_S, self._options.interval.total_seconds()) + 1
        command = provider_command(urls, self._folder / "requests.jsonl", self._options.seed, slow_s)
        child = await self._start("provider", command, stack)
        return lambda url: provider.address(child.url, url)

    async def _start_timerd(self, stack: AsyncExitStack) -> str:
        # The port is chosen here, so that a restarted timerd is found at the same place.
        self._timerd_command = timerd_command(self._folder / "timerd", HOST, free_port(HOST))
        return (await self._start("timerd", self._timerd_command, stack)).url

    async def _start(self, name: str, command: list[str], stack: AsyncExitStack | None) -> Child:
        try:
            child = await Child.start(command, self._folder / f"{name}.log")
        except ChildFailed as error:
            raise ChildFailed(f"{name} {error}") from None
        self._children[name] = child
        if stack:
            stack.push_async_callback(lambda: self._children.pop(name).stop())
        return child

    async def _watch(self, client: AsyncTimerd, service: Service) -> None:
        options, loop = self._options, asyncio.get_running_loop()
        began, counts = loop.time(), deque([0], maxlen=RATE_TICKS + 1)
        note = ""
        kill_at = options.seconds / 2 if options.kill and options.seconds else None
        title = f"{len(self._feeds):,} feeds, every {options.interval.total_seconds():g} s"
        title += f", max_lag {options.max_lag.total_seconds():g} s, {'online' if options.online else 'local provider'}"
        with Screen(self._console, title, options.seconds) as screen:
            while not self._interrupted.is_set():
                elapsed = loop.time() - began
                if options.seconds is not None and elapsed >= options.seconds:
                    return
                if kill_at is not None and elapsed >= kill_at:
                    kill_at, note = None, await self._kill_timerd()
                for name, child in self._children.items():
                    if not child.alive:
                        raise ChildFailed(f"{name} ended by itself; see {self._folder / name}.log")
                await self._ask(client)
                counts.append(service.tally.polls)
                rate = (counts[-1] - counts[0]) / (TICK_S * (len(counts) - 1))
                screen.show(self._figures(elapsed, rate, service, note))
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._interrupted.wait()

    async def _kill_timerd(self) -> str:
        """A power cut in the middle: kill -9, and the same again on the same data."""
        down, self._killed = now_ms(), True
        await self._children["timerd"].kill()
        await self._start("timerd", self._timerd_command, None)
        self._outages.append((down, now_ms()))
        return f"timerd was killed and is back after {(self._outages[-1][1] - down) / 1000:.1f} s"

    async def _ask(self, client: AsyncTimerd) -> None:
        """What timerd says of itself, for the table only; while it says nothing, the last word stands."""
        with suppress(TimerdError, TimeoutError):
            async with asyncio.timeout(ASK_S_MAX):
                self._stats = (await client.stats()).get(TYPE, self._stats)
                self._due = (await client.status()).timers.get("due")

    def _figures(self, elapsed: float, rate: float, service: Service, note: str) -> Figures:
        stats, tally = self._stats, service.tally
        lags = {key.removesuffix("_ms"): value for key, value in stats.lag.items()}
        return Figures(
            elapsed_s=elapsed,
            timers_live=stats.live,
            due=self._due,
            polls_per_s=rate,
            batches=stats.batches,
            batch_size_mean=stats.mean_batch_size,
            lag_p50_ms=lags.get("p50"),
            lag_p99_ms=lags.get("p99"),
            lag_max_ms=lags.get("max"),
            polls=tally.polls,
            failed=tally.failed,
            unmodified=tally.unmodified,
            new_entries=tally.new_entries,
            note=note,
        )

    def _judge(self, plan: Plan) -> Verdict:
        if self._options.online:
            seen = [Seen(*poll) for poll in self._polls]
            outcomes = Counter("failed" if poll.failed else "good" for poll in seen)
            judged_by = "the times at which polls left"
        else:
            requests = provider.read_log(self._folder / "requests.jsonl")
            seen = [Seen(request.at, request.url, request.failed) for request in requests]
            outcomes = Counter(request.how for request in requests)
            judged_by = "the provider's own log of requests"
        verdict = judge(seen, plan)
        show_verdict(self._console, verdict, judged_by, outcomes, cut_short=self._interrupted.is_set())
        return verdict


def execute(options: Options) -> int:
    """Run, and say in one line what kept it from running."""
    console = Console(stderr=False)
    try:
        return asyncio.run(run(options, console))
    except opml.BadList as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except TimerdError as error:
        print(f"error: timerd{f' at {options.timerd}' if options.timerd else ''}: {error}", file=sys.stderr)
        return 1
    except (ChildFailed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _ms(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)
