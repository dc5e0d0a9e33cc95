"""The client for threads: moves bytes and waits; decides nothing.

The calling threads do the sending. A thread adds its job and takes what may go out next; if that holds other threads'
jobs too, it sends those along and they wait for it. A thread that has what it came for hands on to the one that has
waited longest. There is no thread of our own, and the lock is never held during I/O.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


class Timerd:
    """A timerd server, for use from any number of threads. Close it, or use it as a context manager.

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
        transport: httpx.BaseTransport | None = None,
        routing: bool = False,
    ) -> None:
        if not timeout > 0:
            raise ValueError("timeout must be above 0")
        self._wire = _http.Wire(url, key)
        self._routing = Routing(self._wire.secure) if routing else None
        self._transport = transport or httpx.HTTPTransport(verify=_http.trust(ca_file), limits=_http.LIMITS)
        self._timeout = timeout
        self._server_time = ServerTime()
        self._coalescer = Coalescer(timeout)
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calls that are under way in other threads fail."""
        self._closed = True
        self._transport.close()

    # ---- timers

    def arm(
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
        return cast(ArmResult, self._submit(encode_arm(arm), (id,)))

    def arm_many(self, items: Iterable[Arm]) -> ArmResults:
        """Arm many, in order. Each request of at most 10,000 is armed whole or, if one item is wrong, not at all.

        An error carries the results of the requests before it as `results`; those stand.
        """
        results: ArmResults = []
        for chunk in chunks(items):
            try:
                results += self._submit(chunk, tuple({item.id for item in chunk.items}))
            except TimerdError as error:
                error.results = results
                raise
        return results

    def cancel(self, id: str) -> CancelResult:
        """Take a timer away. Unless the result says `in_flight`, no delivery of it starts afterwards."""
        return self._call(_calls.cancel(id))

    def cancel_many(self, ids: Iterable[str]) -> CancelResults:
        """Take many away, in requests of at most 10,000."""
        results: CancelResults = []
        for call in _calls.cancel_many(ids):
            try:
                part = self._call(call)
                results.extend(part)
            except TimerdError as error:
                error.results = results
                raise
        return results

    def fire(self, id: str) -> ArmResult:
        """Make a timer due now; it waits for no batch to fill. Raises NotFound, and TimerDead for a dead one."""
        return self._call(_calls.fire(id))

    def get(self, id: str) -> TimerInfo | None:
        """The timer as it stands, or None."""
        return self._call(_calls.get(id))

    def next(self, *, type: str | None = None, limit: int | None = None) -> TimerInfos:
        """The timers that are due soonest, at most 1,000."""
        return self._call(_calls.next_timers(type=type, limit=limit))

    # ---- types

    def put_type(
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
        return self._call(
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

    def get_type(self, name: str) -> TypeInfo | None:
        """The type, or None."""
        return self._call(_calls.get_type(name))

    def list_types(self) -> TypeInfos:
        return self._call(_calls.list_types())

    def delete_type(self, name: str) -> None:
        """Delete a type. Raises TypeInUse while timers of it live."""
        self._call(_calls.delete_type(name))

    def pause_type(self, name: str) -> TypeInfo:
        """Let the type's timers wait. They are kept, and can be armed."""
        return self._call(_calls.pause_type(name))

    def resume_type(self, name: str) -> TypeInfo:
        return self._call(_calls.resume_type(name))

    # ---- dead letters, and the server itself

    def replay_dead_letters(self, ids: Iterable[str] | None = None, *, type: str | None = None) -> int:
        """Make dead timers live and due again: these, or all of a type. Returns how many."""
        return self._call(_calls.replay_dead_letters(ids, type))

    def purge_dead_letters(self, ids: Iterable[str] | None = None, *, type: str | None = None) -> int:
        """Forget dead timers: these, or all of a type. Returns how many."""
        return self._call(_calls.purge_dead_letters(ids, type))

    def status(self) -> Status:
        return self._call(_calls.status())

    def stats(self) -> dict[str, TypeStats]:
        """Counts by type."""
        return self._call(_calls.stats())

    def dead_letters(self, *, type: str | None = None, page_size: int | None = None) -> Iterator[DeadLetter]:
        """All dead letters, page by page."""
        token: str | None = None
        while True:
            call = _calls.dead_letters_page(type=type, page_size=page_size, page_token=token)
            page = self._call(call)
            yield from page.dead_letters
            token = page.next_page_token
            if not token:
                return

    def list(
        self,
        *,
        type: str | None = None,
        state: str | None = None,
        fire_after: datetime | None = None,
        fire_before: datetime | None = None,
        id_prefix: str | None = None,
        page_size: int | None = None,
    ) -> Iterator[TimerInfo]:
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
            page = self._call(call)
            yield from page.timers
            token = page.next_page_token
            if not token:
                return

    # ---- moving bytes

    def _call(self, call: Call[T]) -> T:
        return cast(T, self._submit(call, call.keys))

    def _submit(self, work: Work, keys: tuple[Key, ...]) -> Any:
        """Add a job and see it through: by sending, or by waiting for the thread that sends it."""
        if self._closed:
            raise RuntimeError("the client is closed")
        job = Job(work, keys, threading.Event())
        with self._lock:
            self._coalescer.add(job, time.monotonic())
        try:
            while True:
                with self._lock:
                    now = time.monotonic()
                    for late in self._coalescer.expire(now):
                        late.wake.set()
                    job.wake.clear()
                    turn = None if job.settled else self._coalescer.take(now)
                    wake_at = self._coalescer.wake_at(now)
                    if job.settled or turn is not None:
                        self._hand_on()
                if job.settled:
                    break
                if turn is not None:
                    self._run(turn, job.deadline)
                else:
                    job.wake.wait(None if wake_at is None else max(0.0, wake_at - now))
        except BaseException:
            with self._lock:
                if not job.settled:
                    job.settle(None)
                self._hand_on()
            raise
        if isinstance(job.outcome, Exception):
            raise job.outcome
        return job.outcome

    def _hand_on(self) -> None:
        first = self._coalescer.first()
        if first is not None:
            first.wake.set()

    def _run(self, turn: Turn, limit: float) -> None:
        """Send a turn and settle its jobs. It ends by `limit`: the sender's own time is bounded too."""
        now = time.monotonic()
        deadline = min(turn.deadline, limit)
        exchange = Exchange(self._server_time, now=now, deadline=deadline, attempt_s=self._timeout * ATTEMPT_SHARE)
        outcomes: list[Any] = [OutcomeUnknown("interrupted") for _ in turn.jobs]
        try:
            outcomes = self._drive(perform(turn, exchange, self._routing))
        finally:
            with self._lock:
                now = time.monotonic()
                for job in self._coalescer.done(turn, outcomes, exchange.settled_at, deadline, now):
                    job.wake.set()

    def _drive(self, conversation: Conversation[T]) -> T:
        try:
            step = next(conversation)
            while True:
                step = conversation.send(self._sleep(step) if isinstance(step, Sleep) else self._send(step))
        except StopIteration as end:
            return cast(T, end.value)

    def _sleep(self, step: Sleep) -> Woke:
        time.sleep(step.seconds)
        return Woke(time.monotonic())

    def _send(self, send: Send) -> Reply | Failed:
        request = self._wire.request(send, time.monotonic())
        try:
            response = self._transport.handle_request(request)
            chunks, size = [], 0
            try:
                for chunk in cast(httpx.SyncByteStream, response.stream):
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > _http.ANSWER_BYTES_MAX:
                        return _http.too_large(time.monotonic())
                    if time.monotonic() > send.until:
                        return _http.too_late(time.monotonic())
            finally:
                response.close()
        except (httpx.TransportError, httpx.StreamError) as error:
            return self._wire.failed(error, time.monotonic(), request)
        return _http.replied(response, chunks, time.monotonic())
