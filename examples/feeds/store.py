"""The poller's own memory: a row a feed, and the entries seen.

timerd decides *when* a feed is polled, this store decides *whether*: a delivery may come twice (a crash, a lost answer)
or in two processes at once, and a claim lets exactly one of them poll.

    1. A feed is found by its key only. `next_poll_at` is there for a claim to compare, and nothing ever searches by it:
       it has no index, on purpose.
    2. `claim` succeeds for a feed that is due and whose last claim was committed or has run out.
    3. `commit` writes only under the claim that it was made for. Who overslept a lease writes nothing.
    4. An entry is new once: (feed, guid) is unique.

Times are Unix milliseconds, handed in: the store reads no clock. Calls are made one at a time, from any thread.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .feed import Entry

# 5 s is a long time for a write of some milliseconds; two processes share a store without seeing each other.
BUSY_TIMEOUT_S = 5.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS feeds (
    id TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    title TEXT NOT NULL,
    interval_ms INTEGER NOT NULL,
    next_poll_at INTEGER NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0,
    last_error TEXT,
    etag TEXT,
    last_modified TEXT,
    claimed_by TEXT,
    lease_until INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    feed_id TEXT NOT NULL REFERENCES feeds (id) ON DELETE CASCADE,
    guid TEXT NOT NULL,
    title TEXT NOT NULL,
    link TEXT NOT NULL,
    published TEXT NOT NULL,
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (feed_id, guid)
) WITHOUT ROWID;
"""

CLAIM = """
UPDATE feeds SET claimed_by = :claim, lease_until = :lease_until
WHERE id = :id AND next_poll_at <= :now AND (claimed_by IS NULL OR lease_until <= :now)
RETURNING id, url, interval_ms, failures, etag, last_modified
"""

COMMIT = """
UPDATE feeds
SET next_poll_at = :next_poll_at, failures = :failures, last_error = :error,
    etag = :etag, last_modified = :last_modified, title = coalesce(nullif(:title, ''), title),
    claimed_by = NULL, lease_until = NULL
WHERE id = :id AND claimed_by = :claim
"""

ADD_FEED = """
INSERT INTO feeds (id, url, title, interval_ms, next_poll_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET interval_ms = excluded.interval_ms
"""
ADD_ENTRY = "INSERT OR IGNORE INTO entries (feed_id, guid, title, link, published, seen_at) VALUES (?, ?, ?, ?, ?, ?)"


class NewFeed(NamedTuple):
    id: str
    url: str
    title: str
    interval_ms: int
    next_poll_at: int


class Claimed(NamedTuple):
    """A feed that is ours to poll until the lease ends."""

    id: str
    url: str
    interval_ms: int
    failures: int
    etag: str | None
    last_modified: str | None


class Polled(NamedTuple):
    """What a poll found, ready to be committed."""

    id: str
    next_poll_at: int
    failures: int
    error: str | None
    etag: str | None
    last_modified: str | None
    title: str
    entries: Sequence[Entry]


class State(NamedTuple):
    """When a feed that could not be claimed is worth another look."""

    next_poll_at: int
    lease_until: int | None
    """None: nobody holds it."""


class Committed(NamedTuple):
    ids: set[str]
    new_entries: int


class Store:
    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        # A power cut may take the last commits with it, and those feeds are then polled once more than needed. That is
        # a fair price for no disk flush a batch; the promise to poll at all is timerd's, and it is kept there.
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.executescript(SCHEMA)

    def close(self) -> None:
        self._db.close()

    def add(self, feeds: Iterable[NewFeed]) -> None:
        """Add the feeds that are not there yet. The others keep their cursor and their due time, and take the interval:
        it counts from their next poll on."""
        with self._transaction():
            self._db.executemany(ADD_FEED, feeds)

    def claim(self, ids: Iterable[str], claim: str, now: int, lease_ms: int) -> list[Claimed]:
        """Claim what is due and free. `claim` is a token never used before: it names this claim, not the worker."""
        terms = {"claim": claim, "now": now, "lease_until": now + lease_ms}
        with self._transaction():
            rows = (self._db.execute(CLAIM, {"id": id, **terms}).fetchone() for id in ids)
            return [Claimed(*row) for row in rows if row is not None]

    def commit(self, polled: Iterable[Polled], claim: str, now: int) -> Committed:
        """Store what was found and give the claim back; feeds whose claim is not ours any more are left alone."""
        ids: set[str] = set()
        new_entries = 0
        with self._transaction():
            for feed in polled:
                fields = {**feed._asdict(), "claim": claim}
                del fields["entries"]
                if self._db.execute(COMMIT, fields).rowcount == 0:
                    continue
                ids.add(feed.id)
                for entry in feed.entries:
                    new_entries += self._db.execute(ADD_ENTRY, (feed.id, *entry, now)).rowcount
        return Committed(ids, new_entries)

    def states(self, ids: Iterable[str]) -> dict[str, State]:
        """Look feeds up by key; the ones that don't exist are missing from the answer."""
        found: dict[str, State] = {}
        for id in ids:
            row = self._db.execute("SELECT next_poll_at, lease_until FROM feeds WHERE id = ?", (id,)).fetchone()
            if row is not None:
                found[id] = State(*row)
        return found

    def remove(self, id: str) -> bool:
        """Forget a feed and its entries. Its timer ends with its next delivery."""
        with self._transaction():
            return self._db.execute("DELETE FROM feeds WHERE id = ?", (id,)).rowcount == 1

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE takes the write lock first. A transaction that reads and then wants to write can be refused
        # half-way when another process wrote in between; one that starts as a writer only ever waits.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
