"""The handler: what it polls, what it leaves alone, and what it answers."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from examples.feeds.feed import Entry
from examples.feeds.opml import Listed
from examples.feeds.poller import Result
from examples.feeds.service import ID_BYTES_MAX, LEASE_S, Service, instant, now_ms, start, timer_id
from examples.feeds.store import Claimed, NewFeed, Polled, Store
from timerd_client import AsyncTimerd, Batch, DueTimer, ItemResult, processor

INTERVAL_MS = 5_000
FAILED_MS_MAX = 12_000


class Web:
    """Stands in for the network: answers as told, and remembers who was polled."""

    def __init__(self) -> None:
        self.polled: list[str] = []
        self.error: str | None = None
        self.takes_s = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    async def poll(self, claimed: Claimed) -> Result:
        self.polled.append(claimed.id)
        await asyncio.sleep(self.takes_s)
        self.meanwhile()
        return Result(200, self.error, '"1"', None, "title", [Entry("guid", "", "", "")])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "feeds.sqlite")
    now = now_ms()
    store.add(NewFeed(id, f"https://{id}.example/", id, INTERVAL_MS, now) for id in ("a", "b", "c"))
    yield store
    store.close()


@pytest.fixture
def web() -> Web:
    return Web()


@pytest.fixture
def service(store: Store, web: Web) -> Service:
    return Service(store, web.poll, timedelta(milliseconds=FAILED_MS_MAX))


def batch(*ids: str) -> Batch:
    now = datetime.now(UTC)
    return Batch("feed-poll", "b", now, [DueTimer(id, 1, now) for id in ids])


async def answered(service: Service, *ids: str) -> dict[str, ItemResult]:
    results = {answer.id: answer for answer in await service.handle(batch(*ids))}
    assert set(results) == set(ids), "every timer is answered for: the ones that are not end"
    return results


def rearmed(answer: ItemResult) -> int:
    assert answer.status == "rearm"
    assert answer.fire_at is not None
    return answer.fire_at


async def test_what_is_due_is_polled_and_comes_again_an_interval_after_the_start(
    service: Service, store: Store, web: Web
) -> None:
    web.takes_s = 0.3
    before = now_ms()
    answers = await answered(service, "a", "b")
    assert sorted(web.polled) == ["a", "b"]
    for id, answer in answers.items():
        assert before + INTERVAL_MS <= rearmed(answer) < before + INTERVAL_MS + 250
        assert store.states([id])[id] == (rearmed(answer), None)
    assert (service.tally.polls, service.tally.new_entries) == (2, 2)


async def test_what_is_not_due_is_left_alone_and_comes_when_it_is(service: Service, web: Web) -> None:
    first = await answered(service, "a")
    second = await answered(service, "a", "b")
    assert web.polled == ["a", "b"]
    assert rearmed(second["a"]) == rearmed(first["a"])


async def test_a_batch_that_comes_twice_at_once_is_polled_once(service: Service, web: Web) -> None:
    web.takes_s = 0.2
    one, two = await asyncio.gather(answered(service, "a", "b", "c"), answered(service, "a", "b", "c"))
    assert sorted(web.polled) == ["a", "b", "c"]
    assert service.tally.skipped == 3
    for answer in (*one.values(), *two.values()):
        assert now_ms() < rearmed(answer) <= now_ms() + LEASE_S * 1000


async def test_an_id_twice_in_a_batch_is_polled_once(service: Service, web: Web) -> None:
    await answered(service, "a", *["a"] * 3)
    assert web.polled == ["a"]


async def test_failures_in_a_row_make_the_interval_longer_up_to_a_bound(
    service: Service, store: Store, web: Web
) -> None:
    web.error = "HTTP 500"
    gaps = []
    for error in ("HTTP 500", "HTTP 500", None):
        web.error = error
        started = now_ms()
        gaps.append(rearmed((await answered(service, "a"))["a"]) - started)
        store._db.execute("UPDATE feeds SET next_poll_at = 0")
    assert [gap // 100 for gap in gaps] == [100, 120, 50]


async def test_a_feed_that_was_removed_is_dropped(service: Service, store: Store, web: Web) -> None:
    store.remove("a")
    assert (await answered(service, "a"))["a"].status == "drop"
    assert web.polled == []


async def test_the_feeds_of_a_poller_that_died_are_polled_when_its_lease_ends(
    service: Service, store: Store, web: Web
) -> None:
    died_at = now_ms() - int(LEASE_S * 1000) + 300
    store._db.execute("UPDATE feeds SET next_poll_at = 0")
    store.claim(["a"], "died", died_at, int(LEASE_S * 1000))
    again = rearmed((await answered(service, "a"))["a"])
    assert web.polled == []
    assert again == died_at + LEASE_S * 1000
    await asyncio.sleep((again - now_ms()) / 1000 + 0.01)
    await answered(service, "a")
    assert web.polled == ["a"]


async def test_who_loses_its_claim_writes_nothing_and_follows_who_has_it(
    service: Service, store: Store, web: Web
) -> None:
    theirs = now_ms() + 9_000

    def overtake() -> None:
        store.claim(["a"], "other", now_ms() + int(LEASE_S * 1000) + 1, 1)
        store.commit([Polled("a", theirs, 0, None, None, None, "", [])], "other", now_ms())

    web.meanwhile = overtake
    assert rearmed((await answered(service, "a"))["a"]) == theirs
    assert service.tally.new_entries == 0


async def test_a_delivery_over_http(service: Service) -> None:
    transport = httpx.ASGITransport(processor(service.handle))
    delivery = {
        "type": "feed-poll",
        "batch_id": "b",
        "dispatched_at": "2026-11-30T08:00:00.000Z",
        "timers": [{"id": "a", "generation": 1, "fire_at": "2026-11-30T08:00:00.000Z", "attempt": 1}],
    }
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        answer = await client.post("/", json=delivery, headers={"webhook-id": "b"})
    assert answer.status_code == 200
    (result,) = answer.json()["results"]
    assert (result["id"], result["status"]) == ("a", "rearm")


async def test_a_start_arms_a_timer_a_feed_spread_over_an_interval(store: Store) -> None:
    sent: list[tuple[str, str, dict[str, object]]] = []
    timers: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content or b"{}")
        sent.append((request.method, request.url.path, body))
        now = {"Timerd-Now": datetime.now(UTC).isoformat(timespec="milliseconds")}
        if request.url.path == "/v1/timers":
            timers.extend(body["timers"])
            results = [{"id": timer["id"], "status": "created", "generation": 1} for timer in body["timers"]]
            return httpx.Response(200, headers=now, json={"now": 0, "armed": len(results), "results": results})
        return httpx.Response(200, headers=now, json={"name": "feed-poll", **body})

    feeds = [Listed(f"https://feed-{n}.example/", "") for n in range(10)]
    interval = timedelta(seconds=20)
    async with AsyncTimerd("http://timerd", transport=httpx.MockTransport(answer)) as client:
        before = now_ms()
        due = await start(client, store, feeds, "http://service/", interval, timedelta(seconds=1))
        again = await start(client, store, feeds, "http://service/", interval, timedelta(seconds=1))
    assert again == due, "a second start moves nothing"
    put = next(body for method, path, body in sent if (method, path) == ("PUT", "/v1/types/feed-poll"))
    assert put["url"] == "http://service/"
    assert [timer["id"] for timer in timers] == 2 * [timer_id(feed.url) for feed in feeds]
    assert {timer["mode"] for timer in timers} == {"keep"}
    times = list(due.values())
    assert {right - left for left, right in pairwise(times)} == {2_000}
    assert before < times[0] < times[-1] < before + 22_000


@pytest.mark.parametrize(
    ("url", "readable"),
    [("https://a.example/rss", True), ("https://a.example/" + "x" * 300, False), ("https://a.example/\u200b", False)],
)
def test_an_id_is_readable_if_it_can_be_and_always_one_that_timerd_takes(url: str, readable: bool) -> None:
    id = timer_id(url)
    assert (url in id) == readable
    assert len(id.encode()) <= ID_BYTES_MAX
    assert id.isprintable()
    assert id == timer_id(url)


def test_an_instant_is_exact() -> None:
    for ms in (0, 1, 1_796_036_756_537, int(time.time() * 1000)):
        assert (instant(ms) - instant(0)) // timedelta(milliseconds=1) == ms
