"""What a catalogue holds, from the JSON that it is kept as: a type, an API key, the ring table, and a cluster's secret.

A value may have been written by hand, or by another build. One that this build could not have made is refused here,
where it can be named, for behind here nothing expects it: a gap that no log can hold ends the node, a table that lacks
slots answers 500. The bounds of single fields are with the fields. A field that is not known is left out, and one that
is missing has its default.
"""

import re
from typing import TypeVar

import msgspec

from timerd.config import SECRET_CHARS_MIN, is_secret
from timerd.engine.errors import UnreadableCatalog
from timerd.engine.ring import RingTable, table_fault
from timerd.engine.timer import TimerType
from timerd.ports import ApiKey

_types = msgspec.json.Decoder(TimerType)
_keys = msgspec.json.Decoder(ApiKey)
_tables = msgspec.json.Decoder(RingTable)

Value = TypeVar("Value")


def stored_type(where: str, name: str, data: bytes) -> TimerType:
    """The type that is kept at `where`, for `name`. Raises UnreadableCatalog, as all of these."""
    type = _decoded(_types, where, data)
    if type.name != name:
        raise UnreadableCatalog(f"{where}: its name is {type.name!r}, which is another key's")
    return type


def stored_key(where: str, id: str, data: bytes) -> ApiKey:
    """The API key that is kept for `id`. With another id inside it could not be revoked: that key would be deleted."""
    key = _decoded(_keys, where, data)
    if key.id != id:
        raise UnreadableCatalog(f"{where}: its id is another key's")  # not shown: it may be anything
    return key


def stored_table(where: str, data: bytes) -> RingTable:
    """The ring table."""
    table = _decoded(_tables, where, data)
    if fault := table_fault(table):
        raise UnreadableCatalog(f"{where}: {fault}")
    return table


def stored_secret(where: str, data: bytes) -> str:
    """What nodes know each other by. It is not shown, nor is what is wrong with it."""
    text = data.decode(errors="replace")
    if not is_secret(text):
        raise UnreadableCatalog(f"{where}: must be {SECRET_CHARS_MIN} or more characters of ASCII")
    return text


def stored_digest(where: str, data: bytes) -> str:
    """A SHA-256 in hex."""
    if re.fullmatch(rb"[0-9a-f]{64}", data) is None:
        raise UnreadableCatalog(f"{where}: is no SHA-256 in hex")
    return data.decode()


def _decoded(decoder: msgspec.json.Decoder[Value], where: str, data: bytes) -> Value:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:  # the latter: a field that is not known, nested without end
        raise UnreadableCatalog(f"{where}: {error}") from None
