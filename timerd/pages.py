"""Pages of a list: how much is on one, and the token that says where the next goes on.

A token is opaque to callers, and no secret: a position in the order (slot, id).
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from timerd.engine.message import GONE, Filter, Gone, Page, TimerView
from timerd.engine.ring import SLOTS
from timerd.engine.timer import BodyRef

PAGE_ROUNDS: Final = 8  # times all shards are asked for one page; then it may be short
SHARE_MORE: Final = 32  # than an even share: what the page ends before is read in vain
PAGE_BYTES_MAX: Final = 4 << 20  # of payloads in one page, or one timer: a thousand large ones would be 64 MiB

Position = tuple[int, str]

BEGINNING: Final[Position] = (-1, "")


def page_token_of(after: Position) -> str:
    """The token of what lies behind a position."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(after)).decode().rstrip("=")


def read_token(token: str) -> Position | None:
    """The position that a token stands for; None if it is none of ours."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        position = msgspec.msgpack.decode(raw, type=Position)
        return position if BEGINNING[0] <= position[0] < SLOTS else None
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None


def share(page_size: int, shards: int) -> int:
    """How many each shard is asked for: what it will have of a page, and some more. It may take another round."""
    return min(page_size, page_size // shards + SHARE_MORE)


async def read_page(
    after: Position,
    page_size: int,
    ask_all: Callable[[Position], Awaitable[list[Page | Gone]]],
    look_up: Callable[[str], Awaitable[TimerView | None]],
) -> tuple[list[TimerView], Position | None] | Gone:
    """What lies behind a position, as far as all shards have looked, and where the next page goes on; None: nowhere.

    `look_up` is asked about what is between two shards: a timer that is wanted, or None.
    """
    found: list[tuple[int, TimerView]] = []
    upto: Position | None = after
    for _ in range(PAGE_ROUNDS):
        answers = await ask_all(upto or BEGINNING)
        pages = [page for page in answers if not isinstance(page, Gone)]
        if len(pages) < len(answers):
            return GONE
        upto = min((page.upto for page in pages if page.upto is not None), default=None)
        seen = [(slot, view) for page in pages for slot, view in page.views if upto is None or (slot, view.id) <= upto]
        shown = {(slot, view.id) for slot, view in seen}
        coming = {place for page in pages for place in page.coming if upto is None or place <= upto}
        for slot, id in sorted(coming - shown):
            if (late := await look_up(id)) is not None:
                seen.append((slot, late))
        found += sorted(seen, key=lambda item: (item[0], item[1].id))
        if upto is None or len(found) >= page_size:
            break
    if len(found) > (count := _fitting(found, page_size)):
        found = found[:count]
        upto = (found[-1][0], found[-1][1].id)
    return [view for _, view in found], upto


def _fitting(found: Sequence[tuple[int, TimerView]], count: int) -> int:
    """How many of these, at most `count` and at least one, have payloads that fit a page."""
    room = PAGE_BYTES_MAX
    for index, (_, view) in enumerate(found[:count]):
        payload = view.payload
        room -= payload.length if isinstance(payload, BodyRef) else len(payload or b"")
        if room < 0 and index:
            return index
    return min(count, len(found))


def matches(filter: Filter, view: TimerView) -> bool:
    """Whether a list of these timers shows this one."""
    return (
        (filter.type is None or view.type == filter.type)
        and (filter.state is None or view.state == filter.state)
        and (filter.fire_after is None or view.fire_at > filter.fire_after)
        and (filter.fire_before is None or view.fire_at < filter.fire_before)
        and (filter.id_prefix is None or view.id.startswith(filter.id_prefix))
    )
