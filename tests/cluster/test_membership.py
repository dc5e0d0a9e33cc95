"""Who is there: by news on this machine's clock, and on a real server."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.nats_server import NatsServer
from tests.cluster.open_log import Opener, boot_ms, opener_of
from tests.cluster.proxy import Proxy
from timerd.ports import Member
from timerd_cluster.membership import Membership
from timerd_cluster.roster import DEAD_MS, Roster

SHORT_MS = 600
A = Member("a", "http://a:8470", "1")
B = Member("b", "http://b:8470", "2")


def test_one_is_there_while_there_are_news_of_it() -> None:
    roster = Roster(0)
    roster.heard(0, "b", B, 2)
    roster.heard(100, "a", A, 1)
    assert roster.there(DEAD_MS - 1) == [A, B]
    assert roster.there(DEAD_MS) == [A]
    roster.heard(DEAD_MS, "a", A, 1)
    assert roster.there(DEAD_MS + 100) == [], "the same again is no news"
    roster.heard(DEAD_MS + 200, "a", A, 3)
    assert roster.there(DEAD_MS + 200) == [A]


def test_one_that_leaves_is_gone_at_once_and_one_that_comes_back_is_another() -> None:
    roster = Roster(0)
    roster.heard(0, "a", A, 1)
    roster.heard(1, "a", None, 2)
    assert roster.there(1) == []
    roster.heard(2, "a", A, 1)
    assert roster.there(2) == [], "a replica that is behind"
    again = A._replace(life="9")
    roster.heard(3, "a", again, 3)
    roster.heard(4, "a", None, 2)
    assert roster.there(4) == [again], "that it left was before"


def test_it_is_settled_when_whoever_died_before_can_be_told() -> None:
    roster = Roster(500)
    roster.heard(510, "a", A, 7)  # perhaps of last year
    assert not roster.is_settled(500 + DEAD_MS - 1)
    assert roster.is_settled(510 + DEAD_MS)
    assert roster.there(510 + DEAD_MS) == []


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 9), st.integers(0, 3000)), max_size=30))
def test_who_is_there_had_news_within_the_time(heard: list[tuple[Member, int, int]]) -> None:
    roster = Roster(0)
    now, news = 0, dict.fromkeys((A, B), (0, -DEAD_MS))
    for member, revision, pause in heard:
        now += pause
        roster.heard(now, member.name, member, revision)
        if revision > news[member][0]:
            news[member] = (revision, now)
    assert roster.there(now) == [each for each in (A, B) if now - news[each][1] < DEAD_MS]


@pytest_asyncio.fixture
async def opener(shared_server: NatsServer) -> AsyncIterator[Opener]:
    opener = opener_of(shared_server)
    yield opener
    await opener.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def test_members_hear_of_each_other_and_of_one_that_leaves(opener: Opener) -> None:
    told: list[list[Member]] = []
    first = await Membership.join(await opener.connect(), opener.names, 1, A, boot_ms, told.append, SHORT_MS)
    assert first.there() == [A]
    second = await Membership.join(await opener.connect(), opener.names, 1, B, boot_ms, lambda _: None, SHORT_MS)
    assert second.there() == [A, B]
    await until(lambda: first.there() == [A, B])
    began = boot_ms()
    await second.leave()
    await until(lambda: told[-1] == [A])
    assert boot_ms() - began < SHORT_MS, "nobody waits for who has said so"
    assert told == [[A], [A, B], [A]]
    await first.leave()


async def test_one_that_falls_silent_is_given_up_and_comes_back(shared_server: NatsServer) -> None:
    proxy = Proxy(shared_server.port)
    await proxy.start()
    near, far = opener_of(shared_server), Opener(proxy.url)
    far.names, far.answer_s = near.names, 0.2
    watching = await Membership.join(await near.connect(), near.names, 1, A, boot_ms, lambda _: None, SHORT_MS)
    silent = await Membership.join(await far.connect(), near.names, 1, B, boot_ms, lambda _: None, SHORT_MS)
    await until(lambda: watching.there() == [A, B])
    proxy.lose_requests = True
    await until(lambda: watching.there() == [A])
    await until(lambda: silent.there() == [])
    proxy.heal()
    proxy.cut()
    await until(lambda: watching.there() == [A, B] == silent.there())
    for each in (watching, silent):
        await each.leave()
    await near.close()
    await far.close()
    await proxy.stop()


async def test_what_a_dead_one_has_left_is_given_up_by_who_comes_later(opener: Opener) -> None:
    dead = await Membership.join(await opener.connect(), opener.names, 1, B, boot_ms, lambda _: None, SHORT_MS)
    assert dead._task is not None
    dead._task.cancel()
    later = await Membership.join(await opener.connect(), opener.names, 1, A, boot_ms, lambda _: None, SHORT_MS)
    assert later.there() == [A, B], "it may be alive"
    assert not later.is_settled()
    await until(later.is_settled)
    await until(lambda: later.there() == [A])
    await later.leave()
