"""The turner: turns a virtual clock, stopping wherever something becomes due until that has been delivered.

Real time passes meanwhile, as much as deliveries take, and shows nowhere. Between two stops nothing happens, so sixty
days without a timer are one step. At the end batches leave without waiting for more, so that what is due has been
delivered when the turn returns; on the way they wait for `max_lag`, as ever.

It does not know what time it is for anybody else, nor what a delivery is.
"""

import asyncio
from collections.abc import Awaitable, Callable

from timerd.dispatch import Dispatch
from timerd.report import NodeTally
from timerd.runners import Runners
from timerd.virtual_clock import ClockStopped, VirtualClock


class Turner:
    """Of one node; `tally` is the node's, and `look` lets all its shards look at once for what is due."""

    def __init__(
        self,
        runners: Runners,
        dispatch: Dispatch,
        clock: VirtualClock,
        tally: Callable[[], Awaitable[NodeTally]],
        look: Callable[[], None],
    ) -> None:
        self._runners = runners
        self._dispatch = dispatch
        self._clock = clock
        self._tally = tally
        self._look = look
        self._turning = asyncio.Lock()
        self._quiet: asyncio.Future[int | None] | None = None
        self._stopped = False
        runners.on_quiet(self._on_quiet)
        dispatch.on_drain = self._stop

    async def turn_to(self, wall_ms: int) -> int:
        """Let the clock show `wall_ms`, and deliver everything that is due by then; how many timers were fired.

        Where the clock shows more already it stays. What waits for a retry, a pause or a breaker beyond that time
        still waits. Turns that are asked for at once come one after the other. Raises ClockStopped once the service
        stops.
        """
        async with self._turning:
            self._check()
            before = await self._fired()
            try:
                while (now_ms := self._clock.now().wall_ms) < wall_ms:
                    wakes_in_ms = await self._settled()
                    step_ms = wall_ms - now_ms
                    self._clock.turn_to(now_ms + (step_ms if wakes_in_ms is None else min(step_ms, wakes_in_ms)))
                self._dispatch.hurry(True)
                self._look()  # a shard's wake-up may be some ms behind what it is for, so that wake-ups fall together
                await self._settled()
            finally:
                self._dispatch.hurry(False)
            self._check()
            return await self._fired() - before

    def _stop(self) -> None:
        """End the turns that are under way, where the clock stands. A service that stops looks settled, always."""
        self._stopped = True
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_exception(self._ended())

    def _check(self) -> None:
        if self._stopped:
            raise self._ended()

    def _ended(self) -> ClockStopped:
        return ClockStopped("the service stops; the clock stays where it stood")

    async def _fired(self) -> int:
        return sum(report.fired for report in (await self._tally()).types.values())

    async def _settled(self) -> int | None:
        """Wait until nothing is under way; the ms until time brings something, or None."""
        self._check()
        self._quiet = asyncio.get_running_loop().create_future()
        self._runners.ring()
        try:
            return await self._quiet
        finally:
            self._quiet = None

    def _on_quiet(self, wakes_in_ms: int | None) -> None:
        if self._quiet is not None and not self._quiet.done() and self._dispatch.idle:
            self._quiet.set_result(wakes_in_ms)
