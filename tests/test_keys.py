"""API keys behind the API: how they are made, what is kept of them, and how they end."""

import re

import pytest

from tests.api.fake_service import NOW_MS, FakeClock
from timerd.engine.message import Refused
from timerd.keys import KEYS_MAX, Keys, digest_of, id_in
from timerd.ports import ApiKey
from timerd_storage.catalog import SqliteCatalog
from timerd_storage.memory_catalog import MemoryCatalog


async def made(keys, name="n", scopes=("arm",), ends_at=None, limit=None):
    done = await keys.create(name, scopes, ends_at, limit, None)
    assert isinstance(done, tuple), done
    return done


async def test_a_key_says_what_it_is_and_which_one():
    keys = Keys([], MemoryCatalog(), FakeClock())
    key, text = await made(keys, "mail", ("arm", "read"), NOW_MS + 1, 5.0)
    assert re.fullmatch(r"td_[a-z2-7]{8}_[A-Za-z0-9_-]{43}", text)
    assert id_in(text.encode()) == key.id
    assert key == ApiKey(key.id, "mail", ("arm", "read"), digest_of(text.encode()), NOW_MS, NOW_MS + 1, 5.0)
    assert keys.known == {key.id: key}


async def test_no_two_are_alike():
    keys = Keys([], MemoryCatalog(), FakeClock())
    texts = {(await made(keys))[1] for _ in range(50)}
    assert len(texts) == len(keys.known) == 50


async def test_an_id_that_is_taken_is_not_given_again():
    drawn = iter([b"aaaaa", b"s" * 32, b"aaaaa", b"bbbbb", b"s" * 32])
    keys = Keys([], MemoryCatalog(), FakeClock(), lambda count: next(drawn))
    first, _ = await made(keys)
    second, _ = await made(keys)
    assert first.id != second.id


async def test_of_a_key_only_its_digest_is_on_disk(tmp_path):
    path = tmp_path / "catalog.sqlite"
    catalog = await SqliteCatalog.open(path)
    key, text = await made(Keys([], catalog, FakeClock()))
    again = Keys(await catalog.keys(), catalog, FakeClock())
    assert again.known == {key.id: key}
    await catalog.close()
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert key.id.encode() in stored
    assert text.encode() not in stored
    assert text.split("_", 2)[2].encode() not in stored


async def test_a_revoked_key_is_gone_from_the_catalogue_too():
    catalog = MemoryCatalog()
    keys = Keys([], catalog, FakeClock())
    key, _ = await made(keys)
    other, _ = await made(keys)
    assert await keys.revoke(key.id, None) == key
    assert keys.known == {other.id: other}
    assert await catalog.keys() == [other]
    refused = await keys.revoke(key.id, None)
    assert isinstance(refused, Refused)
    assert refused.name == "key-not-found"


async def test_what_can_not_be_stored_is_not_done():
    catalog = MemoryCatalog()
    keys = Keys([], catalog, FakeClock())
    key, _ = await made(keys)
    catalog.full = True
    for done in (await keys.create("n", ("arm",), None, None, None), await keys.revoke(key.id, None)):
        assert isinstance(done, Refused)
        assert done.name == "storage-full"
    assert keys.known == {key.id: key}


async def test_a_request_that_comes_too_late_does_nothing():
    keys = Keys([], MemoryCatalog(), FakeClock())
    key, _ = await made(keys)
    for done in (await keys.create("n", ("arm",), None, None, NOW_MS), await keys.revoke(key.id, NOW_MS)):
        assert isinstance(done, Refused)
        assert done.name == "expired"
    assert len(keys.known) == 1


async def test_there_is_an_end_to_them():
    taken = [ApiKey(f"{n}", "n", ("arm",), b"", 0) for n in range(KEYS_MAX)]
    done = await Keys(taken, MemoryCatalog(), FakeClock()).create("n", ("arm",), None, None, None)
    assert isinstance(done, Refused)
    assert done.name == "validation"


@pytest.mark.parametrize("text", [b"", b"td_", b"td_abc", b"\xff" * 40, b"x" * 100_000])
def test_what_is_no_key_has_no_id_of_one(text):
    assert id_in(text) not in {"abcdefgh"}
