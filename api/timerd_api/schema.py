"""Schema: the shapes on the wire, as structs. The contract served at /openapi.json is made from them.

Values only. What a decoder can check by itself (which members there are, of which type, in which range) is checked by
being declared here; what takes a look at the engine or at two members at once is checked where it is used. Members of
an answer that may be absent are UNSET, which is another thing than null.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from timerd.engine.secrecy import masked_repr
from timerd.engine.timer import ATTEMPTS_MAX, BATCH_MAX, IN_FLIGHT_MAX, MAX_GENERATION, MULTIPLIER_MAX
from timerd_api.request_schema import RequestBody, RequestItem

ITEMS_MAX: Final = 10_000
PAGE_SIZE_MAX: Final = 1_000
PAGE_SIZE: Final = 100

Id = Annotated[str, Meta(min_length=1, max_length=256, description="1 to 256 bytes of UTF-8, no control characters")]
TypeName = Annotated[str, Meta(description="[a-z][a-z0-9_.-]{0,63}")]
Instant = Annotated[str, Meta(description="RFC 3339, UTC, milliseconds", examples=["2026-11-30T08:00:00.123Z"])]
# Anything, as far as the decoder goes: what it is not is said by who reads it, with a hint at what was perhaps meant.
FireAt = Annotated[
    Any,
    Meta(
        description="RFC 3339 with an offset, or an integer of Unix milliseconds",
        examples=["2026-11-30T08:00:00Z", 1796025600000],
        extra_json_schema={"anyOf": [{"type": "integer"}, {"type": "string"}]},
    ),
]
Duration = Annotated[
    float | str, Meta(description="250ms, 10s, 5m, 36h, 60d, or a number of seconds", examples=["10s", 0.25])
]
Generation = Annotated[int, Meta(ge=0, lt=MAX_GENERATION)]
Mode = Annotated[
    Literal["replace", "earliest", "latest", "keep"],
    Meta(
        description="replace: as asked for, whatever stands. earliest, latest: the earlier or later of the two fire "
        "times stands. keep: only if nothing stands. All but replace take a timer that is in flight or dead for absent."
    ),
]
Payload = Annotated[Raw, Meta(description="any JSON; handed on unchanged")]
TimerState = Literal["armed", "due", "in_flight", "retrying", "paused", "dead"]
ArmStatus = Literal["created", "moved", "unchanged", "kept", "conflict", "unavailable"]


# ---- arms


class ArmBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One timer to arm, its id being in the path. Exactly one of `fire_at` and `delay` is given."""

    type: Annotated[str, Meta(description="the name of a type that has been put")]
    fire_at: FireAt | UnsetType = UNSET
    delay: (
        Annotated[
            float | str,
            Meta(
                description="from the server's clock at acceptance: 250ms, 10s, 5m, 36h, 60d, or a number of seconds",
                examples=["10s", 0.25],
            ),
        ]
        | UnsetType
    ) = UNSET
    payload: Annotated[Payload, Meta(description="for a type of kind processor: any JSON")] | UnsetType = UNSET
    request: (
        Annotated[RequestBody, Meta(description="for a type of kind callback, in place of payload")] | UnsetType
    ) = UNSET
    mode: Mode = "replace"
    if_generation: (
        Annotated[
            int,
            Meta(
                ge=0,
                lt=MAX_GENERATION,
                description="arm only if this is the generation that stands, a dead one's included; 0 = nothing stands",
            ),
        ]
        | UnsetType
    ) = UNSET


class ArmItem(ArmBody, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One timer to arm. Exactly one of `fire_at` and `delay` is given."""

    id: Id


class ArmRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Timers to arm, all or none."""

    timers: Annotated[list[ArmItem], Meta(min_length=1, max_length=ITEMS_MAX)]


NO_PAYLOAD = Raw(b"")


class PlainItem(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What most items are. It decodes faster than `ArmItem` and leaves less to check."""

    id: Id
    type: str
    fire_at: int | str
    payload: Raw = NO_PAYLOAD


class PlainRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An `ArmRequest` of plain items."""

    timers: Annotated[list[PlainItem], Meta(min_length=1, max_length=ITEMS_MAX)]


class RawRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An `ArmRequest` whose items are still to be looked at one by one."""

    timers: Annotated[list[Raw], Meta(min_length=1, max_length=ITEMS_MAX)]


class ArmResultItem(msgspec.Struct, omit_defaults=True, gc=False):
    """What became of one item. `generation` and `fire_at` are those that stand now; 0 and null where nothing stands.

    `unavailable` is only in a 503 shard-unavailable: what became of the item is not known; sending it again is safe."""

    id: Id
    status: ArmStatus
    generation: int
    fire_at: Instant | None
    previous_fire_at: Instant | UnsetType = UNSET


class ArmAnswer(msgspec.Struct, omit_defaults=True):
    """`armed` = created + moved. `results` is in the order of the request."""

    now: Instant
    armed: int
    conflicts: int
    results: list[ArmResultItem] | UnsetType = UNSET


# ---- timers


class TimerItem(msgspec.Struct, omit_defaults=True):
    """A timer as it is shown."""

    id: Id
    type: TypeName
    state: TimerState
    fire_at: Instant
    generation: int
    attempt: int
    created_at: Instant
    updated_at: Instant
    shard: int
    payload: Payload | UnsetType = UNSET
    request: RequestItem | UnsetType = UNSET
    last_error: str | UnsetType = UNSET
    next_attempt_at: Instant | UnsetType = UNSET


class TimerPage(msgspec.Struct, omit_defaults=True):
    """Some timers, and where to go on."""

    timers: list[TimerItem]
    next_page_token: str | UnsetType = UNSET


class DeleteAnswer(msgspec.Struct):
    """`in_flight`: a delivery of this generation is on its way, and ends without retry or re-arm."""

    id: Id
    generation: int
    in_flight: bool


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Ids to cancel."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=ITEMS_MAX)]


class CancelItem(msgspec.Struct):
    """What became of one id. `unavailable` is only in a 503 shard-unavailable."""

    id: Id
    status: Literal["cancelled", "not_found", "unavailable"]
    in_flight: bool


class CancelAnswer(msgspec.Struct):
    """`results` is in the order of the request."""

    cancelled: int
    results: list[CancelItem]


class NoBody(msgspec.Struct, forbid_unknown_fields=True):
    """A call that takes nothing; an empty object is as good as no body."""


# ---- types


class RetryBody(msgspec.Struct, forbid_unknown_fields=True):
    """How failed timers are tried again. `max_attempts` 0 = no limit."""

    max_attempts: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=ATTEMPTS_MAX,
                description="counted failures after which a timer is a dead letter; 0 = no limit. Left out, it is 0, "
                "and 10 for a type of kind callback",
            ),
        ]
        | UnsetType
    ) = UNSET
    min_backoff: Annotated[Duration, Meta(description="the wait after a first failure; 1ms to 7d")] = "1s"
    max_backoff: Annotated[
        Duration, Meta(description="the longest wait, and between probes of a target that is down; 1ms to 7d")
    ] = "5m"
    multiplier: Annotated[
        float, Meta(ge=1, le=MULTIPLIER_MAX, description="what the wait grows by with each failure")
    ] = 2.0
    jitter: Annotated[
        float, Meta(ge=0, le=1, description="a wait is multiplied by a random number of 1 - jitter to 1 + jitter")
    ] = 0.2


class MisfireBody(msgspec.Struct, forbid_unknown_fields=True):
    """What becomes of timers that are overdue by more than `grace` and were not tried yet."""

    policy: Annotated[
        Literal["fire", "drop", "coalesce"],
        Meta(
            description="fire: they catch up beside on-time timers. drop: they end, and are counted. coalesce: like"
            " fire, and a re-arm in an answer that is overdue itself skips ahead by whole steps"
        ),
    ] = "fire"
    grace: Annotated[Duration, Meta(description="0s to 3660d; max_lag and 250ms count, where that is more")] = "1m"
    max_per_second: (
        Annotated[
            float,
            Meta(
                ge=0.001,
                le=1_000_000_000,
                description="how many of them catch up a second, 0.001 to 1,000,000,000; null = no limit of its own",
            ),
        ]
        | None
    ) = None


class TypeBody(msgspec.Struct, forbid_unknown_fields=True):
    """A timer type. What is left out takes its default; secrets that are left out stay."""

    url: (
        Annotated[str, Meta(max_length=2048, description="where batches are POSTed: http or https; not with callback")]
        | UnsetType
    ) = UNSET
    kind: Annotated[
        Literal["processor", "callback"],
        Meta(description="processor: batches to one url. callback: each timer has a request of its own"),
    ] = "processor"
    batch_size: Annotated[int, Meta(ge=1, le=BATCH_MAX, description="the most timers in one POST")] = 800
    max_lag: Annotated[
        Duration, Meta(description="how long a due timer may wait for its batch to fill; 0 = not at all; up to 24h")
    ] = "10s"
    request_timeout: Annotated[
        Duration, Meta(description="for one whole exchange, connecting and the answer included; 1ms to 1h")
    ] = "30s"
    max_in_flight: Annotated[int, Meta(ge=1, le=IN_FLIGHT_MAX, description="requests under way at once")] = 16
    max_per_second: (
        Annotated[
            float,
            Meta(
                ge=0.001,
                le=1_000_000_000,
                description="timers a second that are delivered, 0.001 to 1,000,000,000; null = no limit",
            ),
        ]
        | None
    ) = None
    retry: RetryBody = msgspec.field(default_factory=RetryBody)
    misfire: MisfireBody = msgspec.field(default_factory=MisfireBody)
    signing_secrets: (
        Annotated[
            list[str],
            Meta(
                max_length=10,
                description="each is whsec_ and base64, or says where that is: env:NAME, file:/PATH. All of them sign. "
                "Left out, those that stand stay",
            ),
        ]
        | UnsetType
    ) = UNSET
    headers: Annotated[dict[str, str], Meta(max_length=64, description="sent with every POST; masked when shown")] = (
        msgspec.field(default_factory=dict)
    )
    state: Annotated[
        Literal["active", "paused"], Meta(description="a PUT that leaves it out makes a paused type active")
    ] = "active"

    def __repr__(self) -> str:
        return masked_repr(self, "signing_secrets", "headers")


class RetryItem(msgspec.Struct):
    max_attempts: int
    min_backoff: str
    max_backoff: str
    multiplier: float
    jitter: float


class MisfireItem(msgspec.Struct):
    policy: str
    grace: str
    max_per_second: float | None


class TypeItem(msgspec.Struct, kw_only=True):
    """A timer type as it is shown: secrets as hints (references as they are), header values masked. One of kind
    callback has no url."""

    name: TypeName
    url: str | UnsetType = UNSET
    kind: str
    batch_size: int
    max_lag: str
    request_timeout: str
    max_in_flight: int
    max_per_second: float | None
    retry: RetryItem
    misfire: MisfireItem
    signing_secrets: list[str]
    headers: dict[str, str]
    state: Literal["active", "paused"]


class TypeList(msgspec.Struct):
    """All types, by name."""

    types: list[TypeItem]


# ---- dead letters


class DeadLetter(msgspec.Struct, omit_defaults=True):
    """A timer that was given up."""

    id: Id
    type: TypeName
    generation: int
    fire_at: Instant
    attempts: int
    last_error: str
    died_at: Instant
    payload: Payload | UnsetType = UNSET
    request: RequestItem | UnsetType = UNSET


class DeadLetterPage(msgspec.Struct, omit_defaults=True):
    """Some dead letters, and where to go on."""

    dead_letters: list[DeadLetter]
    next_page_token: str | UnsetType = UNSET


class DeadLetterRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters: these ids, or all of a type. Exactly one of the two is given."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=ITEMS_MAX)] | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ReplayAnswer(msgspec.Struct):
    replayed: int


class PurgeAnswer(msgspec.Struct):
    purged: int


# ---- the service


class Health(msgspec.Struct):
    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct, omit_defaults=True):
    status: Literal["ready", "unready"]
    reason: str | UnsetType = UNSET


class StatusItem(msgspec.Struct):
    """The node as it is. `timers` counts by state.

    `durability` says what an answered arm rests on: `fsync`, `quorum`, `quorum-interval` or `none`; `replicas` on how
    many machines it is; `sync` when these have it on disk: `always` (before the answer), an interval, `never` or
    `unknown`.
    """

    version: str
    durability: str
    replicas: int
    sync: str
    now: Instant
    uptime_s: float
    node: str
    timers: dict[str, int]
    oldest_due_at: Instant | None
    log_live_bytes: Annotated[
        int,
        Meta(
            description="what the log needs: a checkpoint, bodies, and room kept for completions. That room is not "
            "written yet, so this may be above log_disk_bytes"
        ),
    ]
    log_disk_bytes: Annotated[int, Meta(description="what the log takes on disk")]
    ring_version: int
