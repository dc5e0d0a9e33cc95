"""XML from strangers: bytes to a tree, or one error that says what is wrong.

Feeds and OPML lists come from anywhere, so nothing in them may reach out or blow up:
  1. a DOCTYPE with an internal subset is refused, and with it every entity bomb; one without a subset (RSS 0.91 has
     one) is inert, because expat fetches nothing;
  2. size and depth are bounded;
  3. the declared encoding is honoured where Python knows it, also the multi-byte ones that expat does not.

This module knows XML. It does not know what a feed or a list looks like.
"""

import re
from typing import NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

BYTES_MAX = 8 << 20
"""The largest list or feed accepted. The largest feeds in the wild (podcasts with every episode) are a few MiB."""
DEPTH_MAX = 200
"""Outlines nest a handful of levels, feeds about ten."""

_ENCODING = re.compile(rb"""^\s*<\?xml[^>]*?encoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")


class BadDocument(ValueError):
    """It can't be read as XML. The text says where and why."""


class RefusedDocument(BadDocument):
    """It could be read, but must not be: it is a danger rather than a mistake."""


def parse(data: bytes, charset: str | None = None) -> Element:
    """Read a document. `charset`, from an HTTP header, is used only where the document itself says nothing."""
    if len(data) > BYTES_MAX:
        raise RefusedDocument(f"larger than {BYTES_MAX >> 20} MiB")
    builder = TreeBuilder()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > DEPTH_MAX:
            raise RefusedDocument(f"nested deeper than {DEPTH_MAX} elements")
        builder.start(_tag(name), {_tag(key): value for key, value in attributes.items()})

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(_tag(name))

    def doctype(name: str, system: str | None, public: str | None, has_subset: bool) -> None:
        if has_subset:
            _refuse_entities()

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = doctype
    parser.EntityDeclHandler = lambda *_: _refuse_entities()
    try:
        parser.Parse(decode(data, charset), True)
    except (expat.ExpatError, UnicodeEncodeError) as error:
        raise BadDocument(f"not well-formed XML: {error}") from error
    return builder.close()


def decode(data: bytes, charset: str | None = None) -> str:
    """The text of a document, without its XML declaration. Bytes that are not what they claim to be are replaced."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = data.decode("utf-16", "replace")
    else:
        declared = _ENCODING.match(data.removeprefix(b"\xef\xbb\xbf")[:200])
        text = _decode_as(data, declared[1].decode() if declared else charset or "utf-8")
    return _DECLARATION.sub("", text.removeprefix("\ufeff"), count=1)


def _decode_as(data: bytes, encoding: str) -> str:
    # The usual lies: Windows text labelled UTF-8 or Latin-1, and UTF-8 labelled anything. UTF-8 is hard to hit by
    # accident, so it is believed before a label that does not fit.
    for candidate in (encoding, "utf-8", "cp1252"):
        try:
            return data.decode(candidate)
        except (ValueError, LookupError):  # Some codecs fail in ways of their own, all of them ValueErrors.
            continue
    return data.decode("cp1252", "replace")


def _tag(name: str) -> str:
    return "{" + name if "}" in name else name


def _refuse_entities() -> NoReturn:
    raise RefusedDocument("it declares entities of its own, which is how XML bombs are built")
