"""The catalogue on one machine: types, API keys and the ring table in SQLite, through aiosqlite.

A type or key is a row of JSON: read whole, written whole, and a field that a later version adds has its default in
older rows. Every change is one transaction, synced to disk before its call returns. SQLite does its own file work;
nothing of it goes through `disk.py`.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiosqlite
import msgspec

from timerd.engine.errors import CatalogFull, UnreadableCatalog
from timerd.engine.ring import RingTable
from timerd.engine.timer import TimerType
from timerd.ports import ApiKey, Utilisation
from timerd.stored import stored_key, stored_table, stored_type

SCHEMA_VERSION: Final = 2
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS types (name TEXT PRIMARY KEY, json BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS ring (id INTEGER PRIMARY KEY CHECK (id = 1), json BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS keys (id TEXT PRIMARY KEY, json BLOB NOT NULL) WITHOUT ROWID",
)
# What a catalogue of a version lacks of the next one. An older build refuses what a newer one has written to: it would
# not know of the keys, and let everybody in.
# Needs no version: a build that doesn't know of it may leave it as it is.
_UTILISATION: Final = "CREATE TABLE IF NOT EXISTS utilisation (shard INTEGER PRIMARY KEY, json BLOB NOT NULL)"
_STEPS: Final = {1: (_SCHEMA[3],)}
# What a disk that takes no more says: no space at all, or in the middle of writing the journal or the file.
_FULL_CODES: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})

_utilisation_decoder = msgspec.json.Decoder(Utilisation)


class SqliteCatalog:
    """Implements `timerd.ports.Catalog`. Made by `open`. What reads raises UnreadableCatalog for a value of no form."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, path: Path | str) -> "SqliteCatalog":
        """Open or make the file. Raises CatalogFull, and UnreadableCatalog when it is damaged or of a later version."""
        try:
            connection = await aiosqlite.connect(path, isolation_level=None)
        except sqlite3.Error as error:
            raise UnreadableCatalog(f"{path}: {error}") from None
        catalog = cls(connection)
        try:
            # A rollback journal needs no room that a reader could keep from being given back; changes are rare.
            await connection.execute("PRAGMA journal_mode = DELETE")
            await connection.execute("PRAGMA synchronous = FULL")
            await catalog._prepare()
        except sqlite3.Error as error:
            await connection.close()
            raise UnreadableCatalog(f"{path}: {error}") from None
        except BaseException:
            await connection.close()
            raise
        return catalog

    async def types(self) -> list[TimerType]:
        """All types, by name."""
        rows = await self._connection.execute_fetchall("SELECT name, json FROM types ORDER BY name")
        return [stored_type(f"type {name}", name, data) for name, data in rows]

    async def put_type(self, type: TimerType) -> None:
        """Add or replace a type."""
        await self._write("INSERT OR REPLACE INTO types VALUES (?, ?)", type.name, msgspec.json.encode(type))

    async def delete_type(self, name: str) -> None:
        """Delete a type, if there is one of that name."""
        await self._write("DELETE FROM types WHERE name = ?", name)

    async def keys(self) -> list[ApiKey]:
        """All API keys, by id."""
        rows = await self._connection.execute_fetchall("SELECT id, json FROM keys ORDER BY id")
        return [stored_key(f"key {id}", id, data) for id, data in rows]

    async def put_key(self, key: ApiKey) -> None:
        """Add or replace a key."""
        await self._write("INSERT OR REPLACE INTO keys VALUES (?, ?)", key.id, msgspec.json.encode(key))

    async def delete_key(self, id: str) -> None:
        """Delete a key, if there is one of that id."""
        await self._write("DELETE FROM keys WHERE id = ?", id)

    async def ring(self) -> RingTable | None:
        """The ring table, or None before the first was put."""
        rows = list(await self._connection.execute_fetchall("SELECT json FROM ring"))
        return stored_table("the ring table", rows[0][0]) if rows else None

    async def put_ring(self, table: RingTable) -> None:
        """Replace the ring table."""
        await self._write("INSERT OR REPLACE INTO ring VALUES (1, ?)", msgspec.json.encode(table))

    async def utilisation(self) -> list[Utilisation]:
        """How full the shards were, by shard."""
        try:
            rows = await self._connection.execute_fetchall("SELECT json FROM utilisation ORDER BY shard")
        except sqlite3.OperationalError:  # none was ever written
            return []
        return [_utilisation_decoder.decode(row[0]) for row in rows]

    async def put_utilisation(self, rows: Sequence[Utilisation]) -> None:
        """Add or replace rows."""

        async def write() -> None:
            await self._connection.execute(_UTILISATION)
            await self._connection.execute("BEGIN IMMEDIATE")
            try:
                await self._connection.executemany(
                    "INSERT OR REPLACE INTO utilisation VALUES (?, ?)",
                    [(row.shard, msgspec.json.encode(row)) for row in rows],
                )
                await self._connection.commit()
            except BaseException:
                await self._connection.rollback()
                raise

        await _full_is_full(write)

    async def close(self) -> None:
        """Let go of the file."""
        await self._connection.close()

    async def _prepare(self) -> None:
        tables = list(await self._connection.execute_fetchall("SELECT name FROM sqlite_master WHERE name = 'meta'"))
        if not tables:
            await _full_is_full(partial(self._write_schema, _SCHEMA))
        version = await self._version()
        while version in _STEPS:
            await _full_is_full(partial(self._write_schema, _STEPS[version], version + 1))
            version = await self._version()
        if version != SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"catalogue of schema version {version}; this build reads {SCHEMA_VERSION}")

    async def _version(self) -> int:
        rows = list(await self._connection.execute_fetchall("SELECT value FROM meta WHERE name = 'schema'"))
        return int(rows[0][0]) if rows else 0

    async def _write_schema(self, statements: Sequence[str], version: int = SCHEMA_VERSION) -> None:
        await self._connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            await self._connection.execute(statement)
        await self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('schema', ?)", (str(version),))
        await self._connection.commit()

    async def _write(self, statement: str, *values: Any) -> None:
        async def write() -> None:
            await self._connection.execute(statement, values)

        await _full_is_full(write)


async def _full_is_full(write: Callable[[], Awaitable[None]]) -> None:
    """Raise CatalogFull for a write that SQLite gave up, and undid, for want of space or of a disk that takes it."""
    try:
        await write()
    except sqlite3.OperationalError as error:
        # The low byte is the primary code; what kind of I/O error it was is in the others.
        if error.sqlite_errorcode & 0xFF in _FULL_CODES:
            raise CatalogFull(str(error)) from error
        raise
