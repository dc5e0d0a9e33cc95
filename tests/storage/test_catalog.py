"""The catalogues: one suite for both, and what is SQLite's own."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from timerd.engine.errors import CatalogFull, UnreadableCatalog
from timerd.engine.ring import build_table, next_table
from timerd.engine.timer import Misfire, RetryPolicy, TimerType
from timerd.ports import ApiKey, Catalog
from timerd.stored import stored_key, stored_table, stored_type
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


BAD_TYPES = {
    "max_lag_ms": -1,
    "batch_size": 0,
    "max_in_flight": 10**9,
    "request_timeout_ms": 0,
    "max_per_second": -1.0,
    "kind": "pigeon",
    "state": "asleep",
    "name": "u",
    "retry": {"min_backoff_ms": -1},
    "retry ": {"max_backoff_ms": 10**40},
    "retry  ": {"multiplier": 0.5},
    "retry   ": {"jitter": 9e300},
    "misfire": {"policy": "coin"},
    "misfire ": {"grace_ms": 10**18},
}
TWO = build_table([0, 1])
BAD_TABLES = [
    {"shards": []},
    {"shards": TWO.shards[:-1]},
    {"shards": (-1, *TWO.shards[1:])},
    {"shards": (2**40, *TWO.shards[1:])},
    {"version": 0},
    {"version": 2, "known": 2, "previous": TWO.shards[:-1]},
    {"version": 2, "known": 1, "previous": TWO.shards},
    {"version": 2, "known": 0, "previous": TWO.shards},
    {"version": 1, "known": 2, "previous": TWO.shards},
    {"known": 1},
    {"least": 2**40},
]
BAD_KEYS = [
    {"id": "../../.."},
    {"id": "bbbbbbbb"},
    {"name": ""},
    {"digest": ""},
    {"created_at": -1},
    {"expires_at": 10**30},
    {"max_per_second": 0},
]


@pytest.mark.parametrize(("field", "value"), BAD_TYPES.items())
def test_a_type_that_no_api_makes_is_refused_by_name(field: str, value: object) -> None:
    data = msgspec.json.encode({"name": "t", field.strip(): value})
    with pytest.raises(UnreadableCatalog, match=f"^type.t: .*{field.strip()}"):
        stored_type("type.t", "t", data)


@pytest.mark.parametrize("change", BAD_TABLES)
def test_a_table_that_nobody_works_out_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UnreadableCatalog, match=r"^ring\.table: "):
        stored_table("ring.table", msgspec.json.encode({**msgspec.structs.asdict(TWO), **change}))


def test_every_table_that_is_worked_out_is_read() -> None:
    table = build_table(range(3))
    for count in (5, 2, 1, 1024, 4):
        assert stored_table("", msgspec.json.encode(table)) == table
        table = msgspec.structs.replace(next_table(table, range(count)), least=count)
    assert stored_table("", msgspec.json.encode(table)) == table


@pytest.mark.parametrize("change", BAD_KEYS)
def test_a_key_that_no_api_makes_is_refused(change: dict[str, object]) -> None:
    data = msgspec.json.encode({**msgspec.to_builtins(KEY), **change})
    with pytest.raises(UnreadableCatalog, match=r"^key\.abcdefgh: "):
        stored_key("key.abcdefgh", "abcdefgh", data)


def test_a_value_nested_without_end_is_refused() -> None:
    with pytest.raises(UnreadableCatalog, match=r"^type\.t: "):
        stored_type("type.t", "t", b'{"name":"t","x":' + b"[" * 100_000)


async def test_a_row_that_was_written_by_hand_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    await (await SqliteCatalog.open(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO types VALUES ('t', ?)", (b'{"name":"t","batch_size":0}',))
        connection.execute("INSERT INTO keys VALUES ('aaaaaaaa', ?)", (msgspec.json.encode(KEY),))
        connection.execute("INSERT INTO ring VALUES (1, ?)", (b'{"version":1,"shards":[]}',))
    catalog = await SqliteCatalog.open(path)
    for read, what in ((catalog.types, "type t"), (catalog.keys, "key aaaaaaaa"), (catalog.ring, "the ring table")):
        with pytest.raises(UnreadableCatalog, match=f"^{what}: "):
            await read()
    await catalog.close()
