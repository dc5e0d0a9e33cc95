"""The nouns of the interface: what goes into a call and what comes out. Frozen values without behaviour.

Results are decoded straight into these; fields this version does not know are ignored, and fields a server leaves out
have defaults where that can happen.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from timerd_client._instants import Duration, duration, fire_at_ms

Mode = Literal["replace", "earliest", "latest", "keep"]


class CallbackRequest(msgspec.Struct, frozen=True):
    """What a scheduled callback sends. At most one of `body` (text, or any bytes) and `json` is given."""

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = {}
    body: str | bytes | None = None
    json: Any = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.body is not None and self.json is not msgspec.UNSET:
            raise ValueError("give body or json, not both")


class _Named(msgspec.Struct, frozen=True):
    id: str
    type: str


class Arm(_Named, frozen=True, kw_only=True):
    """One timer to arm: at `fire_at` (an aware datetime), or after `delay` from the server's clock at acceptance.

    `payload` is what msgspec can write as JSON; None is no payload. For a type of kind callback there is a `request` in
    place of it. `if_generation` arms only if that is the current
    generation; 0 means that nothing is there. Wrong times raise here, not when the arm is sent.
    """

    fire_at: datetime | None = None
    delay: Duration | None = None
    payload: Any = None
    mode: Mode = "replace"
    if_generation: int | None = None
    request: CallbackRequest | None = None

    def __post_init__(self) -> None:
        if self.fire_at is not None:
            if self.delay is not None:
                raise ValueError("give fire_at or delay, not both")
            fire_at_ms(self.fire_at)
        elif self.delay is not None:
            duration(self.delay)
        else:
            raise ValueError("give fire_at or delay")
        if self.request is not None and self.payload is not None:
            raise ValueError("give payload or request, not both")


class ArmResult(msgspec.Struct, frozen=True):
    """What became of an arm. `status`: created | moved | unchanged | kept | conflict."""

    id: str
    status: str
    generation: int = 0
    fire_at: datetime | None = None
    """When the timer fires now; None if nothing is there."""
    previous_fire_at: datetime | None = None

    @property
    def armed(self) -> bool:
        return self.status in ("created", "moved")


class CancelResult(msgspec.Struct, frozen=True):
    """`status`: cancelled | not_found. With `in_flight` a delivery is on its way and ends without retry or re-arm."""

    id: str
    status: str = "cancelled"
    in_flight: bool = False
    generation: int | None = None

    @property
    def cancelled(self) -> bool:
        return self.status == "cancelled"


class TimerInfo(msgspec.Struct, frozen=True):
    """A timer as it stands. `state`: armed | due | in_flight | retrying | paused | dead."""

    id: str
    type: str
    state: str
    fire_at: datetime
    generation: int
    attempt: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    shard: int | str | None = None
    payload: Any = None
    last_error: str | None = None
    next_attempt_at: datetime | None = None
    request: dict[str, Any] | None = None
    """Of a callback, as it was given."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A timer that was given up."""

    id: str
    type: str
    generation: int
    fire_at: datetime
    attempts: int = 0
    last_error: str | None = None
    died_at: datetime | None = None
    payload: Any = None
    request: dict[str, Any] | None = None


class TypeInfo(msgspec.Struct, frozen=True):
    """A type as the server holds it. Durations are in the wire's form: `"10s"`, or seconds."""

    name: str = ""
    url: str | None = None
    kind: str = "processor"
    batch_size: int | None = None
    max_lag: str | float | None = None
    request_timeout: str | float | None = None
    max_in_flight: int | None = None
    max_per_second: float | None = None
    retry: dict[str, Any] = {}
    misfire: dict[str, Any] = {}
    signing_secrets: Any = None
    """Hints only; a secret is never shown again."""
    headers: dict[str, str] = {}
    state: str = "active"


class Status(msgspec.Struct, frozen=True):
    """The server about itself.

    `durability`: fsync | quorum | quorum-interval | none. `sync`: always, an interval, never, unknown.
    """

    version: str = ""
    durability: str = ""
    replicas: int | None = None
    sync: str = ""
    uptime_s: float | None = None
    node: str | None = None
    timers: dict[str, int] = {}
    oldest_due_at: datetime | None = None
    log_live_bytes: int | None = None
    log_disk_bytes: int | None = None
    ring_version: int | None = None


class TypeStats(msgspec.Struct, frozen=True):
    """One type's counts since the data directory began.

    What is about deliveries is since the process began: `batches`, `mean_batch_size`, `unnamed`, `coalesced` and
    `breaker`; `lag` is of the last minute. `live`, `in_flight`, `retrying`, `dead_letters` and `missed` are as it
    stands.
    """

    armed: int = 0
    revived: int = 0
    fired: int = 0
    cancelled: int = 0
    replaced: int = 0
    dead: int = 0
    purged: int = 0
    superseded: int = 0
    retried: int = 0
    dropped: dict[str, int] = {}
    live: int = 0
    in_flight: int = 0
    retrying: int = 0
    dead_letters: int = 0
    missed: int = 0
    """Timers that are overdue beyond the type's grace and wait to catch up, or to be dropped; at most so many."""
    batches: int = 0
    mean_batch_size: float | None = None
    unnamed: int = 0
    """Answers about ids that were not in their batch; they changed nothing."""
    coalesced: int = 0
    """Turns that re-arms skipped, being overdue, of a type whose misfire policy is `coalesce`."""
    breaker: str = "closed"
    """`open` while the target is taken to be down."""
    lag: dict[str, float | None] = {}
    """`p50_ms`, `p99_ms`, `max_ms`; None when nothing was delivered."""
    target: dict[str, Any] | None = None
    """How the processor is: `since` when in trouble, `breaker` (closed, open, probing), `window` of `bound`,
    `held_until`, `next_probe_at`, `reason`. None for callbacks."""
    hosts: dict[str, Any] | None = None
    """How hosts of callbacks are: `known`, `open`, `slowed`, `held`, and `troubled` by name. None for processors."""


class TypeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a PUT of a type sends. What is left out takes the server's default."""

    url: str | None = None
    kind: str | None = None
    batch_size: int | None = None
    max_lag: int | str | None = None
    request_timeout: int | str | None = None
    max_in_flight: int | None = None
    max_per_second: float | None = None
    retry: Mapping[str, Any] | None = None
    misfire: Mapping[str, Any] | None = None
    signing_secrets: list[str] | None = None
    headers: Mapping[str, str] | None = None
    state: str | None = None
