"""Two writers of one stream: at most one of them is stored, and the other one knows."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from tests.cluster.nats_server import NatsServer
from tests.cluster.open_log import Opener, opener_of
from tests.storage.laid import armed, plain
from timerd.engine.errors import CorruptLog
from timerd.ports import Frame
from timerd_cluster import shard_stream
from timerd_cluster.connection import NoAnswer
from timerd_cluster.stream_log import StreamLog


@pytest_asyncio.fixture
async def opener(shared_server: NatsServer) -> AsyncIterator[Opener]:
    opener = opener_of(shared_server)
    yield opener
    await opener.close()


async def test_the_second_of_two_that_have_read_the_same_end_is_fenced(opener: Opener) -> None:
    first, _ = await opener.replayed()
    second, _ = await opener.replayed()
    assert await first.append([armed(0, 1, 3)]) > 0
    assert await second.append([armed(0, 1, 5)]) == 0
    assert list(second.fenced) == [0]
    assert await second.append([armed(0, 1, 5)]) == 0, "fenced once, fenced for good"
    assert not first.fenced
    await first.append([armed(0, 2)])
    _, frames = await opener.replayed()
    assert plain(frames) == plain([armed(0, 1, 3), armed(0, 2)])


async def test_one_shard_is_fenced_and_the_other_shards_of_the_log_go_on(opener: Opener) -> None:
    both, _ = await opener.replayed((0, 1))
    other, _ = await opener.replayed((1,))
    await other.append([armed(1, 1)])
    assert await both.append([armed(0, 1), armed(1, 1, 2)]) > 0
    assert list(both.fenced) == [1]
    await both.append([armed(0, 2)])
    _, frames = await opener.replayed((0, 1))
    assert plain(frames) == plain([armed(0, 1), armed(0, 2), armed(1, 1)])


async def test_who_has_read_the_end_anew_takes_the_stream_in_the_next_epoch(opener: Opener) -> None:
    old, _ = await opener.replayed()
    await old.append([armed(0, 1)])
    new, frames = await opener.replayed()
    assert plain(frames) == plain([armed(0, 1)])
    await new.append([armed(0, 2)])
    assert await old.append([armed(0, 2, 9)]) == 0
    assert list(old.fenced) == [0]
    assert new._streams[0].epoch == 2


async def moved_between(taker: StreamLog, moves: Callable[[], Awaitable[None]]) -> None:
    """Replay; and between its last look at the turns and its first at the bodies somebody else does this."""
    bodies, moved = taker._bodies[0], False
    learn = bodies.open

    async def late() -> None:
        nonlocal moved
        if not moved:
            moved = True
            await moves()
        await learn()

    bodies.open = late  # type: ignore[method-assign]
    async for _ in taker.replay():
        pass
    assert moved


async def test_bodies_that_their_owner_has_moved_since_its_turns_were_read_are_no_damage(opener: Opener) -> None:
    owner, _ = await opener.replayed()
    places = owner.place_bodies(0, [("a", b"a" * 600)])
    await owner.append([armed(0, 1)])
    taker = await opener.open()

    async def moves() -> None:
        owner._bodies[0]._number = None  # so the next ones lie in another segment
        owner.place_bodies(0, [("a", b"a" * 600)])
        await owner.append([armed(0, 2)])
        await owner.drop_bodies(places[0].segment)

    await moved_between(taker, moves)
    with pytest.raises(NoAnswer, match="the stream of shard 0 has grown"):
        await taker.check_bodies(places)
    await taker.append([armed(0, 2, 9)])
    assert list(taker.fenced) == [0]


async def test_an_index_of_bodies_that_is_behind_is_read_anew(opener: Opener) -> None:
    owner, _ = await opener.replayed()
    places = owner.place_bodies(0, [("a", b"a" * 600)])
    await owner.append([armed(0, 1)])
    taker, _ = await opener.replayed()
    taker._bodies[0]._ends = {}  # by a server that had not heard of it yet
    await taker.check_bodies(places)
    assert await taker.read_bodies(places) == [b"a" * 600]
    taker.place_bodies(0, [("b", b"b" * 600)])
    await taker.append([armed(0, 2)])
    assert len(taker.body_segments()) == 2


async def test_bodies_that_are_gone_although_no_turn_has_come_since_are_damage(opener: Opener) -> None:
    owner, _ = await opener.replayed()
    places = owner.place_bodies(0, [("a", b"a" * 600)])
    await owner.append([armed(0, 1)])
    taker = await opener.open()
    owner._bodies[0]._number = None
    await moved_between(taker, lambda: owner.drop_bodies(places[0].segment))
    with pytest.raises(CorruptLog, match="it is missing"):
        await taker.check_bodies(places)


async def test_writers_that_race_store_each_turn_once_and_know_of_all_that_they_stored(opener: Opener) -> None:
    stored: list[Frame] = []

    async def write(seed: int) -> None:
        for _ in range(6):
            log, frames = await opener.replayed()
            lsn = len(frames) + 1
            for n in range(5):
                frame = armed(0, lsn + n, 1 + seed)
                await log.append([frame])
                if log.fenced:
                    break
                stored.append(frame)

    await asyncio.gather(*(write(seed) for seed in range(4)))
    _, frames = await opener.replayed()
    assert plain(frames) == plain(sorted(stored, key=lambda frame: frame.lsn))
    assert len(stored) >= 6


async def test_a_second_writer_between_two_parts_fences_the_first_whose_parts_are_nobodys_turn(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await opener.replayed()
    await first.append([armed(0, 1)])
    stream = first._streams[0]
    large = armed(0, 2, 3, b"x" * 900_000)
    store = stream._store
    parts = 0

    async def interrupted(head: shard_stream.Head, data: bytes) -> bool:
        nonlocal parts
        parts += 1
        if parts == 2:
            second, frames = await opener.replayed()
            assert [frame.lsn for frame in frames] == [1]
            await second.append([armed(0, 2)])
        return await store(head, data)

    monkeypatch.setattr(stream, "_store", interrupted)
    assert await first.append([large]) == 0
    assert list(first.fenced) == [0]
    third, frames = await opener.replayed()
    assert plain(frames) == plain([armed(0, 1), armed(0, 2)])
    await third.append([armed(0, 3)])
    _, frames = await opener.replayed()
    assert [frame.lsn for frame in frames] == [1, 2, 3]


async def test_two_that_try_for_the_same_epoch_and_turn_are_told_apart(opener: Opener) -> None:
    """The one whose answer is lost finds the other's message where its own was to be."""
    first, _ = await opener.replayed()
    second, _ = await opener.replayed()
    await second.append([armed(0, 1)])
    assert first._streams[0].epoch == second._streams[0].epoch
    ours = shard_stream.Head(1, 1, first._streams[0]._writer, 1, 1, 1)
    assert await first._streams[0]._look(1, ours) is shard_stream.Finding.OTHERS
    assert await second._streams[0]._look(1, ours._replace(writer=second._streams[0]._writer)) is (
        shard_stream.Finding.OURS
    )


async def test_a_turn_in_parts_is_read_whole(opener: Opener) -> None:
    log, _ = await opener.replayed()
    frames = [armed(0, 1), armed(0, 2, 5, b"y" * 800_000), armed(0, 3)]
    for frame in frames:
        await log.append([frame])
    assert log._streams[0].sequence == 2 + 4
    again, found = await opener.replayed()
    assert plain(found) == plain(frames)
    await again.append([armed(0, 4)])


async def test_a_purge_by_a_writer_that_was_fenced_takes_nothing_that_is_needed(opener: Opener) -> None:
    """It purges no further than its own durable slices went, and whoever came after it read those."""
    old: StreamLog
    old, _ = await opener.replayed()
    for lsn in range(1, 80):
        await old.append([armed(0, lsn, 20)])
    new, frames = await opener.replayed()
    await new.append([armed(0, 80)])
    oldest = old.oldest()
    assert oldest is not None
    assert await old.trim({0: oldest.last_lsns[0] + 1}) == 1
    again, found = await opener.replayed()
    assert [frame.lsn for frame in found] == list(range(oldest.last_lsns[0] + 1, 81))
    assert len(frames) == 79
    await again.append([armed(0, 81)])
