"""The polling service: what a user of timerd writes.

timerd holds one timer a feed and hands over, in batches, what is due. For each batch the service

    claims   the feeds by key, with a lease: what is not due, or claimed by another, is skipped;
    polls    the claimed ones, all at once;
    commits  by key what was found, where the claim is still its own;
    re-arms  every feed in its answer, so that there is no moment at which a feed has no timer and nothing to lose when
             the process dies: an answer that never comes is a batch that comes again.

    1. The interval counts from the start of a poll. What a poll takes does not make the next one later.
    2. A batch that comes twice is harmless: its feeds are not due any more, or claimed, and the answer says until when.
    3. A handler holds at most `polls_max` feeds in claims, and never one that it is not polling: it waits for room
       first, then claims.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import NamedTuple, TypeVar

from timerd_client import Arm, AsyncTimerd, Batch, ItemResult, drop, rearm

from .cadence import Cadence
from .opml import Listed
from .poller import Result
from .store import Claimed, NewFeed, Polled, State, Store

TYPE = "feed-poll"
ID_BYTES_MAX = 256
"""What timerd takes as an id."""
ARMING_MS = 1000
"""Ahead of the first due time, so that the first feed isn't late before the last is armed."""

CUTOFF_S = 2.0
"""A poll is cut off after this long. A batch is answered when its last poll ends, so this is also about what it
takes, and an interval must be longer."""
LEASE_S = 6.0
"""Long enough for a poll and the store on a busy machine, short enough that a feed whose poller died is soon free."""
REQUEST_TIMEOUT_S = 10.0
"""Longer than a lease: when timerd gives an answer up, its claims have been committed or have run out."""
BATCH_SIZE = 250
MAX_IN_FLIGHT = 8
"""With batches that take 2 s, 250 x 8 feeds at once are 1,000 polls a second."""
STARTS_A_TURN = 16
"""Polls started in one turn of the event loop. A poll's interval runs from its start, and its request leaves after all
that started in the same turn: some milliseconds later with 16, a tenth of a second with a whole batch."""
BACKOFF_S_MAX = 10.0
RETRY = {"min_backoff": "1s", "max_backoff": f"{BACKOFF_S_MAX:g}s"}
"""While the service is away timerd tries it at least this often, and a restart isn't left waiting for minutes."""

T = TypeVar("T")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Poll(NamedTuple):
    """A poll that was made, for those who watch."""

    started_at: int
    url: str
    failed: bool


class Tally:
    """What the service has done since it started."""

    def __init__(self) -> None:
        self.polls = 0
        self.failed = 0
        self.unmodified = 0
        self.new_entries = 0
        self.skipped = 0
        """Delivered, but not due, claimed by another, or committed by another in the meantime."""


class Service:
    """The handler of `feed-poll` batches."""

    def __init__(
        self,
        store: Store,
        poll: Callable[[Claimed], Awaitable[Result]],
        failed_interval_max: timedelta,
        watch: Callable[[Poll], None] | None = None,
    ) -> None:
        self._store = store
        self._fetch = poll
        self._failed_interval_ms_max = _ms(failed_interval_max)
        self._watch = watch or (lambda poll: None)
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        # A thread for the store alone: one call at a time, and never behind the name look-ups of a hundred polls.
        self._store_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self.tally = Tally()

    async def handle(self, batch: Batch) -> list[ItemResult]:
        """Poll what is due of a batch, and say for each timer when it fires next."""
        ids = list(dict.fromkeys(timer.id for timer in batch.timers))
        async with self._room:
            claim = uuid.uuid4().hex
            claimed = await self._call(self._store.claim, ids, claim, now_ms(), int(LEASE_S * 1000))
            polled = await self._poll_all(claimed)
            committed = await self._call(self._store.commit, polled, claim, now_ms())
        self.tally.new_entries += committed.new_entries
        next_poll_at = {feed.id: feed.next_poll_at for feed in polled if feed.id in committed.ids}
        others = [id for id in ids if id not in next_poll_at]
        self.tally.skipped += len(others)
        states = await self._call(self._store.states, others) if others else {}
        now = now_ms()
        return [_answer(id, next_poll_at.get(id), states.get(id), now) for id in ids]

    async def _poll_all(self, claimed: Sequence[Claimed]) -> list[Polled]:
        tasks = []
        async with asyncio.TaskGroup() as group:
            for number, feed in enumerate(claimed, 1):
                tasks.append(group.create_task(self._poll(feed)))
                if number % STARTS_A_TURN == 0:
                    await asyncio.sleep(0)
        return [task.result() for task in tasks]

    async def _poll(self, claimed: Claimed) -> Polled:
        started_at = now_ms()
        result = await self._fetch(claimed)
        failed = result.error is not None
        failures = claimed.failures + 1 if failed else 0
        cadence = Cadence(claimed.interval_ms, self._failed_interval_ms_max)
        self.tally.polls += 1
        self.tally.failed += failed
        self.tally.unmodified += result.status == 304
        self._watch(Poll(started_at, claimed.url, failed))
        return Polled(
            claimed.id,
            started_at + cadence.after(failures),
            failures,
            result.error,
            result.etag,
            result.last_modified,
            result.title,
            result.entries,
        )

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call the store, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._store_thread, function, *arguments)


def _answer(id: str, next_poll_at: int | None, state: State | None, now: int) -> ItemResult:
    if next_poll_at is not None:
        return rearm(id, fire_at=instant(next_poll_at))
    if state is None:
        return drop(id)  # The feed was removed from the store, and this ends its timer.
    if state.lease_until is not None and state.lease_until > now:
        # Another polls it and will say in its own answer when it is due, but that answer may be about an older
        # generation and count for nothing. So look again when a poll must have ended, at the latest with the lease.
        return rearm(id, fire_at=instant(min(state.lease_until, now + int(CUTOFF_S * 1000))))
    return rearm(id, fire_at=instant(state.next_poll_at))


async def start(
    client: AsyncTimerd, store: Store, feeds: Sequence[Listed], url: str, interval: timedelta, max_lag: timedelta
) -> dict[str, int]:
    """Tell timerd where the service listens, and see that every feed has a timer; answers when each is due.

    New feeds are spread over an interval. `keep` leaves the timers alone that are there from a life before, so a start
    moves nothing: the cursor is in the store and the time is in timerd.
    """
    await client.put_type(
        TYPE,
        url=url,
        batch_size=BATCH_SIZE,
        max_lag=max_lag,
        request_timeout=timedelta(seconds=REQUEST_TIMEOUT_S),
        max_in_flight=MAX_IN_FLIGHT,
        retry=RETRY,
    )
    begin, step = now_ms() + ARMING_MS, _ms(interval) / max(1, len(feeds))
    new = [
        NewFeed(timer_id(feed.url), feed.url, feed.title, _ms(interval), begin + int(step * number))
        for number, feed in enumerate(feeds)
    ]
    store.add(new)
    due = {id: state.next_poll_at for id, state in store.states(feed.id for feed in new).items()}
    arms = [Arm(id=feed.id, type=TYPE, fire_at=instant(due[feed.id]), mode="keep") for feed in new]
    await client.arm_many(arms)
    return {feed.url: due[feed.id] for feed in new}


def timer_id(url: str) -> str:
    """The key of a feed, in the store and in timerd: readable if it can be, and the same for ever."""
    id = f"feed:{url}"
    if len(id.encode()) <= ID_BYTES_MAX and id.isprintable():
        return id
    return "feed:sha256:" + sha256(url.encode()).hexdigest()


def instant(ms: int) -> datetime:
    """Unix milliseconds as an aware datetime, exactly."""
    return EPOCH + timedelta(milliseconds=ms)


def now_ms() -> int:
    """Unix milliseconds, rounded down."""
    return time.time_ns() // 1_000_000


def _ms(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)
