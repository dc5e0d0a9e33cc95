"""The catalogues: one suite for both, and what is SQLite's own."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from timerd.engine.errors import CatalogFull, UnreadableCatalog
from timerd.engine.ring import build_table
from timerd.engine.timer import Misfire, RetryPolicy, TimerType
from timerd.ports import ApiKey, Catalog
from timerd_storage.catalog import SqliteCatalog
from timerd_storage.memory_catalog import MemoryCatalog

FULL = TimerType(
    "poll",
    "https://example.org/poll",
    batch_size=10,
    max_per_second=2.5,
    retry=RetryPolicy(max_attempts=3),
    misfire=Misfire("drop", 5, 2.5),
    signing_secrets=("whsec_a", "whsec_b"),
    headers={"X-A": "b"},
    state="paused",
)


@pytest.fixture(params=["memory", "sqlite"])
async def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Catalog]:
    made = MemoryCatalog() if request.param == "memory" else await SqliteCatalog.open(tmp_path / "catalog.sqlite")
    yield made
    await made.close()


async def test_types_are_kept_by_name(catalog: Catalog) -> None:
    assert await catalog.types() == []
    await catalog.put_type(FULL)
    await catalog.put_type(TimerType("a"))
    await catalog.put_type(TimerType("a", "http://localhost/"))
    assert await catalog.types() == [TimerType("a", "http://localhost/"), FULL]
    await catalog.delete_type("a")
    await catalog.delete_type("a")
    assert await catalog.types() == [FULL]


async def test_the_ring_is_one_value(catalog: Catalog) -> None:
    assert await catalog.ring() is None
    for version in (1, 2):
        table = build_table(range(8), version)
        await catalog.put_ring(table)
        assert await catalog.ring() == table


async def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    catalog = await SqliteCatalog.open(path)
    await catalog.put_type(FULL)
    await catalog.put_ring(build_table([1, 2]))
    await catalog.close()
    catalog = await SqliteCatalog.open(path)
    assert await catalog.types() == [FULL]
    assert await catalog.ring() == build_table([1, 2])
    await catalog.close()


async def test_a_field_that_an_older_row_has_not_gets_its_default(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    await (await SqliteCatalog.open(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO types VALUES ('old', ?)", (msgspec.json.encode({"name": "old", "later": 1}),))
    catalog = await SqliteCatalog.open(path)
    assert await catalog.types() == [TimerType("old")]
    await catalog.close()


async def test_a_later_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    await (await SqliteCatalog.open(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '3' WHERE name = 'schema'")
    with pytest.raises(UnreadableCatalog, match="schema version 3"):
        await SqliteCatalog.open(path)


async def test_a_full_catalogue_says_so_keeps_what_it_has_and_works_again(tmp_path: Path) -> None:
    catalog = await SqliteCatalog.open(tmp_path / "catalog.sqlite")
    await catalog.put_type(FULL)
    [[pages]] = await catalog._connection.execute_fetchall("PRAGMA page_count")
    await catalog._connection.execute(f"PRAGMA max_page_count = {pages}")
    large = TimerType("large", headers={"a": "x" * 50_000})
    with pytest.raises(CatalogFull):
        await catalog.put_type(large)
    assert await catalog.types() == [FULL]
    await catalog._connection.execute(f"PRAGMA max_page_count = {pages + 100}")
    await catalog.put_type(large)
    assert await catalog.types() == [large, FULL]
    await catalog.close()


async def test_the_memory_catalogue_can_be_told_to_be_full() -> None:
    catalog = MemoryCatalog()
    catalog.full = True
    with pytest.raises(CatalogFull):
        await catalog.put_type(FULL)


@pytest.mark.parametrize("content", [b"this is no database, by far" * 100, None])
async def test_what_is_no_catalogue_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "catalog.sqlite"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(UnreadableCatalog, match=r"catalog\.sqlite"):
        await SqliteCatalog.open(path)


KEY = ApiKey("abcdefgh", "mail", ("arm", "read"), bytes(range(32)), 1, 2, 2.5)


async def test_keys_are_kept_by_id(catalog: Catalog) -> None:
    assert await catalog.keys() == []
    other = ApiKey("aaaaaaaa", "mail", ("admin",), b"\xff" * 32, 1)
    await catalog.put_key(KEY)
    await catalog.put_key(other)
    assert await catalog.keys() == [other, KEY]
    await catalog.delete_key(other.id)
    await catalog.delete_key(other.id)
    assert await catalog.keys() == [KEY]


async def test_a_catalogue_from_before_there_were_keys_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    with sqlite3.connect(path) as connection:  # as version 1 made it
        connection.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        connection.execute("CREATE TABLE types (name TEXT PRIMARY KEY, json BLOB NOT NULL) WITHOUT ROWID")
        connection.execute("CREATE TABLE ring (id INTEGER PRIMARY KEY CHECK (id = 1), json BLOB NOT NULL)")
        connection.execute("INSERT INTO meta VALUES ('schema', '1')")
        connection.execute("INSERT INTO types VALUES ('poll', ?)", (msgspec.json.encode(FULL),))
    for _ in range(2):
        catalog = await SqliteCatalog.open(path)
        assert await catalog.types() == [FULL]
        await catalog.put_key(KEY)
        assert await catalog.keys() == [KEY]
        await catalog.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchall() == [("2",)]
