"""Callbacks: carries out what the dispatcher decides about callback types. The counterpart of what `Dispatch` does for
batches to processors.

It reads what each member of a batch asks for, tells the dispatcher where that goes, and sends those that may leave,
each as a request of its own. Outcomes that arrive together are told together, so that a storm of them shares messages
and frames. It judges nothing.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from timerd import __version__
from timerd.engine.answer import Failed, Limits, Outcome, read_callback_answer
from timerd.engine.backoff import backoff_ms, draw_jitter
from timerd.engine.batch import Batch, batch_id
from timerd.engine.callback import ANSWER_BYTES_MAX, CallbackRequest, decode_request, host_of, request_headers
from timerd.engine.dispatcher import Dispatcher
from timerd.engine.late import untried
from timerd.engine.message import WholeFailure
from timerd.engine.now import Now
from timerd.engine.timer import BodyRef, Timer, TimerType
from timerd.lag import LagSamples
from timerd.ports import Clock, Deliver, Request
from timerd.references import References, Unresolved
from timerd.runners import Runners
from timerd.signing import sign
from timerd.troubles import Troubles

LOST: Final = WholeFailure("its request can't be read", 0, 1, bury=True, attempted=False)
NO_REQUEST: Final = WholeFailure("it holds a payload and no request", 0, 1, bury=True, attempted=False)
REMOVED: Final = WholeFailure("the type was removed", 1_000, 1)  # while a batch of it was being put together

log = structlog.get_logger()


class CallbackDeliveries:
    """Of one node. `pump` carries out the dispatcher's commands, `start` runs a task until the node closes."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        runners: Runners,
        deliver: Deliver,
        clock: Clock,
        limits: Limits,
        random: Callable[[], float],
        troubles: Troubles,
        lags: dict[str, LagSamples],
        references: References,
        pump: Callable[[Now], None],
    ) -> None:
        self.types: Mapping[str, TimerType] = {}
        self._dispatcher = dispatcher
        self._runners = runners
        self._deliver = deliver
        self._clock = clock
        self._limits = limits
        self._random = random
        self._troubles = troubles
        self._lags = lags
        self._references = references
        self._pump = pump
        self._ended: dict[int, list[tuple[str, Outcome]]] = {}

    async def sort(self, batch: Batch) -> list[tuple[TimerType, Timer, CallbackRequest]]:
        """Read the requests of a batch, and let the dispatcher say which leave now: those are to be given to `send`,
        with the type as it is then, its secrets with it."""
        bodies, unread = await self._bodies(batch)
        type = self.types.get(batch.type)
        signing = None if type is None else await self._references.resolve(type)
        type = self.types.get(batch.type)
        jitter = draw_jitter(type.retry, self._random()) if type and isinstance(signing, Unresolved) else 1.0
        wants: list[tuple[Timer, str | WholeFailure]] = []
        requests: dict[str, CallbackRequest] = {}
        for timer in batch.timers:
            payload = bodies.get(timer.id) if timer.payload.__class__ is BodyRef else timer.payload
            want: str | WholeFailure
            if timer.id in unread:
                wants.append((timer, untried(batch.whole)))
                continue
            if type is None:
                want = REMOVED
            elif payload is None and timer.payload is not None:
                want = LOST
            else:
                try:
                    request = requests[timer.id] = decode_request(payload or b"")  # type: ignore[arg-type]
                    want = host_of(request.url)
                except ValueError:
                    want = NO_REQUEST
            if type is not None and isinstance(signing, Unresolved) and isinstance(want, str):
                want = _held(type, timer, signing, jitter)
            elif isinstance(want, WholeFailure):
                log.error("callback_not_sent", type=batch.type, id=timer.id, reason=want.error)
            wants.append((timer, want))
        now = self._clock.now()
        if isinstance(signing, Unresolved):
            self._troubles.failed(now.boot_ms, batch.type, "-", signing.error, len(batch.timers))
        leave = self._dispatcher.sort(now, batch.batch_no, wants)
        if first := [timer for timer in leave if timer.failure is None]:
            self._lags.setdefault(batch.type, LagSamples()).add(now.boot_ms // 1000, now.wall_ms, first)
        self._pump(now)
        return [(signing, timer, requests[timer.id]) for timer in leave] if isinstance(signing, TimerType) else []

    async def _bodies(self, batch: Batch) -> tuple[dict[str, bytes], set[str]]:
        """The payloads that lie apart; and whose could not be read and yet are not known to be lost."""
        apart = [timer for timer in batch.timers if isinstance(timer.payload, BodyRef)]
        if not apart:
            return {}, set()
        fetched = await self._runners.bodies.fetch([t.payload for t in apart if isinstance(t.payload, BodyRef)])
        bodies = {timer.id: body for timer, body in zip(apart, fetched.bodies, strict=True) if body is not None}
        unread = {apart[index].id for index in fetched.unread}
        if len(bodies) + len(unread) < len(apart):
            # Who was paused may have lost the shard and not know it: then another has moved these, and none is lost.
            ids = [timer.id for timer in apart if timer.id not in bodies and timer.id not in unread]
            shard_of = {id: self._dispatcher.shard_of(batch.batch_no, id) for id in ids}
            unsure = self._runners.logs.unconfirmed({shard for shard in shard_of.values() if shard is not None})
            refused = await self._runners.logs.confirm(unsure) if unsure else ()
            unread.update(id for id, shard in shard_of.items() if shard is None or shard in refused)
        return bodies, unread

    async def send(self, type: TimerType, batch: Batch, timer: Timer, wanted: CallbackRequest) -> None:
        """One attempt of one callback."""
        shard = self._dispatcher.shard_of(batch.batch_no, timer.id)
        unsure = None if shard is None else self._runners.logs.unconfirmed((shard,))
        if unsure is None or (unsure and await self._runners.logs.confirm(unsure)):
            self._dispatcher.withdraw(batch.batch_no, timer.id)  # it waits for its host again, or is another node's
            self._pump(self._clock.now())
            return
        now = self._clock.now()
        answer = await self._deliver.post(build_callback(type, timer, wanted, now, timer.id in batch.flagged))
        now = self._clock.now()
        outcome = read_callback_answer(
            now,
            self._limits,
            status=answer.status,
            headers=answer.headers,
            body=answer.body,
            error=answer.error,
            detail=answer.detail,
        )
        if isinstance(outcome, Failed):  # hosts fail and answer side by side: there is no "resumed" of a type
            self._troubles.failed(now.boot_ms, batch.type, host_of(wanted.url), outcome.error, 1)
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._tell)
        self._ended.setdefault(batch.batch_no, []).append((timer.id, outcome))

    def _tell(self) -> None:
        """Tell what has ended since the loop came round last."""
        now = self._clock.now()
        ended, self._ended = self._ended, {}
        for batch_no, outcomes in ended.items():
            self._dispatcher.ended(now, batch_no, outcomes, self._random())
        self._pump(now)


def build_callback(type: TimerType, timer: Timer, wanted: CallbackRequest, now: Now, repeat: bool) -> Request:
    """A callback's request, signed with all secrets of its type. Its id is the same in every attempt."""
    id = batch_id([timer])
    seconds = now.wall_ms // 1000
    headers = request_headers(wanted, timer, id, seconds, __version__, repeat)
    if type.signing_secrets:
        headers["webhook-signature"] = sign(type.signing_secrets, id, seconds, wanted.body)
    return Request(
        wanted.url, headers, wanted.body, type.request_timeout_ms, ANSWER_BYTES_MAX, wanted.method, guarded=True
    )


def _held(type: TimerType, timer: Timer, unresolved: Unresolved, jitter: float) -> WholeFailure:
    """A secret is missing: nothing was tried, so nothing counts, but each time it waits longer."""
    tries = timer.failure.attempts if timer.failure else 0
    gap_ms = max(1, round(backoff_ms(type.retry, tries + 1) * jitter))
    return WholeFailure(unresolved.error, gap_ms, type.batch_size)
