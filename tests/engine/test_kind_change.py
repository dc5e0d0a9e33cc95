"""A type that becomes another kind, goes, or comes back while deliveries of it are still open: the bare dispatcher."""

import pytest

from timerd.engine.answer import Accepted, Failed
from timerd.engine.command import PauseType, Post, SendSettle, SendTake, Sort
from timerd.engine.dispatcher import OVERDUE_MS, Dispatcher
from timerd.engine.effect import Ready, Settled, Taken
from timerd.engine.now import Now
from timerd.engine.timer import Timer, TimerType

T0 = 1_796_025_600_000
NOW = Now(T0 * 1000, 1_000)
PROCESSOR = TimerType("t", url="http://t", max_lag_ms=0, max_in_flight=1)
CALLBACK = TimerType("t", kind="callback", max_in_flight=1)
BOTH = pytest.mark.parametrize(("first", "second"), [(PROCESSOR, CALLBACK), (CALLBACK, PROCESSOR)])
GONE = Failed("HTTP 410", gone=True)


def set_type(dispatcher: Dispatcher, type: TimerType | None) -> list[object]:
    dispatcher.set_types({} if type is None else {"t": type})
    return list(dispatcher.commands(NOW))


def ask(dispatcher: Dispatcher) -> list[object]:
    """One more timer is ready in shard 0, and what is done about it."""
    dispatcher.ready(Ready(0, "t", 0, 1, T0, True))
    return list(dispatcher.commands(NOW))


def take(dispatcher: Dispatcher, commands: list[object]) -> list[object]:
    """Obey the one Take among these; nothing else is ready then."""
    (command,) = commands
    assert isinstance(command, SendTake)
    dispatcher.taken(Taken(command.message.batch_no, 0, [Timer(T0, 1, "x", "t", b"")], 0))
    dispatcher.ready(Ready(0, "t", 0, 0, 0))
    return list(dispatcher.commands(NOW))


def send(dispatcher: Dispatcher, commands: list[object]) -> int:
    """Let the delivery begin that these ask for; its batch."""
    (command,) = commands
    if isinstance(command, Sort):
        (timer,) = command.batch.timers
        assert dispatcher.sort(NOW, command.batch.batch_no, [(timer, "host")]) == [timer]
        dispatcher.commands(NOW)
    else:
        assert isinstance(command, Post)
    return command.batch.batch_no


def answer(dispatcher: Dispatcher, batch_no: int, kind: str, outcome: Accepted | Failed) -> list[object]:
    """The target answers and it becomes durable; what comes of it apart from the settlement."""
    if kind == "callback":
        dispatcher.ended(NOW, batch_no, [("x", outcome)], 0.5)
    else:
        dispatcher.answered(NOW, batch_no, outcome, 0.5)
    commands: list[object] = []
    while more := dispatcher.commands(NOW):
        for command in more:
            if isinstance(command, SendSettle):
                dispatcher.settled(Settled(batch_no, 0, part=getattr(command.message, "part", 0)))
            else:
                commands.append(command)
    return commands


@BOTH
def test_a_delivery_outlives_its_type_and_the_other_kind_that_followed(first: TimerType, second: TimerType) -> None:
    dispatcher = Dispatcher()
    set_type(dispatcher, first)
    batch_no = send(dispatcher, take(dispatcher, ask(dispatcher)))
    for type in (None, second, None):
        assert not set_type(dispatcher, type)
    assert dispatcher.open_batches() == 1
    assert not answer(dispatcher, batch_no, first.kind, Accepted())
    assert dispatcher.idle()
    assert not dispatcher._flows


@BOTH
def test_what_the_old_kind_has_open_holds_its_slots(first: TimerType, second: TimerType) -> None:
    dispatcher = Dispatcher()
    set_type(dispatcher, first)
    batch_no = send(dispatcher, take(dispatcher, ask(dispatcher)))
    assert not set_type(dispatcher, second)
    assert not ask(dispatcher)
    assert dispatcher.stats()["t"].open_batches == 1
    then = take(dispatcher, answer(dispatcher, batch_no, first.kind, Accepted()))
    assert not answer(dispatcher, send(dispatcher, then), second.kind, Accepted())
    assert dispatcher.idle()


@BOTH
def test_a_type_that_is_itself_again_has_its_open_batches_too(first: TimerType, second: TimerType) -> None:
    dispatcher = Dispatcher()
    set_type(dispatcher, first)
    batch_no = send(dispatcher, take(dispatcher, ask(dispatcher)))
    set_type(dispatcher, second)
    assert not set_type(dispatcher, first)
    assert not ask(dispatcher)
    then = take(dispatcher, answer(dispatcher, batch_no, first.kind, Accepted()))
    assert not answer(dispatcher, send(dispatcher, then), first.kind, Accepted())
    assert dispatcher.idle()


@BOTH
def test_a_take_that_hangs_is_overdue_whatever_the_type_is_now(first: TimerType, second: TimerType) -> None:
    dispatcher = Dispatcher()
    set_type(dispatcher, first)
    assert ask(dispatcher)
    set_type(dispatcher, second)
    assert dispatcher.overdue(Now(NOW.wall_us, NOW.boot_ms + OVERDUE_MS)) == "t"


@pytest.mark.parametrize("second", [CALLBACK, TimerType("t", url="http://other", max_lag_ms=0, max_in_flight=1)])
@pytest.mark.parametrize("deleted", [False, True])
def test_an_old_target_that_is_gone_pauses_nothing_of_the_new_type(second: TimerType, deleted: bool) -> None:
    dispatcher = Dispatcher()
    set_type(dispatcher, PROCESSOR)
    batch_no = send(dispatcher, take(dispatcher, ask(dispatcher)))
    if deleted:
        set_type(dispatcher, None)
    set_type(dispatcher, second)
    assert not ask(dispatcher)
    commands = answer(dispatcher, batch_no, "processor", GONE)
    assert not [command for command in commands if isinstance(command, PauseType)]
    assert isinstance(commands[0], SendTake)
