"""Deliveries: what timerd sends to a type's url and what comes back, as structs for the contract.

Only the contract is made from them: the engine encodes a batch (`engine/batch.py`) and reads an answer
(`engine/answer.py`) in its own way, and a test holds the two together.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from timerd_api.schema import Duration, FireAt, Generation, Id, Instant, Payload, TypeName


class DeliveredTimer(msgspec.Struct, omit_defaults=True):
    """One timer of a batch."""

    id: Id
    generation: Annotated[Generation, Meta(description="which arm of this id it is; an answer acts on no other")]
    fire_at: Instant
    attempt: Annotated[int, Meta(ge=1, description="counts the deliveries of this generation")]
    possible_duplicate: Annotated[
        bool | UnsetType, Meta(description="true when an earlier delivery may have arrived; left out otherwise")
    ] = UNSET
    payload: Payload | UnsetType = UNSET


class Delivery(msgspec.Struct):
    """A batch: timers of one type that are due, no id twice."""

    type: TypeName
    batch_id: Annotated[str, Meta(description="the same in every attempt of the same members")]
    dispatched_at: Instant
    timers: Annotated[list[DeliveredTimer], Meta(min_length=1, max_length=10_000)]


class DeliveryResult(msgspec.Struct, omit_defaults=True):
    """What became of one timer. A `rearm` has exactly one of `fire_at` and `delay`."""

    id: Id
    status: Annotated[
        Literal["ok", "retry", "drop", "dead", "rearm"],
        Meta(
            description="ok: fired. retry: a counted failure. drop: over, without having fired. dead: a dead letter. "
            "rearm: fired, and armed again under its id"
        ),
    ]
    fire_at: FireAt | UnsetType = UNSET
    delay: Duration | UnsetType = UNSET
    payload: (
        Annotated[Payload, Meta(description="of a rearm: the new payload; left out, it keeps the old")] | UnsetType
    ) = UNSET
    error: Annotated[str, Meta(description="of a retry or dead: kept as last_error, at most 200 bytes")] | UnsetType = (
        UNSET
    )


class DeliveryFailure(msgspec.Struct):
    """One timer that failed."""

    itemIdentifier: Id


class DeliveryAnswer(msgspec.Struct, omit_defaults=True):
    """One of the two, or neither: all fired. Timers that are not named fired; ids of no timer in it are ignored."""

    results: list[DeliveryResult] | UnsetType = UNSET
    batchItemFailures: Annotated[
        list[DeliveryFailure] | UnsetType, Meta(description="these failed, each a counted failure; the others fired")
    ] = UNSET
