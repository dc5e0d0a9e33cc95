"""Page tokens: where a list goes on. Opaque to callers, and no secret: a position in the order (slot, id)."""

import base64
import binascii
from typing import Final

import msgspec

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
