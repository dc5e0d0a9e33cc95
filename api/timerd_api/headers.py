"""Headers that somebody else sets on requests of ours: a type's, and a callback's.

What goes through here can't end a header line, and can't be read in two ways.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from timerd_api.problem import pointer_token

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}")
_VALUE: Final = re.compile(r"[\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?")  # RFC 9110, and no obs-text
_VALUE_MAX: Final = 4096
BYTES_MAX: Final = 16 * 1024  # of all together: what servers take, with room for ours

CONNECTION_HEADERS: Final = frozenset(
    {
        *("connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""What the connection needs for itself."""


def header_faults(headers: Mapping[str, str], at: str, is_own: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """(pointer, what is wrong), `at` being the pointer to the headers; `is_own`: whether a lower-case name is ours."""
    seen: set[str] = set()
    size = 0
    for name, value in headers.items():
        pointer, folded = f"{at}/{pointer_token(name)}", name.lower()
        size += len(name) + len(value) + 4
        if not _NAME.fullmatch(name):
            yield pointer, "is no header name"
        elif is_own(folded):
            yield pointer, "is set by timerd itself"
        elif folded in seen:
            yield pointer, "is given twice"
        elif value and (len(value) > _VALUE_MAX or not _VALUE.fullmatch(value)):
            yield pointer, "is no header value: at most 4096 printable ASCII characters, no spaces around them"
        seen.add(folded)
    if size > BYTES_MAX:
        yield at, f"are too large: names and values may have at most {BYTES_MAX} bytes together"
