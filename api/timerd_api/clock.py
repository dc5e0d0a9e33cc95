"""The clock: shows the service's time, and turns it. Only there when the service runs on a virtual clock.

A turn is answered when everything that is due by then has been delivered, so it takes as long as the deliveries do.
"""

from typing import Protocol

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, UnsetType

from timerd.engine.instant import format_instant, parse_duration, parse_instant
from timerd.engine.timer import MAX_WALL_US
from timerd.ports import Clock
from timerd.virtual_clock import ClockStopped
from timerd_api.body import Form, Intake, answer
from timerd_api.problem import SHARD_UNAVAILABLE, Fault, Problem, faulty
from timerd_api.schema import Duration, FireAt, Instant
from timerd_api.values import Query


class Turner(Protocol):
    """What turns the service's clock."""

    async def turn_to(self, wall_ms: int) -> int:
        """Let the clock show `wall_ms`, and deliver everything due by then; how many timers were fired.

        Raises ClockStopped where the service stops meanwhile: the clock stays where it stood.
        """
        ...


class ClockItem(msgspec.Struct):
    """What the virtual clock shows."""

    now: Instant


class ClockAdvance(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How far to turn the clock. Exactly one of `by` and `to` is given."""

    by: Duration | UnsetType = UNSET
    to: FireAt | UnsetType = UNSET


class ClockAnswer(msgspec.Struct):
    """What the clock shows now, and how many timers were fired on the way."""

    now: Instant
    fired: int


def add_routes(router: APIRouter, clock: Clock, turner: Turner, intake: Intake) -> None:
    """Add the routes of a virtual clock."""
    form = Form(ClockAdvance)

    def asked_ms(asked: ClockAdvance) -> int:
        now_ms = clock.now().wall_ms
        if isinstance(asked.by, UnsetType) == isinstance(asked.to, UnsetType):
            raise faulty([Fault("/by", "give either by or to")])
        name = "/to"
        try:
            if isinstance(asked.by, UnsetType):
                wall_ms = parse_instant(asked.to)  # type: ignore[arg-type]  # it says what it does not take
            else:
                name = "/by"
                wall_ms = now_ms + parse_duration(asked.by)
        except ValueError as error:
            raise faulty([Fault(name, str(error))]) from None
        if wall_ms < now_ms:
            shown = format_instant(now_ms)
            raise faulty([Fault(name, f"is in the past: the clock shows {shown}, and is not turned back")])
        if wall_ms * 1_000 >= MAX_WALL_US:
            raise faulty([Fault(name, "is beyond the year 2200, where generations end")])
        return wall_ms

    @router.get("/v1/clock")
    async def show_clock(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        return answer(request, ClockItem(format_instant(clock.now().wall_ms)))

    @router.post("/v1/clock:advance")
    async def advance_clock(request: Request) -> Response:
        Query(request.scope["query_string"]).check()
        wall_ms = asked_ms(await intake.read_form(request, form))
        try:
            fired = await turner.turn_to(wall_ms)
        except ClockStopped as error:
            raise Problem(SHARD_UNAVAILABLE, str(error)) from None
        return answer(request, ClockAnswer(format_instant(clock.now().wall_ms), fired))
