"""The harness itself: gates that hold and let through, and a book that knows an allowed repeat from a fault."""

import asyncio
import os
import time
from typing import Any

from tests.crash.book import Version
from tests.failover.book import ClusterBook, Repeat, longest_gap
from tests.failover.gate import Gate, holder_of
from tests.support.cases import stamp
from tests.support.processor import Delivery


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


async def test_what_a_shut_gate_holds_arrives_when_it_opens() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    gate = Gate(server.sockets[0].getsockname()[1])
    await gate.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
    writer.write(b"one")
    assert await reader.readexactly(3) == b"one"
    gate.shut()
    writer.write(b"two")
    late, late_writer = await asyncio.open_connection("127.0.0.1", gate.port)
    late_writer.write(b"new")
    held = asyncio.gather(reader.readexactly(3), late.readexactly(3))
    done, _ = await asyncio.wait([held], timeout=0.2)
    assert not done
    gate.open()
    assert await held == [b"two", b"new"]
    for each in (writer, late_writer):
        each.close()
    await gate.stop()
    server.close()


async def test_a_gate_can_be_shut_for_one_process_alone() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    gate = Gate(server.sockets[0].getsockname()[1], lambda: [os.getpid()])
    await gate.start()
    gate.shut(os.getpid() + 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
    assert holder_of(writer.get_extra_info("sockname")[1], [os.getpid()]) == os.getpid()
    writer.write(b"one")
    assert await reader.readexactly(3) == b"one"
    gate.shut(os.getpid())
    writer.write(b"two")
    held = asyncio.ensure_future(reader.readexactly(3))
    done, _ = await asyncio.wait([held], timeout=0.2)
    assert not done
    gate.open()
    assert await held == b"two"
    writer.close()
    await gate.stop()
    server.close()


def test_the_longest_gap_counts_from_the_ends_too() -> None:
    assert longest_gap([], 10.0, 14.0) == 4.0
    assert longest_gap([9.0, 11.0, 12.0, 20.0], 10.0, 15.0) == 3.0
    assert longest_gap([14.0], 10.0, 15.0) == 4.0


def test_a_repeat_is_excused_only_if_it_was_in_flight_at_the_fault() -> None:
    repeat = Repeat(("a", 1), at=110.0, fire_at=99.0, answered_at=99.9, flagged=True)
    assert repeat.excused(100.0, 0.0)
    assert not repeat._replace(answered_at=98.0).excused(100.0, 0.0), "finished before"
    assert not repeat._replace(fire_at=101.0, answered_at=102.0).excused(100.0, 0.0), "due after"
    assert repeat._replace(fire_at=101.0, answered_at=102.0).excused(100.0, 5.0)


def received(id: str, at: float, **more: Any) -> tuple[Delivery, dict[str, Any]]:
    timer = {"id": id, "generation": 7, "fire_at": stamp(100.0), "attempt": 1, **more}
    return Delivery(at, "POST", "/", {}, {"timers": [timer]}, [id]), timer


def test_the_book_finds_what_is_lost_and_what_comes_again() -> None:
    book = ClusterBook()
    book.shard_of["a"] = 3
    for id in ("a", "b"):
        version = Version.of({"fire_at": 100_000})
        book.ask(id, version)
        book.armed(id, version, 7)
        book.acknowledged_on(id)
    delivery, timer = received("a", 100.5)
    book.receive(delivery, timer, done=True)
    book.answered([("a", 7)])
    assert book.lags == {3: [(100.5, 0.5)]}
    assert list(book.acks) == [3]
    delivery, timer = received("a", 101.5)
    book.receive(delivery, timer, done=True)
    assert not book.wrong
    (repeat,) = book.repeats
    assert (repeat.flagged, repeat.fire_at) == (False, 100.0)
    assert abs(repeat.answered_at - time.time()) < 5
    book.settle({})
    assert book.counts["lost"] == 1
    assert "b: lost" in book.wrong[0]
    assert (book.counts["duplicates"], book.counts["unflagged"], book.counts["flagged"]) == (1, 1, 0)
