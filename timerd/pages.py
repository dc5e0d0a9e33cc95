"""Pages of a list: how much is on one, and the token that says where the next goes on.

A token is opaque to callers, and no secret: a position in the order (slot, id).
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Final

import msgspec

from timerd.engine.message import TimerView
from timerd.engine.timer import BodyRef

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
        return msgspec.msgpack.decode(raw, type=Position)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None


def fitting(found: Sequence[tuple[int, TimerView]], count: int) -> int:
    """How many of these, at most `count` and at least one, have payloads that fit a page."""
    room = PAGE_BYTES_MAX
    for index, (_, view) in enumerate(found[:count]):
        payload = view.payload
        room -= payload.length if isinstance(payload, BodyRef) else len(payload or b"")
        if room < 0 and index:
            return index
    return min(count, len(found))
