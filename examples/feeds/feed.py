"""A feed's document: RSS 0.9x to 2.0, RSS 1.0 (RDF) and Atom, reduced to what a poller keeps.

An entry needs an identity that survives edits, because (feed, guid) is what makes an entry new or known: its guid or
Atom id, else its link, else a digest of its title and text. An entry without any of these is no entry.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple
from xml.etree.ElementTree import Element

from .document import BadDocument, parse

ATOM = "{http://www.w3.org/2005/Atom}"
RSS_10 = "{http://purl.org/rss/1.0/}"
RSS_090 = "{http://my.netscape.com/rdf/simple/0.9/}"
RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"

ENTRIES_MAX = 1000
"""A poll keeps so many entries at most; feeds list their newest first."""
TEXT_CHARACTERS_MAX = 2000


class Entry(NamedTuple):
    guid: str
    title: str
    link: str
    published: str
    """As the feed says it; formats differ and nothing here depends on it."""


class Feed(NamedTuple):
    title: str
    entries: list[Entry]


def read(data: bytes, charset: str | None = None) -> Feed:
    """Read a feed; BadDocument if it isn't one."""
    root = parse(data, charset)
    if root.tag == f"{ATOM}feed":
        return Feed(_text(root, f"{ATOM}title"), _limited(map(_atom_entry, root.iterfind(f"{ATOM}entry"))))
    if root.tag.lower() == "rss":
        return _rss(root, "", root.find("channel"))
    if root.tag == f"{RDF}RDF":
        for namespace in (RSS_10, RSS_090):
            channel = root.find(f"{namespace}channel")
            if channel is not None:
                return _rss(root, namespace, channel)
    raise BadDocument(f"not a feed: its root element is <{root.tag}>")


def _rss(root: Element, namespace: str, channel: Element | None) -> Feed:
    if channel is None:
        raise BadDocument("not a feed: it has no channel")
    # RSS 2.0 puts items into the channel, RSS 0.9 and 1.0 beside it.
    items = (item for parent in (channel, root) for item in parent.iterfind(f"{namespace}item"))
    return Feed(_text(channel, f"{namespace}title"), _limited(_rss_item(item, namespace) for item in items))


def _rss_item(item: Element, namespace: str) -> Entry | None:
    title, link = _text(item, f"{namespace}title"), _text(item, f"{namespace}link")
    guid = _text(item, f"{namespace}guid") or item.get(f"{RDF}about", "")
    published = _text(item, f"{namespace}pubDate") or _text(item, "{http://purl.org/dc/elements/1.1/}date")
    return _entry(guid, title, link, published, _text(item, f"{namespace}description"))


def _atom_entry(entry: Element) -> Entry | None:
    links = {link.get("rel", "alternate"): link.get("href", "") for link in entry.iterfind(f"{ATOM}link")}
    link = links.get("alternate") or next(iter(links.values()), "")
    published = _text(entry, f"{ATOM}published") or _text(entry, f"{ATOM}updated")
    return _entry(_text(entry, f"{ATOM}id"), _text(entry, f"{ATOM}title"), link, published, "")


def _entry(guid: str, title: str, link: str, published: str, text: str) -> Entry | None:
    identity = guid or link
    if not identity and (title or text):
        identity = "digest:" + hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()
    if not identity:
        return None
    return Entry(*(part[:TEXT_CHARACTERS_MAX] for part in (identity, title, link, published)))


def _limited(entries: Iterator[Entry | None]) -> list[Entry]:
    found = (entry for entry in entries if entry is not None)
    return [entry for entry, _ in zip(found, range(ENTRIES_MAX), strict=False)]


def _text(parent: Element, tag: str) -> str:
    element = parent.find(tag)
    return "" if element is None else " ".join("".join(element.itertext()).split())
