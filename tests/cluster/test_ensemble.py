"""Who is there and by which plan: by news on this machine's clock, and on a real server."""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.cluster.fake_server import proxy_before
from tests.cluster.nats_server import NatsServer
from tests.cluster.open_log import Opener, opener_of
from timerd.clock import SystemClock
from timerd.engine.errors import ClusterRefused
from timerd.engine.plan import Plan, Seat, next_plan
from timerd.ports import Member
from timerd_cluster import ensemble as ensembles
from timerd_cluster.bucket import Bucket, Entry
from timerd_cluster.connection import LAST_MAX, ApiError, NoAnswer
from timerd_cluster.ensemble import BUCKET, PLAN, KvEnsemble
from timerd_cluster.kv_catalog import KvCatalog
from timerd_cluster.roster import DEAD_MS, Roster

SHORT_MS = 600
A = Member("a", "http://a:8470", "1")
B = Member("b", "http://b:8470", "2")
NESTED = b'{"later":' + b"[" * 100_000


def test_one_is_there_while_there_are_news_of_it() -> None:
    roster = Roster(0)
    roster.heard(0, "b", B, 2)
    roster.heard(100, "a", A, 1)
    listen(roster, 100, DEAD_MS - 1)
    assert roster.there() == [A, B]
    listen(roster, DEAD_MS - 1, DEAD_MS)
    assert roster.there() == [A]
    roster.heard(DEAD_MS, "a", A, 1)
    listen(roster, DEAD_MS, DEAD_MS + 100)
    assert roster.there() == [], "the same again is no news"
    roster.heard(DEAD_MS + 200, "a", A, 3)
    assert roster.there() == [A]
    assert (roster.seen_ms("a"), roster.seen_ms("c")) == (DEAD_MS + 200, None)


def listen(roster: Roster, from_ms: int, to_ms: int) -> None:
    for now_ms in [*range(from_ms, to_ms, 500), to_ms]:
        roster.listened(now_ms)


def test_nobody_is_given_up_for_a_silence_in_which_nothing_could_be_heard() -> None:
    roster = Roster(0)
    roster.heard(0, "a", A, 1)
    roster.heard(0, "b", B, 1)
    listen(roster, 0, DEAD_MS - 1)
    roster.listened(100 * DEAD_MS)
    assert roster.there() == [A, B]
    roster.heard(100 * DEAD_MS, "a", A, 2)
    listen(roster, 100 * DEAD_MS, 101 * DEAD_MS - 1)
    assert roster.there() == [A, B], "it has the whole time again"
    roster.heard(101 * DEAD_MS - 1, "a", A, 3)
    listen(roster, 101 * DEAD_MS - 1, 101 * DEAD_MS)
    assert roster.there() == [A]
    roster.listened(200 * DEAD_MS)
    assert roster.there() == [A], "nor does it bring anybody back"


def test_one_is_silent_that_is_neither_in_the_bucket_nor_on_its_way_to_it() -> None:
    roster = Roster(0)
    roster.heard(0, "a", A, 1)
    roster.heard(0, "b", B, 1)
    roster.sounded(0, "nobody")
    assert roster.silent(0) == []
    assert roster.silent(1) == [A, B]
    roster.heard(100, "b", B, 1)
    assert roster.silent(1) == [A, B], "no news"
    roster.sounded(100, "a")
    roster.heard(100, "b", B, 2)
    assert roster.silent(100) == []
    assert roster.silent(101) == [A, B]
    listen(roster, 100, DEAD_MS)
    assert roster.there() == [B], "what was only on its way keeps nobody alive"
    assert roster.silent(101) == [B], "who is not there is not silent, but gone"


def test_one_that_leaves_is_gone_at_once_and_one_that_comes_back_is_another() -> None:
    roster = Roster(0)
    roster.heard(0, "a", A, 1)
    roster.heard(1, "a", None, 2)
    assert roster.there() == []
    roster.heard(2, "a", A, 1)
    assert roster.there() == [], "a replica that is behind"
    again = A._replace(life="9")
    roster.heard(3, "a", again, 3)
    roster.heard(4, "a", None, 2)
    assert roster.there() == [again], "that it left was before"


def test_it_is_settled_when_whoever_died_before_can_be_told() -> None:
    roster = Roster(500)
    roster.heard(510, "b", B, 7)
    assert roster.is_settled("b"), "one need not be heard by itself"
    roster.heard(510, "a", A, 7)  # perhaps of last year
    assert not roster.is_settled("b")
    listen(roster, 510, 510 + DEAD_MS)
    assert roster.is_settled("b")
    assert roster.there() == []


def test_it_is_settled_when_all_have_been_heard_alive() -> None:
    roster = Roster(0)
    roster.heard(0, "a", A, 1)
    roster.heard(0, "b", None, 1)
    assert not roster.is_settled("c")
    roster.heard(10, "a", A, 2)
    assert roster.is_settled("c")


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 9), st.integers(0, 1500)), max_size=30))
def test_who_is_there_had_news_within_the_time(heard: list[tuple[Member, int, int]]) -> None:
    roster = Roster(0)
    now, news = 0, dict.fromkeys((A, B), (0, -DEAD_MS))
    for member, revision, pause in heard:
        now += pause
        roster.listened(now)
        roster.heard(now, member.name, member, revision)
        if revision > news[member][0]:
            news[member] = (revision, now)
    assert roster.there() == [each for each in (A, B) if now - news[each][1] < DEAD_MS]


@pytest_asyncio.fixture
async def opener(shared_server: NatsServer) -> AsyncIterator[Opener]:
    opener = opener_of(shared_server)
    yield opener
    await opener.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def join(opener: Opener, me: Member, dead_ms: int = SHORT_MS) -> KvEnsemble:
    connection = await opener.connect()
    await KvCatalog.open(connection, opener.names, 1)
    return await KvEnsemble.join(connection, opener.names, 1, me, SystemClock(), dead_ms)


def now_ms() -> int:
    return SystemClock().now().boot_ms


async def test_members_hear_of_each_other_and_of_one_that_leaves_at_once(opener: Opener) -> None:
    told: list[list[Member]] = []
    first = await join(opener, A)
    first.on_change = lambda: told.append(first.members())
    assert first.members() == [A]
    assert first.is_settled(), "it is alone"
    second = await join(opener, B)
    assert second.members() == [A, B]
    await until(lambda: first.members() == [A, B])
    await until(second.is_settled)
    assert abs((second.seen_at("a") or 0) - SystemClock().now().wall_ms) < 5_000
    began = now_ms()
    await second.leave()
    await second.close()
    await until(lambda: first.members() == [A])
    assert now_ms() - began < SHORT_MS, "nobody waits for who has said so"
    assert told == [[A, B], [A]]
    again = await join(opener, B._replace(life="3"))
    await until(lambda: first.members() == [A, again.me])
    await again.leave()
    await again.close()
    await first.leave()
    await first.close()


async def test_one_that_has_missed_a_beat_is_named_before_it_is_given_up(opener: Opener) -> None:
    """A silent one is a member still: so the order is shown, whatever it takes."""
    first, second = [await join(opener, member, 2_000) for member in (A, B)]
    await until(lambda: first.members() == [A, B] and second.members() == [A, B])
    assert first.silent() == [], "it has just come"
    die(second)
    await until(lambda: first.silent() == [B])
    await until(lambda: first.members() == [A])
    assert first.silent() == [], "who is gone is no silent member"
    await first.leave()
    await first.close()


async def test_one_that_falls_silent_is_given_up_and_comes_back(shared_server: NatsServer) -> None:
    proxy = proxy_before(shared_server)
    await proxy.start()
    near, far = opener_of(shared_server), Opener(proxy.url)
    far.names, far.answer_s = near.names, 0.2
    watching = await join(near, A)
    silent = await join(far, B)
    await until(lambda: watching.members() == [A, B])
    proxy.lose_requests = True
    await until(lambda: watching.members() == [A])
    assert silent.members() == [A, B], "who hears nothing gives nobody up"
    proxy.heal()
    proxy.cut()
    await until(lambda: watching.members() == [A, B] == silent.members())
    assert not silent.displaced
    for each in (watching, silent):
        await each.leave()
        await each.close()
    await near.close()
    await far.close()
    await proxy.stop()


async def test_a_bucket_that_can_be_read_and_takes_nothing_makes_nobody_dead(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[Member]] = []
    both = [await join(opener, A), await join(opener, B)]
    await until(lambda: [each.members() for each in both] == [[A, B]] * 2)
    for each in both:
        each.on_change = lambda each=each: told.append(each.members())  # type: ignore[misc]

    async def refuse(*_: object) -> int | None:
        raise NoAnswer("it has no leader")

    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "put", refuse)
        await asyncio.sleep(3 * SHORT_MS / 1000)
    began = now_ms()
    await until(lambda: now_ms() - began > 2 * SHORT_MS)
    assert told == []
    for each in both:
        await each.leave()
        await each.close()


async def test_what_a_dead_one_has_left_is_given_up_by_who_comes_later(opener: Opener) -> None:
    dead = await join(opener, B)
    die(dead)
    later = await join(opener, A)
    assert later.members() == [A, B], "it may be alive"
    assert not later.is_settled()
    await until(later.is_settled)
    await until(lambda: later.members() == [A])
    await later.leave()
    await later.close()


def die(ensemble: KvEnsemble) -> None:
    for task in (ensemble._beating, ensemble._listening):
        assert task is not None
        task.cancel()


async def test_a_name_is_refused_while_it_is_heard_and_free_when_it_is_silent(opener: Opener) -> None:
    first = await join(opener, A)
    with pytest.raises(ClusterRefused, match="is node a of this cluster; give each its own name with --node"):
        await join(opener, A._replace(life="2"))
    assert not first.displaced
    die(first)
    back = await join(opener, A._replace(life="3"))
    assert back.members() == [back.me]
    await back.leave()
    await back.close()


async def test_of_several_that_take_one_name_at_the_same_moment_one_has_it(opener: Opener) -> None:
    found = await asyncio.gather(*(join(opener, A._replace(life=str(n))) for n in range(4)), return_exceptions=True)
    [one] = [each for each in found if isinstance(each, KvEnsemble)]
    assert all(isinstance(each, ClusterRefused) for each in found if each is not one)
    await one.leave()
    await one.close()


async def test_one_whose_name_was_taken_while_it_stood_still_knows(opener: Opener) -> None:
    first = await join(opener, A)
    bucket = Bucket(await opener.connect(), opener.names, BUCKET)
    await bucket.put("a", msgspec.json.encode(A._replace(life="2")), (await bucket.read("a")).revision)
    told = asyncio.Event()
    first.on_change = told.set
    async with asyncio.timeout(5):
        while not first.displaced:
            await told.wait()
            told.clear()
    await first.leave()
    await first.close()
    assert (await bucket.read("a")).data is not None, "it is the other one's"


async def test_a_plan_is_put_by_one_and_known_to_all_at_once(opener: Opener) -> None:
    one, two = await join(opener, A), await join(opener, B)
    plan = next_plan(None, [A.seat, B.seat], 8)
    assert await one.publish(plan)
    began = now_ms()
    await until(lambda: two.plan() == plan)
    assert now_ms() - began < SHORT_MS
    longer = next_plan(plan, [A.seat], 8)
    other = next_plan(plan, [B.seat], 8)
    assert sorted(await asyncio.gather(one.publish(longer), two.publish(other))) == [False, True]
    await until(lambda: one.plan() == two.plan() != plan)
    for each in (one, two):
        await each.leave()
        await each.close()


async def test_keys_that_were_deleted_are_put_again(opener: Opener) -> None:
    one = await join(opener, A)
    plan = next_plan(None, [A.seat], 8)
    assert await one.publish(plan)
    bucket = Bucket(await opener.connect(), opener.names, BUCKET)
    for key in ("a", PLAN):
        while await bucket.put(key, None, (await bucket.read(key)).revision) is None:
            pass  # a beat came between
    await until(lambda: one.plan() is None)
    assert await one.publish(plan)
    async with asyncio.timeout(5):
        while (await bucket.read("a")).data is None:
            await asyncio.sleep(0.01)
    await until(lambda: one.members() == [A])
    assert not one.displaced
    for _ in range(5):  # made and deleted in turn: never "wrong last sequence" for good
        await one.leave()
        await one.close()
        one = await join(opener, A)
    await one.leave()
    await one.close()


async def test_a_plan_whose_answer_is_lost_is_looked_for(shared_server: NatsServer) -> None:
    proxy = proxy_before(shared_server)
    await proxy.start()
    opener = Opener(proxy.url)
    opener.answer_s = 0.3
    one = await join(opener, A)
    proxy.lose_answers = True
    plan = Plan(1, (A.seat,))
    publishing = asyncio.create_task(one.publish(plan))
    await proxy.held.wait()
    proxy.heal()
    proxy.cut()
    assert await publishing or await one.publish(plan) or one.plan() == plan
    await one.leave()
    await one.close()
    await opener.close()
    await proxy.stop()


async def test_a_change_of_the_catalogue_is_told(opener: Opener) -> None:
    one = await join(opener, A)
    told = asyncio.Event()
    one.on_catalogue_change = told.set
    connection = await opener.connect()
    for nudged in (True, False):
        await until(lambda: one._catalogue_sequence is not None)
        await asyncio.sleep(0)
        told.clear()
        if not nudged:
            one._nudged = lambda subject, data: None  # type: ignore[method-assign]
        await connection.publish(opener.names.bucket_subject("catalog", "type.t"), b"{}", {})
        await asyncio.wait_for(told.wait(), 5)
    await one.leave()
    await one.close()


async def test_what_is_said_of_a_shard_is_heard_by_all_and_what_nobody_says_by_none(opener: Opener) -> None:
    one, two = await join(opener, A), await join(opener, B)
    heard: list[tuple[str, int, Seat]] = []
    one.on_said = lambda word, shard, seat: heard.append((word, shard, seat))
    await two.leave()
    await two.close()
    for word, shard, data in (
        ("warm", "x", b"[]"),
        ("else", "1", b'["a","1"]'),
        ("warm", "1", b"\xff"),
        ("warm", "1", b"{}"),
    ):
        await two._connection.tell(opener.names.said(word, shard), data)
    await two.say("warm", 17)  # also when it has left
    await until(lambda: bool(heard))
    assert heard == [("warm", 17, B.seat)]
    await one.leave()
    await one.close()


async def test_one_that_leaves_is_gone_at_once_whatever_its_name(opener: Opener) -> None:
    first = await join(opener, A)
    second = await join(opener, B._replace(name="b.example=x"))
    await until(lambda: first.members() == [A, second.me])
    began = now_ms()
    await second.leave()
    await second.close()
    await until(lambda: first.members() == [A])
    assert now_ms() - began < SHORT_MS, "nobody waits for who has said so"
    await first.leave()
    await first.close()


async def test_what_can_not_be_read_is_put_again(opener: Opener) -> None:
    one = await join(opener, A)
    assert await one.publish(next_plan(None, [A.seat], 8))
    connection = await opener.connect()
    for key in ("a", "b", "c", "d", PLAN):
        data = {"c": msgspec.json.encode(B), "d": NESTED, PLAN: NESTED}.get(key, b"?")
        await connection.publish(opener.names.bucket_subject(BUCKET, key), data, {})
    await until(lambda: one.plan() is None)
    two = await join(opener, B)  # it finds them all, one with its own name
    assert await one.publish(next_plan(None, [A.seat, B.seat], 8))
    await until(lambda: two.plan() == one.plan())
    await until(lambda: one.members() == two.members() == [A, B])
    for each in (one, two):
        await each.leave()
        await each.close()


async def test_a_strangers_key_is_said_once_for_each_value(opener: Opener) -> None:
    bucket = Bucket(await opener.connect(), opener.names, BUCKET)
    one = await join(opener, A)
    with capture_logs() as logs:
        revision: int | None = 0
        for values in (1, 2):
            revision = await bucket.put("stranger", b"?" * values, revision or 0)
            for _ in range(3):
                await one._look()
            assert [line["key"] for line in logs if line["event"] == "member_not_read"] == ["stranger"] * values
    await one.leave()
    await one.close()


async def test_names_that_are_used_no_more_leave_nothing(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensembles, "FORGET_MS", SHORT_MS)
    one, two = await join(opener, A), await join(opener, B)
    bucket = Bucket(await opener.connect(), opener.names, BUCKET)
    for number in range(50):
        assert await bucket.put(f"gone-{number}", None if number % 2 else b"?", 0) is not None
        assert await bucket.put(f"dead-{number}", msgspec.json.encode(Member(f"dead-{number}", "", "9")), 0) is not None
    async with asyncio.timeout(10):
        while (await bucket.read("dead-49")).revision or (await bucket.read("gone-49")).revision:
            await asyncio.sleep(0.02)
    assert (await bucket.read("a")).data is not None
    await until(lambda: one.members() == two.members() == [A, B])
    for each in (one, two):
        await each.leave()
        await each.close()


async def test_more_names_than_can_be_read_are_no_news_of_anybodys_death(opener: Opener) -> None:
    one = await join(opener, A)
    connection = await opener.connect()
    subjects = [opener.names.bucket_subject(BUCKET, f"x-{number}") for number in range(LAST_MAX)]
    await asyncio.gather(*(connection.publish(subject, b"", {"KV-Operation": "DEL"}, 10) for subject in subjects))
    with pytest.raises(NoAnswer):
        await one._look()
    await asyncio.sleep(SHORT_MS / 1000)
    assert one.members() == [A]
    await one.leave()
    await one.close()


async def test_a_bucket_that_was_deleted_and_made_again_is_gone_by(opener: Opener) -> None:
    one, two = await join(opener, A), await join(opener, B)
    assert await one.publish(next_plan(None, [A.seat, B.seat], 8))
    connection = await opener.connect()
    await connection.api(f"STREAM.DELETE.{opener.names.bucket_stream(BUCKET)}")
    three = await join(opener, Member("c", "", "3"))
    await until(lambda: one.members() == two.members() == three.members() == [A, B, three.me])
    plan = next_plan(three.plan(), [A.seat, B.seat, three.me.seat], 8)
    assert await three.publish(plan)
    await until(lambda: one.plan() == two.plan() == plan)
    for each in (one, two, three):
        await each.leave()
        await each.close()


async def test_a_bucket_that_was_deleted_is_made_again_by_who_is_there(opener: Opener) -> None:
    one, two = await join(opener, A), await join(opener, B)
    await until(lambda: one.members() == two.members() == [A, B])
    connection = await opener.connect()
    bucket = Bucket(connection, opener.names, BUCKET)
    await connection.api(f"STREAM.DELETE.{bucket.stream}")
    async with asyncio.timeout(15):
        while (made := await entries(bucket)) is None or None in {each.data for each in made}:
            await asyncio.sleep(0.01)
    plan = next_plan(one.plan(), [A.seat, B.seat], 8)
    assert await one.publish(plan)
    await until(lambda: one.plan() == two.plan() == plan and one.members() == two.members() == [A, B])
    assert not one.displaced
    assert not two.displaced
    for each in (one, two):
        await each.leave()
        await each.close()


async def entries(bucket: Bucket) -> list[Entry] | None:
    """Of A and B; None: there is no bucket."""
    try:
        return [await bucket.read(name) for name in ("a", "b")]
    except ApiError:
        return None
