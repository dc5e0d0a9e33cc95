"""The client for asyncio: moves bytes and waits; decides nothing.

Jobs are taken up once in each round of the event loop, so that tasks that were woken together are sent together. Every
request runs in a task of its own, which is never cancelled: a caller that goes away (a cancelled task, `wait_for`)
leaves it to end by its own deadline. So no connection of the pool is ever torn out of its hands half set up, and what
is still under way keeps its ids held.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast

import httpx

from timerd_client import _calls, _http
from timerd_client._coalesce import Coalescer, Job, Turn, Work
from timerd_client._errors import OutcomeUnknown, TimerdError
from timerd_client._exchange import ATTEMPT_SHARE, Conversation, Exchange, Failed, Send, Sleep, Woke
from timerd_client._instants import Duration
from timerd_client._protocol import Call, Key, Reply, encode_arm
from timerd_client._routing import Routing
from timerd_client._server_time import ServerTime
from timerd_client._turns import chunks, perform
from timerd_client._values import (
    Arm,
    ArmResult,
    CallbackRequest,
    CancelResult,
    DeadLetter,
    Mode,
    Status,
    TimerInfo,
    TypeInfo,
    TypeStats,
)

T = TypeVar("T")
ArmResults = list[ArmResult]  # the class has a method `list`, which would hide the builtin in its annotations
CancelResults = list[CancelResult]
TimerInfos = list[TimerInfo]
TypeInfos = list[TypeInfo]


class AsyncTimerd:
    """A timerd server, for any number of tasks of one event loop. Close it, or use it as an async context manager.

    `timeout` (seconds) bounds every call, retries included; `arm_many` and `cancel_many` count it for each request of
    at most 10,000 items. `key` is an API key, `ca_file` a PEM file of who may sign the certificate of an `https://`
    server; without it those count that the public trusts. A `transport` of httpx's replaces the built-in one: for
    proxies, client certificates, tests. Of a cluster `url` may be a list of nodes: the next one is asked when one can't
    be reached. With `routing` each timer's request goes to the node that owns it, where that is known (it needs the
    extra `timerd-client[routing]`).
    """

    def __init__(
        self,
        url: _http.Urls,
        *,
        key: str | None = None,
        timeout: float = 10.0,
        ca_file: str | PathLike[str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        routing: bool = False,
    ) -> None:
        if not timeout > 0:
            raise ValueError("timeout must be above 0")
        self._wire = _http.Wire(url, key)
        self._routing = Routing(self._wire.secure) if routing else None
        self._transport = transport or httpx.AsyncHTTPTransport(verify=_http.trust(ca_file), limits=_http.LIMITS)
        self._timeout = timeout
        self._server_time = ServerTime()
        self._coalescer = Coalescer(timeout)
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._due = False  # a round is scheduled
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let open requests end, then close the connections. Calls from now on raise."""
        self._closed = True
        while self._tasks or self._coalescer.first() is not None:
            if self._tasks:
                await asyncio.wait(self._tasks)
            await asyncio.sleep(0 if self._tasks else 0.01)
        if self._alarm is not None:
            self._alarm.cancel()
        await self._transport.aclose()

    # ---- timers

    async def arm(
        self,
        id: str,
        type: str,
        *,
        fire_at: datetime | None = None,
        delay: Duration | None = None,
        payload: Any = None,
        mode: Mode = "replace",
        if_generation: int | None = None,
        request: CallbackRequest | None = None,
    ) -> ArmResult:
        """Arm or re-arm one timer: on return it is durable. Arms that meet on the way share a request.

        A re-arm replaces all of the timer, its payload too. `request`: for a type of kind callback, in place of it.
        """
        arm = Arm(
            id,
            type,
            fire_at=fire_at,
            delay=delay,
            payload=payload,
            mode=mode,
            if_generation=if_generation,
            request=request,
        )
        return cast(ArmResult, await self._submit(encode_arm(arm), (id,)))

    async def arm_many(self, items: Iterable[Arm]) -> ArmResults:
        """Arm many, in order. Each request of at most 10,000 is armed whole or, if one item is wrong, not at all.

        An error carries the results of the requests before it as `results`; those stand.
        """
        results: ArmResults = []
        for chunk in chunks(items):
            try:
                results += await self._submit(chunk, tuple({item.id for item in chunk.items}))
            except TimerdError as error:
                error.results = results
                raise
        return results

    async def cancel(self, id: str) -> CancelResult:
        """Take a timer away. Unless the result says `in_flight`, no delivery of it starts afterwards."""
        return await self._call(_calls.cancel(id))

    async def cancel_many(self, ids: Iterable[str]) -> CancelResults:
        """Take many away, in requests of at most 10,000."""
        results: CancelResults = []
        for call in _calls.cancel_many(ids):
            try:
                part = await self._call(call)
                results.extend(part)
            except TimerdError as error:
                error.results = results
                raise
        return results

    async def fire(self, id: str) -> ArmResult:
        """Make a timer due now; it waits for no batch to fill. Raises NotFound, and TimerDead for a dead one."""
        return await self._call(_calls.fire(id))

    async def get(self, id: str) -> TimerInfo | None:
        """The timer as it stands, or None."""
        return await self._call(_calls.get(id))

    async def next(self, *, type: str | None = None, limit: int | None = None) -> TimerInfos:
        """The timers that are due soonest, at most 1,000."""
        return await self._call(_calls.next_timers(type=type, limit=limit))

    # ---- types

    async def put_type(
        self,
        name: str,
        *,
        url: str | None = None,
        kind: Literal["processor", "callback"] | None = None,
        batch_size: int | None = None,
        max_lag: Duration | str | None = None,
        request_timeout: Duration | str | None = None,
        max_in_flight: int | None = None,
        max_per_second: float | None = None,
        retry: Mapping[str, Any] | None = None,
        misfire: Mapping[str, Any] | None = None,
        signing_secrets: Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
        state: Literal["active", "paused"] | None = None,
    ) -> TypeInfo:
        """Make or replace a type, as a whole: what is left out takes the server's default, and secrets alone stay.

        So a paused type runs again, unless `state` says that it is to stay paused. `retry` takes `max_attempts`,
        `min_backoff`, `max_backoff`, `multiplier` and `jitter`. A signing secret is `whsec_...`, or says where timerd
        finds it: `env:NAME`, `file:/PATH`.
        """
        return await self._call(
            _calls.put_type(
                name,
                url=url,
                kind=kind,
                batch_size=batch_size,
                max_lag=max_lag,
                request_timeout=request_timeout,
                max_in_flight=max_in_flight,
                max_per_second=max_per_second,
                retry=retry,
                misfire=misfire,
                signing_secrets=signing_secrets,
                headers=headers,
                state=state,
            )
        )

    async def get_type(self, name: str) -> TypeInfo | None:
        """The type, or None."""
        return await self._call(_calls.get_type(name))

    async def list_types(self) -> TypeInfos:
        return await self._call(_calls.list_types())

    async def delete_type(self, name: str) -> None:
        """Delete a type. Raises TypeInUse while timers of it live."""
        await self._call(_calls.delete_type(name))

    async def pause_type(self, name: str) -> TypeInfo:
        """Let the type's timers wait. They are kept, and can be armed."""
        return await self._call(_calls.pause_type(name))

    async def resume_type(self, name: str) -> TypeInfo:
        return await self._call(_calls.resume_type(name))

    # ---- dead letters, and the server itself

    async def replay_dead_letters(self, ids: Iterable[str] | None = None, *, type: str | None = None) -> int:
        """Make dead timers live and due again: these, or all of a type. Returns how many."""
        return await self._call(_calls.replay_dead_letters(ids, type))

    async def purge_dead_letters(self, ids: Iterable[str] | None = None, *, type: str | None = None) -> int:
        """Forget dead timers: these, or all of a type. Returns how many."""
        return await self._call(_calls.purge_dead_letters(ids, type))

    async def status(self) -> Status:
        return await self._call(_calls.status())

    async def stats(self) -> dict[str, TypeStats]:
        """Counts by type."""
        return await self._call(_calls.stats())

    async def dead_letters(self, *, type: str | None = None, page_size: int | None = None) -> AsyncIterator[DeadLetter]:
        """All dead letters, page by page."""
        token: str | None = None
        while True:
            call = _calls.dead_letters_page(type=type, page_size=page_size, page_token=token)
            page = await self._call(call)
            for letter in page.dead_letters:
                yield letter
            token = page.next_page_token
            if not token:
                return

    async def list(
        self,
        *,
        type: str | None = None,
        state: str | None = None,
        fire_after: datetime | None = None,
        fire_before: datetime | None = None,
        id_prefix: str | None = None,
        page_size: int | None = None,
    ) -> AsyncIterator[TimerInfo]:
        """All timers that match, page by page, in no order of time. One that stays put is seen exactly once."""
        token: str | None = None
        while True:
            call = _calls.timers_page(
                type=type,
                state=state,
                fire_after=fire_after,
                fire_before=fire_before,
                id_prefix=id_prefix,
                page_size=page_size,
                page_token=token,
            )
            page = await self._call(call)
            for timer in page.timers:
                yield timer
            token = page.next_page_token
            if not token:
                return

    # ---- moving bytes

    async def _call(self, call: Call[T]) -> T:
        return cast(T, await self._submit(call, call.keys))

    async def _submit(self, work: Work, keys: tuple[Key, ...]) -> Any:
        if self._closed:
            raise RuntimeError("the client is closed")
        job = Job(work, keys, asyncio.get_running_loop().create_future())
        self._coalescer.add(job, time.monotonic())
        self._soon()
        try:
            return await job.wake
        finally:
            if not job.settled:  # the caller was cancelled
                job.settle(None)

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        """Take up what has gathered, and be called again when something comes due by itself."""
        loop = asyncio.get_running_loop()
        self._due = False
        now = time.monotonic()
        self._tell(self._coalescer.expire(now))
        while (turn := self._coalescer.take(now)) is not None:
            task = loop.create_task(self._run(turn))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._alarm is not None:
            self._alarm.cancel()
        wake_at = self._coalescer.wake_at(now)
        self._alarm = None if wake_at is None else loop.call_later(wake_at - now, self._soon)

    def _tell(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if job.wake.done():
                continue
            if isinstance(job.outcome, Exception):
                job.wake.set_exception(job.outcome)
            else:
                job.wake.set_result(job.outcome)

    async def _run(self, turn: Turn) -> None:
        """Send a turn and settle its jobs."""
        exchange = Exchange(
            self._server_time,
            now=time.monotonic(),
            deadline=turn.deadline,
            attempt_s=self._timeout * ATTEMPT_SHARE,
        )
        outcomes: list[Any] = [OutcomeUnknown("interrupted") for _ in turn.jobs]
        try:
            outcomes = await self._drive(perform(turn, exchange, self._routing))
        finally:
            now = time.monotonic()
            self._tell(self._coalescer.done(turn, outcomes, exchange.settled_at, turn.deadline, now))
            # The tasks just woken run before the next round, and add what they do next to it.
            self._soon()

    async def _drive(self, conversation: Conversation[T]) -> T:
        try:
            step = next(conversation)
            while True:
                step = conversation.send(await (self._sleep(step) if isinstance(step, Sleep) else self._send(step)))
        except StopIteration as end:
            return cast(T, end.value)

    async def _sleep(self, step: Sleep) -> Woke:
        await asyncio.sleep(step.seconds)
        return Woke(time.monotonic())

    async def _send(self, send: Send) -> Reply | Failed:
        request = self._wire.request(send, time.monotonic())
        try:
            response = await self._transport.handle_async_request(request)
            chunks, size = [], 0
            try:
                async for chunk in cast(httpx.AsyncByteStream, response.stream):
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > _http.ANSWER_BYTES_MAX:
                        return _http.too_large(time.monotonic())
                    if time.monotonic() > send.until:
                        return _http.too_late(time.monotonic())
            finally:
                await response.aclose()
        except (httpx.TransportError, httpx.StreamError) as error:
            return self._wire.failed(error, time.monotonic(), request)
        return _http.replied(response, chunks, time.monotonic())
