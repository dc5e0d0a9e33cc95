"""From a request to its final reply: expiry, retries and what is known of a write whose answer is missing.

No I/O and no clock: a *conversation* is a generator that yields what to do (`Send`, `Sleep`) and is sent what came of
it (`Reply`, `Failed`, `Woke`), each with the monotonic time at which it did. A shell drives it to its end.

Why repeating a write is safe. Every attempt has an end, and carries it as `Timerd-Expires` in the server's time: the
server refuses the attempt when it arrives later than that. So:

1. An attempt that was given up at its end cannot be applied any more, wherever it is held up. Its repeat cannot be
   overtaken by it.
2. An attempt whose connection broke earlier may still be on its way until its end. `settled_at` says until when, and
   nothing else that touches the same keys is sent before then (see `_coalesce`).
3. An attempt that was answered, or never left, is settled at once.

The numbers 1-3 are cited below.
"""

import random
from collections.abc import Generator
from typing import Final, TypeVar

import msgspec

from timerd_client._errors import OutcomeUnknown, ProblemError, TimerdError, Unavailable, UnexpectedAnswer
from timerd_client._instants import parse_ms, to_rfc3339
from timerd_client._protocol import HEALTHZ, Call, Reply, Request, problem_of, retry_after
from timerd_client._routing import RING, Routing
from timerd_client._server_time import ServerTime

T = TypeVar("T")

ATTEMPT_SHARE: Final = 0.4  # of the timeout: two full attempts and most of a third
MARGIN: Final = 0.25  # s beyond an attempt's end: rounding, drift, and nodes of a cluster that differ a little
BACKOFF_MIN: Final = 0.05
BACKOFF_MAX: Final = 2.0
UNTOUCHED: Final = frozenset({"overloaded", "shard-unavailable"})  # of 503s: these say that nothing was stored for us
# Refusals that say nothing about an earlier attempt whose answer was lost: that one may have been applied before.
SAYS_NOTHING: Final = frozenset(
    {
        *("expired", "storage-full", "overloaded", "rate-limited", "shard-unavailable"),
        *("timer-not-found", "type-not-found", "timer-dead"),
    }
)


class Send(msgspec.Struct, frozen=True):
    """Send this, and give up on the answer at `until` (monotonic)."""

    request: Request
    until: float
    expires: str | None


class Sleep(msgspec.Struct, frozen=True):
    seconds: float


class Failed(msgspec.Struct, frozen=True):
    """No answer. `sent`: some of the request may have reached the server."""

    sent: bool
    reason: str
    at: float
    final: bool = False
    """Another attempt would meet the same."""


class Woke(msgspec.Struct, frozen=True):
    at: float


Conversation = Generator[Send | Sleep, Reply | Failed | Woke, T]


class Exchange:
    """One write or read, with all its attempts, until `deadline`."""

    def __init__(self, server_time: ServerTime, *, now: float, deadline: float, attempt_s: float) -> None:
        self._server_time = server_time
        self._attempt_s = attempt_s
        self._tries = 0
        self._ends = now  # of the latest attempt
        self.now = now
        self.deadline = deadline
        self.routing: Routing | None = None
        self.lost = False
        """The answer to some attempt of a write is missing."""
        self.settled_at = 0.0
        """From then on no attempt of this exchange can be applied any more (monotonic)."""

    def call(self, call: Call[T]) -> Conversation[T]:
        """The result of a call, or its error."""
        reply = yield from self.ask(call.request)
        try:
            return call.read(reply)
        except ProblemError as error:
            raise self.explain(error) from error.__cause__

    def explain(self, error: TimerdError) -> TimerdError:
        """The error for the caller: a refusal counts for all attempts only if it would have met the first as well."""
        if not (self.lost and isinstance(error, ProblemError) and error.name in SAYS_NOTHING):
            return error
        unknown = OutcomeUnknown(f"an answer was lost, and the repeat was refused: {error}")
        unknown.__cause__ = error
        return unknown

    def ask(self, request: Request, *, partial: bool = False) -> Conversation[Reply]:
        """Send until there is a reply that a repeat would not change. With `partial`, a 503 with results is one."""
        while True:
            if request.write and not self._server_time.known:
                event = yield from self._attempt(HEALTHZ)
                if isinstance(event, Failed):
                    yield from self.pause(_unavailable(event))
                    continue
                if not self._server_time.known:
                    raise UnexpectedAnswer(f"no Timerd-Now in the answer (status {event.status}): not a timerd server?")
            event = yield from self._attempt(request)
            if request.base and (isinstance(event, Failed) or event.status >= 500):  # any node takes it
                if self.routing is not None:
                    self.routing.wrong(self.now)
                request = msgspec.structs.replace(request, base="")
            if isinstance(event, Failed):
                yield from self.pause(_unavailable(event))
                continue
            if event.status < 500 and event.status not in (409, 429):
                return event
            error = problem_of(event)
            name = error.name if isinstance(error, ProblemError) else ""
            if event.status == 503 and partial and name == "shard-unavailable":
                return event
            # An expired attempt is settled (3), and its answer has brought a newer idea of the server's time.
            again = name in UNTOUCHED or name == "expired" or event.status == 429
            if not again:
                if event.status not in (500, 502, 503, 504):
                    return event
                if request.write:  # who answered so may have passed the request on
                    self.lost = True
                    self.settled_at = max(self.settled_at, self._ends + MARGIN)
            yield from self.pause(error, retry_after(event))

    def learn(self) -> Conversation[Routing | None]:
        """Where ids live, if requests go by that; read anew now and then, with one attempt."""
        if self.routing is not None and self.routing.is_due(self.now):
            self.routing.asks(self.now)
            event = yield from self._attempt(RING)
            if isinstance(event, Reply):
                self.routing.heard(event, self.now)
        return self.routing

    def pause(self, why: TimerdError, at_least: float | None = None) -> Conversation[None]:
        """Back off before a repeat; raises when the time that is left is too short for it, or if none would help."""
        # The exponent is capped before the power is taken: a long outage must not end in an overflow.
        backoff = min(BACKOFF_MAX, BACKOFF_MIN * 2.0 ** min(self._tries, 10)) * random.uniform(0.5, 1.0)  # noqa: S311
        self._tries += 1
        wait = max(backoff, at_least or 0.0)
        if self.now + wait >= self.deadline or (isinstance(why, Unavailable) and why.final):
            if self.lost:
                raise OutcomeUnknown(f"no answer in time: {why}") from why
            raise why
        event = yield Sleep(wait)
        self.now = event.at

    def _attempt(self, request: Request) -> Conversation[Reply | Failed]:
        sent_at = self.now
        self._ends = min(self.deadline, sent_at + self._attempt_s)
        expires = to_rfc3339(self._server_time.shows_at_least(self._ends)) if request.write else None
        before = self.settled_at, self.lost
        if request.write:  # what holds if we are interrupted before we hear of it
            self.settled_at, self.lost = max(self.settled_at, self._ends + MARGIN), True
        event = yield Send(request, self._ends, expires)
        assert not isinstance(event, Woke)
        self.now = event.at
        if isinstance(event, Reply):
            self.settled_at, self.lost = before  # (3)
            shown = parse_ms(event.headers.get("timerd-now", ""))
            if shown is not None:
                self._server_time.observe(shown, sent_at, event.at)
        elif not event.sent:
            self.settled_at, self.lost = before  # (3)
        return event


def _unavailable(event: Failed) -> Unavailable:
    error = Unavailable(event.reason)
    error.final = event.final
    return error
