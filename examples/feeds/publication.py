"""One simulated feed: what it answers, as a function of its seed, the time and the requests before.

Kinds are dealt from a deck, so that a short list has every kind too and two runs with one seed deal alike. This module
knows no HTTP server; see provider.py.
"""

import enum
import random
from collections.abc import Iterable
from email.utils import formatdate, parsedate_to_datetime
from hashlib import blake2b
from html import escape
from typing import NamedTuple


class Kind(enum.Enum):
    STEADY = "steady"  # a new entry every few seconds, ETag or Last-Modified
    QUIET = "quiet"  # nothing new while we watch: 304 after the first time
    BARE = "bare"  # no validators: the whole feed every time
    FLAKY = "flaky"  # 500 or 503 now and then
    BROKEN = "broken"  # XML that ends in the middle, now and then
    DROPPING = "dropping"  # closes the connection, before or within the answer
    SLOW = "slow"  # mostly answers long after the poller has given up
    GONE = "gone"  # 404


# Two in five polls of the troubled kinds go well, so that their feeds go back and forth between the two intervals.
TROUBLE = {Kind.FLAKY: 0.5, Kind.BROKEN: 0.6, Kind.DROPPING: 0.6, Kind.SLOW: 0.7, Kind.GONE: 1.0}
DECK = (
    [Kind.STEADY] * 8
    + [Kind.QUIET] * 4
    + [Kind.BARE] * 2
    + [Kind.FLAKY, Kind.BROKEN, Kind.DROPPING, Kind.SLOW, Kind.SLOW, Kind.GONE]
)
PERIOD_MS = (6_000, 20_000)
"""A steady feed gains an entry so often: some polls find one and some don't."""
ENTRIES_SHOWN = 10


class Answer(NamedTuple):
    status: int
    """What the status line says, if one is sent at all."""
    headers: dict[str, str]
    body: bytes
    trouble: Kind | None
    """Why a poll that gets this answer must count as failed; None if it must not."""


class Publication:
    def __init__(self, url: str, kind: Kind, seed: int, born_ms: int) -> None:
        self.url = url
        self.kind = kind
        self._random = random.Random(f"{seed} {url}")  # noqa: S311 - a simulation, reproducible by its seed
        self._digest = blake2b(url.encode(), digest_size=6).hexdigest()
        self._born_ms = born_ms
        self._period_ms = self._random.randint(*PERIOD_MS)
        self._entries_before = self._random.randint(1, ENTRIES_SHOWN)
        self._uses_etag = self._random.random() < 0.5
        self._render = self._random.choice((_rss, _rss_latin1, _atom, _rdf))

    def answer(self, now_ms: int, if_none_match: str | None, if_modified_since: str | None) -> Answer:
        """What this request gets."""
        trouble = self.kind if self._random.random() < TROUBLE.get(self.kind, 0) else None
        if trouble is Kind.GONE:
            return Answer(404, {}, b"no such feed", trouble)
        if trouble is Kind.FLAKY:
            return Answer(self._random.choice((500, 503)), {}, b"out of order", trouble)
        version = 0 if self.kind is Kind.QUIET else max(0, now_ms - self._born_ms) // self._period_ms
        changed_s = (self._born_ms + version * self._period_ms) // 1000
        headers: dict[str, str] = {}
        if self.kind is not Kind.BARE:
            etag = f'"{self._digest}-{version}"'
            headers = {"ETag": etag} if self._uses_etag else {"Last-Modified": formatdate(changed_s, usegmt=True)}
            unmodified = if_none_match == etag if self._uses_etag else _not_before(if_modified_since, changed_s)
            if unmodified and trouble is None:
                return Answer(304, headers, b"", None)
        newest = self._entries_before + version
        charset, body = self._render(self.url, self._digest, range(max(1, newest - ENTRIES_SHOWN + 1), newest + 1))
        if trouble is Kind.BROKEN:
            body = body[: len(body) * 2 // 3]
        headers["Content-Type"] = f"application/xml; charset={charset}"
        return Answer(200, headers, body, trouble)


def deal(urls: Iterable[str], seed: int, born_ms: int) -> dict[str, Publication]:
    """Make a publication of each URL."""
    shuffled = random.Random(seed)  # noqa: S311 - a simulation, reproducible by its seed
    deck: list[Kind] = []
    publications: dict[str, Publication] = {}
    for url in urls:
        if not deck:
            deck = shuffled.sample(DECK, len(DECK))
        publications[url] = Publication(url, deck.pop(), seed, born_ms)
    return publications


def _not_before(date: str | None, changed_s: int) -> bool:
    try:
        return date is not None and parsedate_to_datetime(date).timestamp() >= changed_s
    except ValueError:
        return False


def _rss(url: str, digest: str, numbers: range, charset: str = "utf-8") -> tuple[str, bytes]:
    items = "".join(
        f"<item><title>Entry {n} – naïve &amp; bold</title><link>{escape(url)}#{n}</link>"
        f'<guid isPermaLink="false">{digest}-{n}</guid><description>No. {n}</description></item>'
        for n in reversed(numbers)
    )
    text = (
        f'<?xml version="1.0" encoding="{charset}"?><rss version="2.0"><channel>'
        f"<title>{escape(url)}</title><link>{escape(url)}</link><description/>{items}</channel></rss>"
    )
    return charset, text.encode(charset, "xmlcharrefreplace")


def _rss_latin1(url: str, digest: str, numbers: range) -> tuple[str, bytes]:
    return _rss(url, digest, numbers, "iso-8859-1")


def _atom(url: str, digest: str, numbers: range) -> tuple[str, bytes]:
    entries = "".join(
        f'<entry><id>urn:{digest}:{n}</id><title>Entry {n}</title><link href="{escape(url)}#{n}"/></entry>'
        for n in reversed(numbers)
    )
    text = f'<feed xmlns="http://www.w3.org/2005/Atom"><title>{escape(url)}</title>{entries}</feed>'
    return "utf-8", text.encode()


def _rdf(url: str, digest: str, numbers: range) -> tuple[str, bytes]:
    items = "".join(
        f'<item rdf:about="{escape(url)}#{n}"><title>Entry {n}</title><link>{escape(url)}#{n}</link></item>'
        for n in reversed(numbers)
    )
    text = (
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">'
        f'<channel rdf:about="{escape(url)}"><title>{escape(url)}</title></channel>{items}</rdf:RDF>'
    )
    return "utf-8", text.encode()
