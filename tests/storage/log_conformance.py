"""What every log must do: one suite, run for each of them.

A module that tests a log subclasses `LogConformance` and gives the two fixtures' makings: `open` a log where there may
be one already, and `restart`, which ends the one there was without a word and opens anew.
"""

import asyncio
from typing import Protocol

import pytest

from tests.storage.laid import armed, fired, plain
from timerd.engine.errors import CorruptLog, LogFailed
from timerd.engine.timer import BodyRef
from timerd.ports import Body, Frame, Log


class Home(Protocol):
    """A place in which a log lives, whose segments hold about 16 KiB."""

    async def open(self) -> Log: ...

    async def restart(self) -> Log: ...


async def replayed(log: Log) -> list[Frame]:
    return [frame async for frame in log.replay()]


async def fill(log: Log, segments: int, shards: int = 1, start: int = 1) -> int:
    """Append until `segments` are behind; returns the next lsn, the same in each shard."""
    lsn = start
    first = log.usage().frame_bytes
    while log.usage().frame_bytes < first + segments * log.usage().segment_bytes:
        await log.append([armed(shard, lsn, 20) for shard in range(shards)])
        lsn += 1
    return lsn


async def scanned(log: Log, number: int) -> list[Body]:
    return [body async for chunk in log.scan_bodies(number) for body in chunk]


class LogConformance:
    async def test_an_empty_log_replays_nothing_and_has_no_oldest_segment(self, home: Home) -> None:
        log = await home.open()
        assert await replayed(log) == []
        assert log.oldest() is None
        assert log.body_segments() == []

    async def test_what_was_appended_is_replayed_in_order(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        frames = [armed(0, 1, 3), fired(7, 1), armed(0, 2), armed(7, 2, 40), fired(0, 3)]
        await log.append(frames[:2])
        await log.append(frames[2:])
        found = sorted(await replayed(await home.restart()), key=lambda frame: frame.shard)
        assert plain(found) == plain(sorted(frames, key=lambda frame: frame.shard))

    async def test_a_log_goes_on_after_each_restart(self, home: Home) -> None:
        log = await home.open()
        frames: list[Frame] = []
        for _ in range(4):
            assert plain(await replayed(log)) == plain(frames)
            more = [armed(0, len(frames) + n, 30) for n in (1, 2, 3)]
            for frame in more:
                await log.append([frame])
            frames += more
            log = await home.restart()
        assert plain(await replayed(log)) == plain(frames)

    async def test_a_shard_may_begin_at_any_lsn(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        await log.append([armed(3, 41), armed(3, 42)])
        assert [frame.lsn for frame in await replayed(await home.restart())] == [41, 42]

    async def test_an_append_with_a_gap_is_a_programming_error(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        await log.append([armed(0, 1), armed(1, 1)])
        with pytest.raises(AssertionError):
            await log.append([armed(0, 3)])

    async def test_append_says_how_many_bytes_the_frames_took(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        small = await log.append([armed(0, 1)])
        assert 0 < small < 200
        assert await log.append([armed(0, 2, 10), armed(0, 3, 10)]) > 5 * small
        assert await log.append([]) == 0

    async def test_records_are_kept_as_they_were_when_appended(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        frame = armed(0, 1)
        before = plain([armed(0, 1)])
        await log.append([frame])
        frame.records[0].timers[0].state = 3  # type: ignore[union-attr]
        assert plain(await replayed(await home.restart())) == before

    async def test_oldest_names_the_last_lsn_of_each_shard_in_it(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        await log.append([armed(9, 1)])
        following = await fill(log, 3, shards=2)
        oldest = log.oldest()
        assert oldest is not None
        assert oldest.last_lsns[9] == 1
        assert 1 <= oldest.last_lsns[0] < following - 1
        again = await home.restart()
        await replayed(again)
        assert again.oldest() == oldest

    async def test_trim_deletes_from_the_oldest_on_what_no_shard_needs(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        await log.append([armed(9, 1)])
        following = await fill(log, 4, shards=2)
        oldest = log.oldest()
        assert oldest is not None
        last = dict(oldest.last_lsns)
        assert await log.trim({0: following, 1: following}) == 0, "shard 9 isn't named, so all of it is needed"
        assert await log.trim({0: last[0], 1: following, 9: 2}) == 0, "the last frame of shard 0 in it is needed"
        assert await log.trim({0: last[0] + 1, 1: last[1] + 1, 9: 2}) == 1
        assert await log.trim({0: following, 1: following, 9: 2}) >= 2
        assert log.oldest() is None, "the segment being written stays, whatever is needed"
        await log.append([armed(0, following)])
        lsns = [frame.lsn for frame in await replayed(await home.restart()) if frame.shard == 0]
        assert lsns == list(range(lsns[0], following + 1))

    async def test_a_log_that_was_trimmed_goes_on(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        following = await fill(log, 3)
        await log.trim({0: following})
        await log.append([armed(0, following)])
        log = await home.restart()
        assert (await replayed(log))[-1].lsn == following
        await log.append([armed(0, following + 1)])
        assert (await replayed(await home.restart()))[-1].lsn == following + 1

    async def test_bodies_can_be_read_as_soon_as_they_are_placed(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        payloads = [b"x" * 600, b"", b"y" * 40_000]
        places = log.place_bodies(0, [(f"id-{n}", payload) for n, payload in enumerate(payloads)])
        assert [place.length for place in places] == [600, 0, 40_000]
        assert await log.read_bodies(places) == payloads
        await log.append([armed(0, 1)])
        assert await log.read_bodies(places[::-1]) == payloads[::-1]

    async def test_bodies_are_durable_with_the_next_append(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        places = log.place_bodies(0, [("a", b"a" * 600), ("b", b"b" * 700)])
        await log.append([armed(0, 1)])
        log = await home.restart()
        await replayed(log)
        await log.check_bodies(places)
        assert await log.read_bodies(places) == [b"a" * 600, b"b" * 700]

    async def test_bodies_placed_without_an_append_are_gone_or_whole_after_a_restart(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        [kept] = log.place_bodies(0, [("a", b"a" * 600)])
        await log.append([armed(0, 1)])
        [lost] = log.place_bodies(0, [("b", b"b" * 600)])
        log = await home.restart()
        await replayed(log)
        [new] = log.place_bodies(0, [("c", b"c" * 600)])
        await log.append([armed(0, 2)])
        assert (await log.read_bodies([kept, new])) == [b"a" * 600, b"c" * 600]
        assert (await log.read_bodies([lost]))[0] in (None, b"b" * 600)

    async def test_an_append_of_nothing_settles_what_was_placed_and_granted(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        assert not log.unsettled()
        assert await log.grant(1000, 0)
        assert log.unsettled()
        assert await log.append([]) == 0
        assert not log.unsettled()
        assert await log.grant(1000, 0)
        assert await log.append([], 400) == 0
        assert log.unsettled(), "some of it waits on"
        assert await log.append([]) == 0
        assert not log.unsettled()
        places = log.place_bodies(0, [("a", b"a" * 600)])
        assert log.unsettled()
        assert await log.append([]) == 0
        assert not log.unsettled()
        log = await home.restart()
        await replayed(log)
        assert await log.read_bodies(places) == [b"a" * 600]

    async def test_bodies_that_no_frame_refers_to_take_no_room_for_good(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        peak = 0
        for n in range(400):
            assert await log.grant(2000, 0)
            log.place_bodies(0, [(f"id-{n}", bytes([n % 251]) * 2000)])
            await log.append([])
            await asyncio.sleep(0)
            for segment in log.body_segments():
                if segment.sealed:
                    await log.drop_bodies(segment.number)
            peak = max(peak, log.usage().body_bytes)
            assert len(log.body_segments()) <= 2
        assert peak <= 4 * log.usage().segment_bytes

    async def test_equal_payloads_have_equal_digests(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        one, two, other = log.place_bodies(0, [("a", b"p" * 600), ("b", b"p" * 600), ("c", b"q" * 600)])
        assert one.digest == two.digest != other.digest
        assert len(one.digest) == 16

    async def test_a_place_that_is_not_there_reads_as_none_and_fails_the_check(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        [place] = log.place_bodies(0, [("a", b"a" * 600)])
        await log.append([armed(0, 1)])
        log = await home.restart()
        await replayed(log)
        missing = BodyRef(99, place.offset, place.length, place.digest)
        beyond = BodyRef(place.segment, place.offset + 10_000_000, place.length, place.digest)
        wrong = BodyRef(place.segment, place.offset, place.length, bytes(16))
        assert await log.read_bodies([missing, beyond, wrong, place]) == [None, None, None, b"a" * 600]
        await log.check_bodies([place])
        for bad in (missing, beyond):
            with pytest.raises(CorruptLog):
                await log.check_bodies([place, bad])

    async def test_body_segments_are_scanned_relocated_and_dropped(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        placed = {}
        for n in range(60):
            [place] = log.place_bodies(0, [(f"id-{n}", bytes([65 + n % 26]) * 1000)])
            placed[f"id-{n}"] = place
            await log.append([armed(0, n + 1)])
        segments = log.body_segments()
        assert len(segments) >= 3
        assert [segment.number for segment in segments] == sorted(segment.number for segment in segments)
        assert all(segment.sealed for segment in segments[:-1])
        first = segments[0].number
        bodies = await scanned(log, first)
        assert [(each.id, each.place) for each in bodies] == [
            (id, place) for id, place in placed.items() if place.segment == first
        ]
        assert all(each.data == bytes([65 + int(each.id[3:]) % 26]) * 1000 for each in bodies)
        moved = log.place_bodies(0, [(each.id, each.data or b"") for each in bodies])
        await log.append([armed(0, 61)])
        before = log.usage().body_bytes
        await log.drop_bodies(first)
        assert log.usage().body_bytes < before
        assert first not in [segment.number for segment in log.body_segments()]
        assert await log.read_bodies([bodies[0].place]) == [None]
        log = await home.restart()
        await replayed(log)
        await log.check_bodies(moved)
        assert await log.read_bodies(moved) == [each.data for each in bodies]
        assert all(segment.sealed for segment in log.body_segments()), "an earlier life's segments take no more"

    async def test_room_is_granted_where_there_is_plenty(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        assert await log.grant(1000, 1000)
        assert not log.low()

    async def test_a_closed_log_takes_nothing(self, home: Home) -> None:
        log = await home.open()
        await replayed(log)
        await log.append([armed(0, 1)])
        await log.close()
        with pytest.raises(LogFailed):
            await log.append([armed(0, 2)])
        assert len(await replayed(await home.restart())) == 1
