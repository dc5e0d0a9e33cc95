"""The judge of the kill rounds is judged: what may be received after a move, and what may not."""

from typing import Any

from tests.crash.book import Book, Version
from tests.support.cases import stamp
from tests.support.processor import Delivery

DUE = Version.of({"fire_at": 100_000})
LATER = Version.of({"fire_at": 100_500})
LATEST = Version.of({"fire_at": 100_900})


def moved(*versions: Version) -> Book:
    """A timer that was armed as each of these, as generations 1, 2, ..."""
    book = Book()
    for generation, version in enumerate(versions, start=1):
        book.ask("a", version)
        book.armed("a", version, generation)
    return book


def received(book: Book, generation: int, fire_at_ms: int) -> Book:
    timer: dict[str, Any] = {"id": "a", "generation": generation, "fire_at": stamp(fire_at_ms / 1000), "attempt": 1}
    book.receive(Delivery(101.0, "POST", "/", {}, {"timers": [timer]}, ["a"]), timer, done=True)
    return book


def test_what_was_on_its_way_when_it_was_moved_may_arrive_after_the_move() -> None:
    assert not received(moved(DUE, LATER), 1, 100_000).wrong
    assert not received(moved(DUE, DUE), 1, 100_000).wrong, "moved to the time at which it was due anyway"


def test_what_was_stored_without_an_answer_may_arrive_after_the_move_that_was_answered() -> None:
    book = moved(DUE)
    book.ask("a", LATER)  # as generation 2, for all we know
    book.ask("a", LATEST)
    book.armed("a", LATEST, 3)
    assert not received(book, 2, 100_500).wrong
    assert received(book, 1, 100_500).counts["changed"] == 1, "the first was another"
    assert received(book, 4, 100_500).counts["changed"] == 2


def test_the_same_may_be_asked_for_twice_and_be_stored_both_times() -> None:
    book = Book()
    for _ in range(2):
        book.ask("a", DUE)
    book.armed("a", DUE, 2)
    assert not received(book, 1, 100_000).wrong


def test_what_was_never_so_is_a_fault() -> None:
    for book in (
        received(moved(DUE, LATER), 1, 100_500),  # the new time under the old generation
        received(moved(DUE, LATER), 2, 100_000),
        received(moved(DUE, LATER), 3, 100_500),
        received(moved(DUE), 2, 100_000),
        received(moved(DUE), 1, 100_200),
    ):
        assert book.counts["changed"] == 1, book.wrong


def test_after_a_start_nothing_of_before_a_move_arrives() -> None:
    book = moved(DUE, LATER)
    book.settle({"a": {"fire_at": stamp(100.5), "generation": 2}})
    assert received(book, 1, 100_000).counts["changed"] == 1
