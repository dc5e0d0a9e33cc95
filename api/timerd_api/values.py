"""Values: ids, names, times and parameters of a request, turned into what the engine takes, or refused with a reason.

Pure: text in, values out. The reasons are shown to callers.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

from timerd.engine.instant import parse_instant
from timerd_api.problem import MALFORMED, Fault, Problem, faulty

ID_BYTES_MAX: Final = 256
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_TYPE_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_ETAG: Final = re.compile(r'"(0|[1-9][0-9]{0,15})"')

EXPIRES: Final = "Timerd-Expires"


def id_fault(id: str) -> str | None:
    """Why this is no id; None if it is one."""
    if not id:
        return "an id may not be empty"
    if len(id) > ID_BYTES_MAX or (len(id) * 4 > ID_BYTES_MAX and len(id.encode()) > ID_BYTES_MAX):
        return f"an id may have at most {ID_BYTES_MAX} bytes of UTF-8"
    if id in (".", ".."):
        return "'.' and '..' can't be ids: a path can't hold them"
    if _CONTROL.search(id):
        return "an id may not have control characters"
    return None


def ids_are_plain(ids: list[str]) -> bool:
    """Whether these ids (each of 1 to 256 characters) are certainly all right; if not, each wants a look by itself.

    Printable ASCII has a byte a character and no control characters, so one look at all of them together does.
    """
    text = "".join(ids)
    return text.isascii() and text.isprintable() and _DOTS.isdisjoint(ids)


_DOTS: Final = frozenset((".", ".."))


def path_id(segment: str) -> str:
    """The id that a path segment, percent-encoded as it was sent, stands for. Raises Problem."""
    id = _decoded(segment)
    if fault := id_fault(id):
        raise faulty([Fault("id", fault)])
    return id


def path_name(segment: str) -> str:
    """What a path segment says in place of a type's name; it need not be a possible one."""
    return _decoded(segment)


def _decoded(segment: str) -> str:
    # The server gives the path as bytes; latin-1 has carried them through the router one to one.
    if _BAD_ESCAPE.search(segment):
        raise Problem(MALFORMED, "the path has a % that begins no escape; a % itself is written %25")
    try:
        return unquote_to_bytes(segment.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise Problem(MALFORMED, "the path is not UTF-8") from None


def is_type_name(name: str) -> bool:
    return _TYPE_NAME.fullmatch(name) is not None


TYPE_NAME_FAULT: Final = "a type's name is [a-z][a-z0-9_.-]{0,63}"


def expires_at(headers: Mapping[bytes, bytes]) -> int | None:
    """Unix ms of `Timerd-Expires`, if it is there. Raises Problem."""
    given = headers.get(b"timerd-expires")
    if given is None:
        return None
    try:
        return parse_instant(given.decode("latin-1"))
    except ValueError as error:
        raise faulty([Fault(EXPIRES, str(error))]) from None


def prefers_minimal(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a `Prefer` header (RFC 7240) asks for `return=minimal`."""
    given = [value for name, value in headers if name == b"prefer"]
    if given == [b"return=minimal"]:
        return True
    asked = b",".join(given).lower()
    return any(part.partition(b";")[0].replace(b" ", b"") == b"return=minimal" for part in asked.split(b","))


def if_generation(headers: Mapping[bytes, bytes]) -> int | None:
    """What `If-Match: "<generation>"` or `If-None-Match: *` asks for; 0 = nothing there. Raises Problem."""
    match, none_match = headers.get(b"if-match"), headers.get(b"if-none-match")
    if match is not None and none_match is not None:
        raise faulty([Fault("If-None-Match", "can't be asked for together with If-Match")])
    if none_match is not None:
        if none_match.strip() != b"*":
            raise faulty([Fault("If-None-Match", "must be *")])
        return 0
    if match is None:
        return None
    found = _ETAG.fullmatch(match.decode("latin-1").strip())
    if found is None:
        raise faulty([Fault("If-Match", "must be one generation in double quotes")])
    return int(found[1])


class Query:
    """The query parameters of a request. One that is empty counts as left out; an unknown or repeated one is refused.

    Reads collect faults; `check` raises them all. What a faulty parameter gave until then must not be used.
    """

    def __init__(self, query_string: bytes, *known: str) -> None:
        self._given: dict[str, str] = {}
        self._faults: list[Fault] = []
        try:
            pairs = parse_qsl(query_string.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
        except ValueError:  # UnicodeDecodeError is one, too
            raise Problem(MALFORMED, "the query string can't be read") from None
        for name, value in pairs:
            if name not in known:
                takes = ", ".join(known) or "none"
                self._faults.append(Fault(name, f"is no parameter of this call, which takes {takes}"))
            elif name in self._given:
                self._faults.append(Fault(name, "is given twice"))
            elif value:
                self._given[name] = value

    def text(self, name: str) -> str | None:
        return self._given.get(name)

    def number(self, name: str, least: int, most: int, default: int) -> int:
        text = self._given.get(name)
        if text is None:
            return default
        if re.fullmatch("[0-9]{1,9}", text) and least <= int(text) <= most:
            return int(text)
        self._faults.append(Fault(name, f"must be an integer from {least} to {most}"))
        return default

    def instant(self, name: str) -> int | None:
        text = self._given.get(name)
        if text is None:
            return None
        try:
            return parse_instant(int(text) if re.fullmatch("-?[0-9]{1,18}", text) else text)
        except ValueError as error:
            self._faults.append(Fault(name, str(error)))
            return None

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        text = self._given.get(name)
        if text is not None and text not in choices:
            self._faults.append(Fault(name, f"must be one of {', '.join(choices)}"))
        return text

    def type_name(self, name: str) -> str | None:
        text = self._given.get(name)
        if text is not None and not is_type_name(text):
            self._faults.append(Fault(name, TYPE_NAME_FAULT))
        return text

    def id_prefix(self, name: str) -> str | None:
        text = self._given.get(name)
        # '.' and '..' are no ids, but ids begin with them.
        if text is not None and text not in _DOTS and (fault := id_fault(text)):
            self._faults.append(Fault(name, fault))
        return text

    def check(self) -> None:
        """Raises Problem unless all went well."""
        if self._faults:
            raise faulty(self._faults)
