"""How targets are, on the wire: part of `/v1/stats`. Values only, like the schema that they belong to."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Instant = Annotated[str, Meta(description="RFC 3339, UTC, milliseconds", examples=["2026-11-30T08:00:00.123Z"])]
Breaker = Literal["closed", "open", "probing"]


class TargetItem(msgspec.Struct):
    """How a type's processor is. `window` of `bound` requests may be under way to it."""

    breaker: Breaker
    window: int
    bound: int
    held_until: Instant | None
    next_probe_at: Instant | None
    reason: str


class HostItem(msgspec.Struct):
    """A host of callbacks in trouble, since when, and how it is."""

    host: str
    since: Instant | None
    breaker: Breaker
    window: int
    bound: int
    held_until: Instant | None
    next_probe_at: Instant | None
    reason: str


class HostsItem(msgspec.Struct):
    """The hosts of a callback type that have something to do, counted; those longest in trouble by name."""

    known: int
    open: int
    slowed: int
    held: int
    troubled: list[HostItem]
