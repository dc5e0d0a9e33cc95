"""The catalogue in a bucket: what every catalogue must do, and what is a bucket's own."""

import asyncio
import hmac
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from tests.cluster.fake_server import proxy_before
from tests.cluster.nats_server import NatsServer
from tests.cluster.open_log import Opener, opener_of
from tests.storage.test_catalog import FULL
from timerd.catalogue import Types
from timerd.engine.errors import ClusterRefused, IncompleteDirectory, UnreadableCatalog
from timerd.engine.ring import build_table
from timerd.engine.timer import TimerType
from timerd.ports import ApiKey
from timerd_cluster.bucket import Bucket
from timerd_cluster.connection import ApiError
from timerd_cluster.kv_catalog import BUCKET, RING, KvCatalog, key_of
from timerd_cluster.servers import NO_STREAM, Servers

KEY = ApiKey("abcdefgh", "ops", ("read", "arm"), b"\x01" * 32, 1, None, 2.5)


@pytest_asyncio.fixture
async def opener(shared_server: NatsServer) -> AsyncIterator[Opener]:
    opener = opener_of(shared_server)
    yield opener
    await opener.close()


async def test_types_and_keys_are_kept_by_name(opener: Opener) -> None:
    catalog = await KvCatalog.open(await opener.connect(), opener.names, 1)
    assert (await catalog.types(), await catalog.keys()) == ([], [])
    await catalog.put_type(FULL)
    await catalog.put_type(TimerType("a"))
    await catalog.put_type(TimerType("a", "http://localhost/"))
    await catalog.put_key(KEY)
    assert await catalog.types() == [TimerType("a", "http://localhost/"), FULL]
    assert await catalog.keys() == [KEY]
    await catalog.delete_type("a")
    await catalog.delete_type("a")
    await catalog.delete_key(KEY.id)
    assert (await catalog.types(), await catalog.keys()) == ([FULL], [])
    again = await KvCatalog.open(await opener.connect(), opener.names, 1)
    assert (await again.types(), await again.keys()) == ([FULL], [])


async def test_the_ring_is_one_value(opener: Opener) -> None:
    catalog = await KvCatalog.open(await opener.connect(), opener.names, 1)
    assert await catalog.ring() is None
    for version in (1, 2):
        table = build_table(range(8), version)
        await catalog.put_ring(table)
        assert await catalog.ring() == table


async def test_the_first_ring_is_one_nodes_and_the_others_read_it(opener: Opener) -> None:
    catalogs = [await KvCatalog.open(await opener.connect(), opener.names, 1) for _ in range(3)]
    tables = [build_table(range(count)) for count in (4, 5, 6)]
    stood = await asyncio.gather(*(each.begin_ring(table) for each, table in zip(catalogs, tables, strict=True)))
    assert stood[0] in tables
    assert stood == [stood[0]] * 3
    bucket = Bucket(await opener.connect(), opener.names, BUCKET)
    await bucket.put("ring.table", None, (await bucket.read("ring.table")).revision)
    assert await catalogs[0].begin_ring(tables[1]) == tables[1], "behind a deletion, too"


async def test_what_somebody_else_has_put_beside_the_ring_is_none(opener: Opener) -> None:
    connection = await opener.connect()
    catalog = await KvCatalog.open(connection, opener.names, 1)
    bucket = Bucket(connection, opener.names, BUCKET)
    await bucket.put("ring.aaa", b"scribbled", 0)
    await bucket.put("ring.old", msgspec.json.encode(build_table(range(3))), 0)
    assert await catalog.ring() is None
    table = await catalog.begin_ring(build_table(range(4)))
    assert await (await KvCatalog.open(connection, opener.names, 1)).ring() == table


@pytest.mark.parametrize("kept", ["log", "bodies"])
async def test_a_catalogue_that_logs_have_lost_is_not_begun_again_by_itself(opener: Opener, kept: str) -> None:
    connection = await opener.connect()
    await opener.open((0, 1, 2))  # as a first start that broke off has left them: empty, and nothing rests on them
    catalog = await KvCatalog.open(connection, opener.names, 1)
    await catalog.begin_ring(build_table(range(3)))
    subject = opener.names.log_subject(1) if kept == "log" else opener.names.body_subject(1, 1, 1)
    await connection.publish(subject, b"turn", {})
    assert await (await KvCatalog.open(connection, opener.names, 1)).ring() is not None

    bucket = Bucket(connection, opener.names, BUCKET)
    await bucket.put(RING, None, (await bucket.read(RING)).revision)
    with pytest.raises(IncompleteDirectory, match="there are logs and no catalogue"):
        await KvCatalog.open(connection, opener.names, 1)
    await connection.api(f"STREAM.DELETE.{bucket.stream}")
    with pytest.raises(IncompleteDirectory, match="there are logs and no catalogue"):
        await KvCatalog.open(connection, opener.names, 1)
    with pytest.raises(ApiError) as raised:
        await bucket.read(RING)
    assert raised.value.code == NO_STREAM, "a bucket would be in the way of the one that comes back"

    catalog = await KvCatalog.open(connection, opener.names, 1, anew=True)
    assert await (await Servers.check(connection)).written(opener.names) == 3
    await catalog.begin_ring(build_table(range(3)))
    await KvCatalog.open(connection, opener.names, 1)


async def test_the_first_secret_is_everybodys_and_another_is_refused(opener: Opener) -> None:
    one, two = [await KvCatalog.open(await opener.connect(), opener.names, 1) for _ in range(2)]
    made = await asyncio.gather(one.secret(None, "made-by-one-of-them"), two.secret(None, "made-by-two-of-them"))
    assert made[0] == made[1]
    assert await one.secret(made[0], "x") == made[0], "given, it is the same"
    with pytest.raises(ClusterRefused, match="TIMERD_CLUSTER_SECRET is not the one"):
        await two.secret("another", "x")
    bucket = Bucket(await opener.connect(), opener.names, BUCKET)
    for key in ("secret.digest", "secret.cluster"):  # as it is replaced
        await bucket.put(key, None, (await bucket.read(key)).revision)
    assert await two.secret("another", "x") == "another"
    with pytest.raises(ClusterRefused, match="TIMERD_CLUSTER_SECRET is not set here"):
        await one.secret(None, "x")
    assert (await bucket.read("secret.cluster")).data is None
    digest = (await bucket.read("secret.digest")).data
    assert digest == hmac.digest(b"another", b"timerd: the secret of a cluster's nodes", "sha256").hex().encode()


async def test_names_that_no_bucket_takes_are_told_apart(opener: Opener) -> None:
    catalog = await KvCatalog.open(await opener.connect(), opener.names, 1)
    names = ["a.b", "a b", "a/b", "a*", ">", "ä", "a=2Eb", "A_b-9"]
    for name in names:
        await catalog.put_type(TimerType(name))
    assert [type.name for type in await catalog.types()] == sorted(names)
    assert len({key_of(name) for name in names}) == len(names)


async def test_an_older_or_newer_value_is_read(opener: Opener) -> None:
    connection = await opener.connect()
    catalog = await KvCatalog.open(connection, opener.names, 1)
    value = msgspec.json.encode({"name": "old", "later": 1})
    await connection.publish(opener.names.bucket_subject("catalog", "type.old"), value, {})
    assert await catalog.types() == [TimerType("old")]


async def test_a_change_whose_answer_is_lost_is_made(shared_server: NatsServer) -> None:
    proxy = proxy_before(shared_server)
    await proxy.start()
    opener = Opener(proxy.url)
    opener.answer_s = 0.3
    catalog = await KvCatalog.open(await opener.connect(), opener.names, 1)
    proxy.lose_answers = True
    putting = asyncio.ensure_future(catalog.put_type(FULL))
    await proxy.held.wait()
    assert not putting.done()
    proxy.heal()
    proxy.cut()
    await putting
    assert await catalog.types() == [FULL]
    await opener.close()
    await proxy.stop()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("type.t", b'{"name":1}'),
        ("type.t", b'{"name":"t","retry":{"jitter":9e300}}'),
        ("type.t", b'{"name":"u"}'),
        ("type.=74", b'{"name":"t"}'),
        ("key.k", b"{}"),
        ("key.aaaaaaaa", msgspec.json.encode(KEY)),
        ("ring.table", b"{}"),
        ("ring.table", b'{"version":1,"shards":[]}'),
    ],
)
async def test_a_value_that_can_not_be_read_is_named(opener: Opener, key: str, value: bytes) -> None:
    catalog = await KvCatalog.open(await opener.connect(), opener.names, 1)
    subject = opener.names.bucket_subject(BUCKET, key)
    await (await opener.connect()).publish(subject, value, {})
    for read in (catalog.types, catalog.keys, catalog.ring):
        if read.__name__.removesuffix("s") == key.split(".")[0]:
            with pytest.raises(UnreadableCatalog, match=key.replace(".", r"\.")):
                await read()
    if key == "ring.table":
        with pytest.raises(UnreadableCatalog, match=r"ring\.table"):
            await catalog.begin_ring(build_table(range(2)))
    if key == "type.t":
        with pytest.raises(UnreadableCatalog, match=r"type\.t"):
            await catalog.swap_type("t", None, TimerType("t"))


@pytest.mark.parametrize("key", ["secret.cluster", "secret.digest"])
@pytest.mark.parametrize("value", [b"\xff" * 64, b"", b"two\r\nlines: of a header", "sechzehn Zeichen ä".encode()])
async def test_a_secret_that_no_node_has_made_is_refused_and_not_shown(opener: Opener, key: str, value: bytes) -> None:
    connection = await opener.connect()
    catalog = await KvCatalog.open(connection, opener.names, 1)
    await connection.publish(opener.names.bucket_subject(BUCKET, key), value, {})
    given = "given-to-this-node" if key == "secret.digest" else None
    with pytest.raises(UnreadableCatalog, match=rf"^{key}: (must be 16 or more characters|is no SHA-256 in hex)"):
        await catalog.secret(given, "made-by-this-node")


async def test_a_type_is_put_in_place_of_what_was_read(opener: Opener) -> None:
    one, two = [await KvCatalog.open(await opener.connect(), opener.names, 1) for _ in range(2)]
    first, other = TimerType("t", "http://first/"), TimerType("t", "http://other/")
    assert not await one.swap_type("t", other, first)
    assert await one.swap_type("t", None, first)
    assert not await two.swap_type("t", None, other)
    assert await two.swap_type("t", first, other)
    assert not await one.swap_type("t", first, None)
    assert await one.types() == [other]
    assert await one.swap_type("t", other, None)
    assert await two.types() == []
    assert await two.swap_type("t", None, first), "a key that was deleted is no obstacle"


async def test_changes_of_one_type_at_two_nodes_are_all_made(opener: Opener) -> None:
    async def none() -> int:
        return 0

    nodes = []
    for _ in range(2):
        catalog = await KvCatalog.open(await opener.connect(), opener.names, 1)
        types = Types(catalog, [], lambda known: None)
        types.shared, types.swap = True, catalog.swap_type
        nodes.append(types)
    one, two = nodes
    for number in range(20):
        await one.put(TimerType("t", "http://old/"), True, none)
        url = f"http://{number}/"
        await asyncio.gather(one.put(TimerType("t", url), True, none), two.set_state("t", "paused"))
        await one.refresh()
        assert one.known["t"].url == url
        await asyncio.gather(one.delete("t", none), two.set_state("t", "paused"))
        await one.refresh()
        assert "t" not in one.known
