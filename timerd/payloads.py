"""Payloads that lie apart, put into what is shown to a reader."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from timerd.engine.message import TimerView
from timerd.engine.timer import BodyRef


class Bodies(Protocol):
    """Where they lie."""

    async def read_bodies(self, places: Sequence[BodyRef]) -> list[bytes | None]: ...


async def with_bodies(
    views: Sequence[TimerView],
    log: Bodies,
    look_up: Callable[[str], Awaitable[TimerView | None]],
    *,
    as_they_were: bool = False,
) -> list[TimerView]:
    """The views, each with its payload in full.

    A body may have been copied forward, and its old place dropped, since a view was made: what is not there any more is
    looked up again, and is then shown as it is now. What is gone itself is left out, and with `as_they_were` what has
    become another meanwhile: it was chosen for what it was. What lies where it lay and can't be read is damaged, and
    shown without.
    """
    shown = list(views)
    gone: set[int] = set()
    todo = [(index, v.payload) for index, v in enumerate(shown) if isinstance(v.payload, BodyRef)]
    while todo:
        again: list[tuple[int, BodyRef]] = []
        bodies = await log.read_bodies([place for _, place in todo])
        for (index, place), body in zip(todo, bodies, strict=True):
            view = shown[index]
            if body is None:
                fresh = await look_up(view.id)
                if fresh is None:
                    gone.add(index)
                elif not isinstance(fresh.payload, BodyRef):
                    view, body = fresh, fresh.payload
                elif fresh.payload != place:
                    shown[index] = fresh
                    again.append((index, fresh.payload))
                    continue
            shown[index] = msgspec.structs.replace(view, payload=body)
        todo = again
    return [
        now
        for index, (now, then) in enumerate(zip(shown, views, strict=True))
        if index not in gone and not (as_they_were and _version(now) != _version(then))
    ]


def _version(view: TimerView) -> tuple[int, str]:
    return view.generation, view.state
