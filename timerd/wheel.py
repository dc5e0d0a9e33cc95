"""The wheel: every shard's next wake-up, so that a node has one clock timer however many shards it holds."""

from sortedcontainers import SortedSet

from timerd.engine.now import Now

Wake = tuple[int | None, int | None]
"""(wall ms, boot ms); None = not by this clock."""


class Wheel:
    """Wake-ups on both clocks. Wall entries are compared anew each time, so a stepped clock is simply seen."""

    def __init__(self) -> None:
        self._wakes: dict[int, Wake] = {}
        self._wall: SortedSet = SortedSet()  # (ms, shard)
        self._boot: SortedSet = SortedSet()

    def put(self, shard: int, wake: Wake) -> None:
        """Replace a shard's wake-up."""
        old_wall, old_boot = self._wakes.get(shard, (None, None))
        wall, boot = wake
        if wall != old_wall:
            if old_wall is not None:
                self._wall.discard((old_wall, shard))
            if wall is not None:
                self._wall.add((wall, shard))
        if boot != old_boot:
            if old_boot is not None:
                self._boot.discard((old_boot, shard))
            if boot is not None:
                self._boot.add((boot, shard))
        self._wakes[shard] = wake

    def due(self, now: Now) -> list[int]:
        """The shards whose wake-up has come, ascending. They stay on the wheel until put anew."""
        found = set()
        for entries, at in ((self._wall, now.wall_ms), (self._boot, now.boot_ms)):
            for ms, shard in entries:
                if ms > at:
                    break
                found.add(shard)
        return sorted(found)

    def delay_ms(self, now: Now) -> int | None:
        """How long until the first wake-up; None if there is none."""
        delays = []
        if self._wall:
            delays.append(self._wall[0][0] - now.wall_ms)
        if self._boot:
            delays.append(self._boot[0][0] - now.boot_ms)
        return max(0, min(delays)) if delays else None
