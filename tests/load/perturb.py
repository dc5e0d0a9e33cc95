"""What is done to timerd, and for how long: each begins, lasts, and ends by itself. Nobody helps afterwards."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from tests.load.arms import Arms, Mover
from tests.load.curve import Curve
from tests.load.server import Server
from tests.load.target import Listener, Target
from tests.support.slow_disk import SlowDisk

SLOWER: Final = 20
STALL_S: Final = 2.0
STALL_PAUSE_S: Final = 3.0
SHORT_S: Final = 10.0
BURST: Final = 10
OVERLOAD: Final = 600_000  # arms a second: twice what a core stores of moves


class Rig(NamedTuple):
    """Everything there is to disturb."""

    server: Server
    arms: Arms
    mover: Mover
    target: Target
    listener: Listener
    disk: SlowDisk
    curve: Curve
    load: float


async def slow(rig: Rig, seconds: float) -> None:
    usual, rig.target.delay_s = rig.target.delay_s, rig.target.delay_s * SLOWER
    await rig.curve.until(seconds)
    rig.target.delay_s = usual


async def down(rig: Rig, seconds: float) -> None:
    rig.listener.close()
    await rig.curve.until(seconds)
    await rig.listener.open()


async def unavailable(rig: Rig, seconds: float) -> None:
    rig.target.unavailable = True
    await rig.curve.until(seconds)
    rig.target.unavailable = False


async def stalls(rig: Rig, seconds: float) -> None:
    for _ in range(max(1, round(seconds / (STALL_S + STALL_PAUSE_S)))):
        rig.disk.stall(STALL_S)
        await asyncio.sleep(STALL_S)
        rig.disk.stall(0)
        await asyncio.sleep(STALL_PAUSE_S)


async def burst(rig: Rig, seconds: float) -> None:
    rig.mover.rate = rig.load * (BURST - 1)
    await rig.curve.until(min(seconds, SHORT_S))
    rig.mover.rate = 0


async def stopped(rig: Rig, seconds: float) -> None:
    rig.server.signal(signal.SIGSTOP)
    await rig.curve.until(min(seconds, SHORT_S))
    rig.server.signal(signal.SIGCONT)


async def storm(rig: Rig, seconds: float) -> None:
    """The callers stay as they are when the stall is over: what they do next is what is looked at."""
    rig.arms.storming = True
    rig.disk.stall(3600)
    await rig.curve.until(min(seconds, SHORT_S))
    rig.disk.stall(0)


async def storm_of_slow(rig: Rig, seconds: float) -> None:
    """The same callers, when no call fails but all take too long: the server is stopped, and then has it all to do."""
    rig.arms.storming = True
    rig.server.signal(signal.SIGSTOP)
    await rig.curve.until(min(seconds, SHORT_S))
    rig.server.signal(signal.SIGCONT)


async def overload(rig: Rig, seconds: float) -> None:
    rig.mover.rate = OVERLOAD
    await rig.curve.until(seconds)
    rig.mover.rate = 0


class Perturbation(NamedTuple):
    """One of them."""

    name: str
    says: str
    run: Callable[[Rig, float], Awaitable[None]]
    back_s_max: int = 60


# Nothing fired for 30 s is 24 s of all that a core can do; arms at 80 % leave it a good third of itself to catch up.
IDLE_BACK_S: Final = 100

PERTURBATIONS: Final = (
    Perturbation("slow", f"the target is {SLOWER} times slower", slow),
    Perturbation("down", "the target refuses connections", down, IDLE_BACK_S),
    Perturbation("503", "the target answers 503", unavailable, IDLE_BACK_S),
    Perturbation("stalls", f"every sync takes {STALL_S:.0f} s more for {STALL_S:.0f} s, again and again", stalls),
    Perturbation("burst", f"{BURST} times the arms for {SHORT_S:.0f} s", burst),
    Perturbation("stopped", f"SIGSTOP of timerd for {SHORT_S:.0f} s", stopped),
    Perturbation("storm", f"no sync returns for {SHORT_S:.0f} s; callers give 1 s and ask again at once", storm),
    Perturbation("storm-stop", f"SIGSTOP for {SHORT_S:.0f} s; callers give 1 s and ask again at once", storm_of_slow),
    Perturbation("overload", f"{OVERLOAD:,} arms a second more, for as long as the others take", overload),
)
