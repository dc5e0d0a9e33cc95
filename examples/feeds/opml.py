"""OPML: which feeds a list names.

Lists in the wild are written by hand or by string concatenation: bare `&` in URLs, quotes and HTML inside of
attributes, wrong encodings. So a list is read twice at most: as XML, and, if it isn't well-formed, by looking for the
outlines in its text. A list that *declares entities* is refused rather than salvaged.

    1. Feeds come in the order of the files and of the outlines in them; the first mention of a URL wins.
    2. A feed has an http or https URL; outlines without one are folders or mistakes and are counted, not guessed at.
"""

import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from .document import BYTES_MAX, BadDocument, RefusedDocument, decode, parse

URL_CHARACTERS_MAX = 4096

_OUTLINE = re.compile(r"<outline\b", re.IGNORECASE)
# An attribute ends at a quote that is followed by the next attribute or by the end of the tag: inner quotes don't.
_ATTRIBUTE = r"""\s%s\s*=\s*(["'])(.*?)\1(?=\s+[A-Za-z_:]+\s*=|\s*/?>)"""
_XML_URL = re.compile(_ATTRIBUTE % "xmlUrl", re.IGNORECASE | re.DOTALL)
_TITLE = re.compile(_ATTRIBUTE % "(?:title|text)", re.IGNORECASE | re.DOTALL)
_OPML = re.compile(r"<opml\b", re.IGNORECASE)


class BadList(ValueError):
    """A list that can't be used. The text names the file."""


class Listed(NamedTuple):
    """A feed as a list names it."""

    url: str
    title: str


class Lists(NamedTuple):
    """What was read."""

    feeds: list[Listed]
    files: int
    duplicates: int
    skipped: list[str]
    """Outlines that named something else than a web feed, as text to show."""


def read(path: Path) -> Lists:
    """Read a list, or every *.opml and *.xml in a folder and below. Raises BadList if that gives no feed at all."""
    if not path.exists():
        raise BadList(f"{path}: no such file or folder")
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in (".opml", ".xml") and file.is_file())
        if not files:
            raise BadList(f"{path}: no .opml file in this folder")
    else:
        files = [path]

    feeds: dict[str, Listed] = {}
    skipped: list[str] = []
    duplicates = 0
    for file in files:
        for found in _outlines(file):
            problem = _problem(found.url)
            if problem:
                skipped.append(f"{file.name}: {found.title or found.url!r}: {problem}")
            elif found.url in feeds:
                duplicates += 1
            else:
                feeds[found.url] = found
    if not feeds:
        raise BadList(f"{path}: no outline with a web address in xmlUrl")
    return Lists(list(feeds.values()), len(files), duplicates, skipped)


def _outlines(file: Path) -> list[Listed]:
    try:
        if file.stat().st_size > BYTES_MAX:
            raise BadList(f"{file}: larger than {BYTES_MAX >> 20} MiB")
        data = file.read_bytes()
    except OSError as error:
        raise BadList(f"{file}: {error.strerror}") from error
    if not data.strip():
        raise BadList(f"{file}: empty")
    try:
        return list(_from_xml(data))
    except RefusedDocument as error:
        raise BadList(f"{file}: refused: {error}") from error
    except BadDocument as error:
        text = decode(data)
        if not _OPML.search(text):
            raise BadList(f"{file}: not an OPML file: {error}") from error
        return list(_from_text(text))


def _from_xml(data: bytes) -> Iterator[Listed]:
    root = parse(data)
    if root.tag.lower() != "opml":
        raise BadDocument(f"its root element is <{root.tag}>, not <opml>")
    for element in root.iter():
        if element.tag.lower() != "outline":
            continue
        attributes = {key.lower(): value for key, value in element.attrib.items()}
        # A folder has neither an address nor the type of a feed; a feed without an address is worth a word.
        if "xmlurl" in attributes or attributes.get("type", "").lower() in ("rss", "atom"):
            yield _listed(attributes.get("xmlurl", ""), attributes.get("title") or attributes.get("text", ""))


def _from_text(text: str) -> Iterator[Listed]:
    starts = [match.start() for match in _OUTLINE.finditer(text)]
    for start, end in _spans(starts, len(text)):
        outline = text[start:end]
        address = _XML_URL.search(outline)
        if address:
            title = _TITLE.search(outline)
            yield _listed(html.unescape(address[2]), html.unescape(title[2]) if title else "")


def _spans(starts: list[int], end: int) -> Iterable[tuple[int, int]]:
    return zip(starts, [*starts[1:], end], strict=True)


def _listed(url: str, title: str) -> Listed:
    url = url.strip()
    if url.startswith("feed://"):  # An old way to say "subscribe to this"; the thing behind it is HTTP.
        url = "http://" + url.removeprefix("feed://")
    elif url.startswith("feed:http"):
        url = url.removeprefix("feed:")
    return Listed(url, " ".join(title.split()))


def _problem(url: str) -> str | None:
    """Why this is no address of a web feed; None if it is one."""
    if not url:
        return "no xmlUrl"
    if len(url) > URL_CHARACTERS_MAX:
        return f"an address of {len(url)} characters"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    return None if usable and not re.search(r"[\x00-\x1f\x7f]", url) else f"not a web address: {url[:80]!r}"
