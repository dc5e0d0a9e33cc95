"""Payloads that lie apart, put into what is shown to a reader."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from timerd.engine.message import TimerView
from timerd.engine.timer import BodyRef
from timerd.ports import Log


async def with_bodies(
    views: Sequence[TimerView], log: Log, look_up: Callable[[str], Awaitable[TimerView | None]]
) -> list[TimerView]:
    """The views, each with its payload in full.

    A body may have been copied forward, and its old place dropped, since a view was made: what is not there any more is
    looked up again. What lies where it lay and can't be read is damaged, and shown without its payload.
    """
    shown = list(views)
    todo = [(index, v.payload) for index, v in enumerate(shown) if isinstance(v.payload, BodyRef)]
    while todo:
        again: list[tuple[int, BodyRef]] = []
        bodies = await log.read_bodies([place for _, place in todo])
        for (index, place), body in zip(todo, bodies, strict=True):
            view = shown[index]
            if body is None and (fresh := await look_up(view.id)) is not None:
                if not isinstance(fresh.payload, BodyRef):
                    view, body = fresh, fresh.payload
                elif fresh.payload != place:
                    shown[index] = fresh
                    again.append((index, fresh.payload))
                    continue
            shown[index] = msgspec.structs.replace(view, payload=body)
        todo = again
    return shown
