"""The checker of pauses: what a target that asked to be left alone is given, and how gently it begins again.

By the contract nothing goes to it before its moment. After that one request at a time, until one has succeeded: whoever
asked for a pause has too much to do. Ten minutes without a sign of overload end that, too. What was decided before the
node heard of the pause may still leave, for a moment.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from tests.sim.ledger import Violation
from tests.sim.limits import SLACK_S

CALM_S: Final = 600.0
ASKED_S_MIN: Final = 1.0  # less than that says that one should come again, and not when


class _Pause(NamedTuple):
    since_s: float
    until_s: float


class Spared:
    """Of all targets. Times are boot time."""

    def __init__(self, lived_s: Callable[[], float]) -> None:
        self._lived_s = lived_s
        self._pauses: dict[str, _Pause] = {}
        self._gentle: dict[str, set[str]] = {}  # lane -> requests begun since its pause was over, none of which is good

    def forget(self, type: str | None = None) -> None:
        """The process, or what it knows of a type's targets, is not what it was."""
        for known in (self._pauses, self._gentle):
            for lane in [lane for lane in known if type is None or lane.partition(" ")[0] == type]:
                del known[lane]  # type: ignore[attr-defined]

    def asked_to_wait(self, lane: str, seconds: float) -> None:
        """A target has asked for a pause."""
        now_s = self._lived_s()
        old = self._pauses.get(lane, _Pause(0.0, 0.0))
        self._pauses[lane] = _Pause(now_s, max(old.until_s, now_s + seconds))
        if seconds >= ASKED_S_MIN:
            self._gentle[lane] = set()

    def posted(self, lane: str, id: str, *, excused: bool) -> None:
        """A delivery starts; `id` is of a member."""
        pause, now_s = self._pauses.get(lane, _Pause(0.0, 0.0)), self._lived_s()
        if pause.since_s + SLACK_S < now_s < pause.until_s - 0.01 and not excused:
            raise Violation(f"sent to {lane} {pause.until_s - now_s:.3f} s before it wanted more")
        if now_s >= max(pause.until_s, pause.since_s) + CALM_S:
            self._gentle.pop(lane, None)
        gentle = self._gentle.get(lane)
        if gentle is None or now_s <= max(pause.until_s - 0.01, pause.since_s + SLACK_S):
            return
        if gentle and not excused:
            raise Violation(f"{len(gentle) + 1} at a time to {lane}, which wanted a pause and took nothing since")
        gentle.add(id)

    def answered(self, lane: str, id: str, *, taken: bool) -> None:
        """The process hears what became of it."""
        if taken:
            self._gentle.pop(lane, None)
        elif lane in self._gentle:
            self._gentle[lane].discard(id)
