"""The nouns: a timer, its payload, what went wrong with it, and its type.

A `Timer` is one generation of one id. What identifies it (the first six fields) never changes once a generation has
been given to it; `payload`, `failure` and `state` are changed by `state.State.apply` alone. Moving a timer makes a
new `Timer` and marks the old one `GONE`, so that queues which still hold the old one can drop it when they meet it.

The same struct is what the log holds (see FORMAT.md, "timer"): a record is written from live timers and read back
into live timers with no step in between. Field order is therefore part of the format, and of the order in which
timers are due: (fire_at, generation) first, which is total within a shard.

The bounds of a type are looked at where one is decoded, and cost nothing elsewhere. They are the API's, which has its
from here, so that a type that was written into a catalogue by hand is refused as one that was put.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from timerd.engine.secrecy import masked_repr

MAX_GENERATION: Final = 2**53  # exclusive; JSON readers hold integers exactly up to here
MIN_FIRE_AT: Final = 10**11  # anything below was meant as seconds (1973 in milliseconds)
LAG_MARGIN_MS: Final = 250  # what a delivery may take beyond max_lag to start (promise 3)
_DAY_MS: Final = 86_400_000
ATTEMPTS_MAX: Final = 1_000_000
BACKOFF_MS_MAX: Final = 7 * _DAY_MS
MULTIPLIER_MAX: Final = 100
LAG_MS_MAX: Final = _DAY_MS
TIMEOUT_MS_MAX: Final = 3_600_000
GRACE_MS_MAX: Final = 3_660 * _DAY_MS
BATCH_MAX: Final = 10_000
IN_FLIGHT_MAX: Final = 10_000
MAX_WALL_US: Final = 7_258_118_400_000_000  # 2200-01-01: a clock beyond it is wrong, and generations would run out

# Where a timer is. Only DEAD is told apart in the log; a reader takes every other value for WAITING or RETRYING.
BEHIND: Final = -1  # like WAITING: a turn of a loop that was missed already when an answer re-armed the timer to it
WAITING: Final = 0  # in the due queue
URGENT: Final = 1  # in the due queue, and waits for no batch once it is due
READY: Final = 2  # due, and counted in the shard's report to the dispatcher
IN_FLIGHT: Final = 3  # handed out in a batch whose outcome is not known yet
HELD: Final = 4  # due, but an earlier generation of its id is still in flight
RETRYING: Final = 5  # in the retry queue
DEAD: Final = 6  # a dead letter
GONE: Final = 7  # no longer current: fired, cancelled or replaced
PARKED: Final = 8  # put back unattempted, under a key, until the dispatcher takes what lies under it


class BodyRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a payload above `INLINE_PAYLOAD_BYTES` lies in the body segments."""

    segment: int
    offset: int
    length: int
    digest: bytes
    """xxh3_128 of the payload, 16 bytes: what `unchanged` compares, and what a read is checked against."""


INLINE_PAYLOAD_BYTES: Final = 512  # above it a payload is a body: not in a frame, not in memory

Payload = bytes | BodyRef | None
"""Encoded JSON, exactly as it came; or where that lies; or no payload."""


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What happened to a generation so far, when something did."""

    attempts: int
    """Deliveries of this generation that have ended."""
    counted: int
    """Those of them that count against `max_attempts`."""
    gap_ms: int
    """How long the timer waits from the end of the last attempt to the next."""
    limit: int
    """The largest batch the timer may still travel in."""
    error: str
    """Why the last attempt failed, at most 200 bytes."""
    unknown: bool = False
    """An attempt ended without an answer, so the processor may have seen the timer."""
    died_at: int = 0
    """Unix ms of the burial; 0 while the timer lives."""
    since: int = 0
    """Boot ms from which the gap counts. Means nothing to another process: recovery counts the gap anew."""


class Timer(msgspec.Struct, array_like=True, order=True, gc=False):
    """One generation of one id. Times are Unix milliseconds."""

    fire_at: int
    generation: int
    id: str
    type: str
    payload: Payload = None
    created_at: int = 0
    """When the id was first armed; 0 means with this very generation."""
    failure: Failure | None = None
    state: int = WAITING

    @property
    def armed_at(self) -> int:
        """Unix ms at which this generation was accepted (a generation is a clock reading in microseconds)."""
        return self.generation // 1000

    @property
    def due_at(self) -> int:
        """Unix ms from which lag is counted: a fire time in the past is due at acceptance."""
        return max(self.fire_at, self.generation // 1000)

    @property
    def armed_for_now(self) -> bool:
        """Whether it was due in the very millisecond of its acceptance, as a fire-now is.

        Tells an urgent timer where its state no longer says so: after it was held, and in the log (it is mostly READY
        by the time it is written). One that happens to look like it goes in a smaller batch, which harms nobody.
        """
        return self.fire_at == self.generation // 1000


class RetryPolicy(msgspec.Struct, frozen=True):
    """How a type's failed timers are tried again."""

    max_attempts: Annotated[int, Meta(ge=0, le=ATTEMPTS_MAX)] = 0
    """Counted failures after which a timer is dead; 0 = no limit."""
    min_backoff_ms: Annotated[int, Meta(ge=1, le=BACKOFF_MS_MAX)] = 1_000
    max_backoff_ms: Annotated[int, Meta(ge=1, le=BACKOFF_MS_MAX)] = 300_000
    multiplier: Annotated[float, Meta(ge=1, le=MULTIPLIER_MAX)] = 2.0
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2
    """A gap is multiplied by a number drawn from [1 - jitter, 1 + jitter]."""


class Misfire(msgspec.Struct, frozen=True):
    """What becomes of timers whose first attempt is overdue by more than the grace: they are *missed*."""

    policy: Annotated[str, Meta(pattern=r"^(fire|drop|coalesce)\Z")] = "fire"
    """`fire`: they catch up. `drop`: they end, counted as dropped. `coalesce`: like `fire`, and a re-arm into the past
    skips ahead by whole steps."""
    grace_ms: Annotated[int, Meta(ge=0, le=GRACE_MS_MAX)] = 60_000
    max_per_second: Annotated[float, Meta(gt=0)] | None = None
    """How many of them are handed out a second, over the whole service, on top of the type's own limit."""


class TimerType(msgspec.Struct, frozen=True):
    """Where a kind of timer is delivered, in which batches, and under which limits."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    url: str = ""
    kind: Annotated[str, Meta(pattern=r"^(processor|callback)\Z")] = "processor"
    batch_size: Annotated[int, Meta(ge=1, le=BATCH_MAX)] = 800
    max_lag_ms: Annotated[int, Meta(ge=0, le=LAG_MS_MAX)] = 10_000
    request_timeout_ms: Annotated[int, Meta(ge=1, le=TIMEOUT_MS_MAX)] = 30_000
    max_in_flight: Annotated[int, Meta(ge=1, le=IN_FLIGHT_MAX)] = 16
    """POSTs under way at once, over the whole service."""
    max_per_second: Annotated[float, Meta(gt=0)] | None = None
    """Timers a second, over the whole service; `Rate` takes one out of its own bounds, as early builds could store."""
    retry: RetryPolicy = RetryPolicy()
    misfire: Misfire = Misfire()
    signing_secrets: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    state: Annotated[str, Meta(pattern=r"^(active|paused)\Z")] = "active"
    """`active` or `paused`: a paused type's timers wait."""

    def tries_by(self, before: "TimerType | None", boot_ms: int) -> int:
        """By when a target that is left alone is tried again, now that the type is this and not as `before`: at once
        when it is resumed, else as its policy says now."""
        resumed = before is not None and before.state == "paused" and self.state == "active"
        return boot_ms if resumed else boot_ms + self.retry.max_backoff_ms

    @property
    def grace_ms(self) -> int:
        """From which lag on a timer is missed. One that may still be waiting for its batch is not, by any grace."""
        return max(self.misfire.grace_ms, self.max_lag_ms + LAG_MARGIN_MS)

    def __repr__(self) -> str:
        return masked_repr(self, "signing_secrets", "headers")
