"""Claims: exactly one may poll, and only the holder may write."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.feeds.feed import Entry
from examples.feeds.store import NewFeed, Polled, State, Store

NOW = 1_000_000
LEASE = 6_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "feeds.sqlite")
    store.add([NewFeed(id, f"https://{id}.example/", id, 5_000, NOW) for id in ("a", "b")])
    yield store
    store.close()


def polled(id: str, next_poll_at: int, *guids: str) -> Polled:
    return Polled(id, next_poll_at, 0, None, '"e"', None, "", [Entry(guid, "", "", "") for guid in guids])


def claimed(store: Store, *ids: str, claim: str, now: int = NOW) -> list[str]:
    return [feed.id for feed in store.claim(ids, claim, now, LEASE)]


def test_what_is_due_and_free_is_claimed_and_nothing_else(store: Store) -> None:
    assert claimed(store, "a", claim="early", now=NOW - 1) == []
    assert claimed(store, "a", "nobody", claim="1") == ["a"]
    assert claimed(store, "a", "b", claim="2") == ["b"]


def test_an_id_twice_in_a_batch_is_claimed_once(store: Store) -> None:
    assert claimed(store, "a", "a", claim="1") == ["a"]


def test_a_lease_ends(store: Store) -> None:
    assert claimed(store, "a", claim="1") == ["a"]
    assert claimed(store, "a", claim="2", now=NOW + LEASE - 1) == []
    assert claimed(store, "a", claim="2", now=NOW + LEASE) == ["a"]


def test_a_commit_moves_the_due_time_and_gives_the_claim_back(store: Store) -> None:
    store.claim(["a"], "1", NOW, LEASE)
    committed = store.commit([polled("a", NOW + 5_000, "x", "y")], "1", NOW)
    assert (committed.ids, committed.new_entries) == ({"a"}, 2)
    assert store.states(["a", "nobody"]) == {"a": State(NOW + 5_000, None)}
    assert claimed(store, "a", claim="2", now=NOW + 4_999) == []
    (feed,) = store.claim(["a"], "2", NOW + 5_000, LEASE)
    assert feed.etag == '"e"'
    assert store.commit([polled("a", NOW + 10_000, "y", "z")], "2", NOW).new_entries == 1


def test_who_overslept_writes_nothing(store: Store) -> None:
    store.claim(["a"], "slow", NOW, LEASE)
    store.claim(["a"], "next", NOW + LEASE, LEASE)
    late = store.commit([polled("a", NOW + 99_000, "x")], "slow", NOW + LEASE)
    assert (late.ids, late.new_entries) == (set(), 0)
    assert store.commit([polled("a", NOW + 11_000)], "next", NOW + LEASE).ids == {"a"}
    assert store.states(["a"]) == {"a": State(NOW + 11_000, None)}
    assert store.commit([polled("a", NOW + 99_000, "x")], "slow", NOW).ids == set()


def test_who_overslept_but_was_not_replaced_still_commits(store: Store) -> None:
    store.claim(["a"], "slow", NOW, LEASE)
    assert store.commit([polled("a", NOW + 5_000)], "slow", NOW + 2 * LEASE).ids == {"a"}


def test_two_workers_on_one_store_share_the_feeds_out(tmp_path: Path) -> None:
    ids = [f"feed-{n}" for n in range(300)]
    stores = [Store(tmp_path / "feeds.sqlite") for _ in range(2)]
    stores[0].add([NewFeed(id, f"https://{id}.example/", id, 5_000, NOW) for id in ids])
    gate = threading.Barrier(2)
    got: list[list[str]] = [[], []]

    def work(number: int) -> None:
        gate.wait()
        for at in range(0, len(ids), 10):
            got[number] += claimed(stores[number], *ids[at : at + 10], claim=f"{number}-{at}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert sorted(got[0] + got[1]) == sorted(ids)


def test_a_start_leaves_known_feeds_alone_but_for_the_interval(store: Store) -> None:
    store.claim(["a"], "1", NOW, LEASE)
    store.commit([polled("a", NOW + 5_000)], "1", NOW)
    store.add([NewFeed("a", "https://a.example/", "a", 7_000, NOW + 1)])
    assert store.states(["a"])["a"].next_poll_at == NOW + 5_000
    (feed,) = store.claim(["a"], "2", NOW + 5_000, LEASE)
    assert (feed.interval_ms, feed.etag) == (7_000, '"e"')


def test_a_removed_feed_is_gone_with_its_entries(store: Store) -> None:
    store.claim(["a"], "1", NOW, LEASE)
    store.commit([polled("a", NOW + 5_000, "x")], "1", NOW)
    assert store.remove("a")
    assert store.states(["a"]) == {}
    assert not store.remove("a")


def test_a_failed_transaction_leaves_no_half(store: Store) -> None:
    store.claim(["a", "b"], "1", NOW, LEASE)
    broken = polled("b", NOW)._replace(next_poll_at=None)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="NOT NULL"):
        store.commit([polled("a", NOW + 5_000, "x"), broken], "1", NOW)
    assert store.states(["a"]) == {"a": State(NOW, NOW + LEASE)}


def test_no_index_but_the_keys_exists(store: Store) -> None:
    """Nothing may search by due time, and without an index nobody starts to."""
    assert store._db.execute("SELECT name FROM sqlite_schema WHERE type = 'index'").fetchall() == []
