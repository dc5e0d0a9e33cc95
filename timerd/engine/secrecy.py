"""Secrecy: what is never shown, in a log line, an error or a `repr`. Pure: text in, text out.

Secrets of ours can be told by their beginnings, which is what the beginnings are for: `scrub` finds them wherever they
have got to, also where somebody pasted a key in place of an id. What has no such mark, such as a bootstrap key of the
operator's own making, is given to it.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

MASK: Final = "***"
_KNOWN_CHARS_MIN: Final = 4  # a secret shorter than this is no secret, and would blot out half of every line

# A key of ours keeps its id, which is no secret and says which one it was; a signing secret, or a cluster's, nothing.
_SECRET: Final = re.compile(r"(td_[a-z2-7]{8}_|whsec_|tdcs_)[A-Za-z0-9+/=_%-]{4,}")
_KEY: Final = re.compile(r"td_[a-z2-7]{8}_")
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def scrub(text: str, known: Iterable[str] = ()) -> str:
    """The text without secrets, and without control characters that could make one line look like two."""
    for secret in known:
        if len(secret) >= _KNOWN_CHARS_MIN:
            text = text.replace(secret, MASK)
    text = _SECRET.sub(rf"\1{MASK}", text)
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def is_made_key(text: str) -> bool:
    """Whether this looks like a key that timerd made."""
    return _KEY.match(text) is not None


def masked_repr(value: msgspec.Struct, *hidden: str) -> str:
    """The `repr` of a struct, with a mask in place of the fields that are hidden, where they hold anything."""
    shown = ", ".join(
        f"{name}={MASK if name in hidden and getattr(value, name) else repr(getattr(value, name))}"
        for name in value.__struct_fields__
    )
    return f"{type(value).__name__}({shown})"
