"""What has to wait for the next turn brings that turn: nothing else may be there that would."""

from unittest.mock import AsyncMock, Mock

import pytest

from timerd import dispatch
from timerd.dispatch import Dispatch
from timerd.engine.effect import Ready
from timerd.engine.now import Now
from timerd.engine.settings import Settings
from timerd.engine.timer import TimerType

NOW = Now(1_796_025_600_000_000, 60_000)


@pytest.fixture
def runner() -> Mock:
    return Mock(hand_out=Mock(return_value=[]), logs=Mock(unconfirmed=Mock(return_value=[])))


def made(runner: Mock, types: int) -> Dispatch:
    clock = Mock(now=lambda: NOW)
    made = Dispatch(runner, AsyncMock(), clock, Mock(), Settings(), lambda: 0.5, Mock(), Mock())
    names = [f"t{n}" for n in range(types)]
    made.set_types({name: TimerType(name, url="http://t", max_lag_ms=0) for name in names})
    runner.reset_mock()
    made.on_effects(NOW, [Ready(0, name, 0, 5_000, NOW.wall_ms) for name in names])
    return made


def test_a_backlog_rings_for_the_next_turn(runner: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "TURN_TIMERS", 1)
    dispatching = made(runner, 2)
    assert runner.hand_out.call_count == 1, "one batch, and the rest has to wait"
    runner.ring.assert_called()
    runner.reset_mock()
    for _ in range(13):  # 5,000 timers are six whole batches, and each type has slots for more
        dispatching.on_effects(NOW, [])
    assert runner.hand_out.call_count == 11
    runner.reset_mock()
    dispatching.on_effects(NOW, [])
    runner.ring.assert_not_called()


def test_without_one_it_does_not(runner: Mock) -> None:
    made(runner, 1)
    assert runner.hand_out.call_count == 6
    runner.ring.assert_not_called()


async def test_a_turn_without_events_lets_troubles_be_told_and_the_end_does(
    runner: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles = Mock()
    monkeypatch.setattr(dispatch, "Troubles", lambda: troubles)
    dispatching = made(runner, 0)
    troubles.look.reset_mock()
    dispatching.on_effects(NOW, [])
    troubles.look.assert_called_once_with(NOW.boot_ms)
    troubles.end.assert_not_called()
    await dispatching.close()
    troubles.end.assert_called_once_with()
