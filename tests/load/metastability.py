"""Metastability: at 80 % of what it sustains, something happens and ends; does timerd find back by itself?

Each perturbation has a server of its own, with 200,000 far timers beside the load. *Normal* is what the seconds before
it were like. It is back to normal with the first of five seconds in a row in which lag p99 is within promise 3 (max_lag
+ 250 ms), or within one and a half times the normal one if that is more, and 80 % of the load is acknowledged. *RSS
before* is the median of the seconds before; *after* is the smallest of the last five that were watched.
"""

import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.load.arms import Arms, Mover, Told
from tests.load.curve import HEAD, MB, Curve, Second
from tests.load.perturb import PERTURBATIONS, Perturbation, Rig
from tests.load.server import Server
from tests.load.target import Listener, Target
from tests.load.wire import TYPE, call
from tests.support.slow_disk import SlowDisk

BATCH: Final = 800
SLOTS: Final = 16
MAX_LAG_MS: Final = 250
PROMISED_MS: Final = MAX_LAG_MS + 250
FAR: Final = 200_000
REQUEST: Final = 250
CONNECTIONS: Final = 2_000
MOVES: Final = 1_000
MOVERS: Final = 6_000
STEPS: Final = (5, 10, 15, 20, 30, 40, 50, 60, 75, 90, 110, 130, 160, 200)
SETTLE_S, STEP_S = 3, 5
ANSWERS_MS: Final = 500
WARM_S, NORMAL_S = 12, 10
CALM_S: Final = 5
RSS_MORE: Final = 1.2
DRAIN_S: Final = 120


class Outcome(NamedTuple):
    """What one perturbation came to."""

    name: str
    normal_ms: float
    worst_ms: float
    back_s: float | None
    rss_before: int
    rss_most: int
    rss_after: int
    refused: int
    unsent: int
    lost: int
    wrong: list[str]
    back_s_max: int = 60


@contextlib.asynccontextmanager
async def rigged(seed: int, load: float, delay_s: float, place: str | None) -> AsyncIterator[Rig]:
    """A server, a target, and callers that do nothing yet."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="timerd-load-", dir=place) as made:
        disk = SlowDisk(Path(made))
        server = Server(Path(made), disk.env)
        target = Target()
        target.delay_s = delay_s
        listener = Listener(target)
        await listener.open()
        told, moved = Told(), Told()
        try:
            await server.start()
            retry = {"min_backoff": "1s", "max_backoff": "5s"}
            fields = {"batch_size": BATCH, "max_lag": MAX_LAG_MS / 1000, "max_in_flight": SLOTS, "retry": retry}
            await call(server.port, "PUT", f"/v1/types/{TYPE}", {"url": listener.url, **fields})
            arms = Arms(server.port, CONNECTIONS, REQUEST, told, rng)
            mover = Mover(server.port, FAR, MOVES, MOVERS, moved)
            await mover.lay()
            curve = Curve(server, arms, target, told)
            tasks = [asyncio.create_task(each.run()) for each in (curve, arms, mover)]
            try:
                yield Rig(server, arms, mover, target, listener, disk, curve, load)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                mover.close()
        finally:
            listener.close()
            await server.kill()


async def calibrate(seed: int, place: str | None) -> float:
    """The largest load, in timers a second, under which lag and answers are as they should be."""
    print(f"calibration: arms and fires, more and more until lag p99 is above {PROMISED_MS} ms or answers suffer")
    sustained = 0.0
    async with rigged(seed, 0, 0.01, place) as rig:
        print(HEAD)
        for step in STEPS:
            rate = step * 1000.0
            if not (await _holds(rig, rate) or await _holds(rig, rate)):  # once may be somebody else's doing
                break
            sustained = rate
    print(f"sustained: {sustained:,.0f} timers a second, armed and fired\n")
    return sustained


async def _holds(rig: Rig, rate: float) -> bool:
    rig.arms.rate = rate
    await rig.curve.until(SETTLE_S)
    await rig.curve.until(STEP_S)
    seconds = rig.curve.seconds[-STEP_S:]
    answers = statistics.median([second.answer_p99_ms or 1e9 for second in seconds])
    lag = _lag_ms(seconds)
    taken = sum(second.taken for second in seconds) / STEP_S
    held = lag <= PROMISED_MS and answers <= ANSWERS_MS and taken >= 0.95 * rate and not rig.arms.told.refused
    rig.curve.note(f"{rate:,.0f}/s {'holds' if held else 'does not hold'}: lag p99 {lag:.0f}, answers {answers:.0f} ms")
    return held


def _lag_ms(seconds: Sequence[Second]) -> float:
    return statistics.median([1e9 if second.lag_p99_ms is None else second.lag_p99_ms for second in seconds])


async def perturbed(each: Perturbation, load: float, seconds: float, seed: int, place: str | None) -> Outcome:
    """One perturbation, from the first arm to the last fire."""
    print(f"{each.name}: {each.says}; {load:,.0f} timers a second")
    # Twenty times as slow, the target's slots are enough for half of the load.
    delay_s = SLOTS * BATCH / (load / 2) / 20
    async with rigged(seed, load, delay_s, place) as rig:
        curve, arms = rig.curve, rig.arms
        print(HEAD)
        arms.rate = load
        await curve.until(WARM_S + NORMAL_S)
        normal = curve.seconds[-NORMAL_S:]
        normal_ms = _lag_ms(normal)
        before = round(statistics.median([second.rss_bytes for second in normal]))
        began = len(curve.seconds)
        curve.note(f"-- begins: {each.says}")
        await each.run(rig, seconds)
        ended = len(curve.seconds)
        curve.note("-- has ended")
        limit_ms = max(PROMISED_MS, 1.5 * normal_ms)
        back: int | None = None
        while len(curve.seconds) < ended + each.back_s_max + CALM_S:
            await curve.until(1)
            back = back if back is not None else _calm_from(curve.seconds, ended, limit_ms, load)
            small = min(second.rss_bytes for second in curve.seconds[-CALM_S:]) <= RSS_MORE * before
            if back is not None and small and len(curve.seconds) >= ended + 2 * CALM_S:
                break
        after = min(second.rss_bytes for second in curve.seconds[-CALM_S:])
        watched = curve.seconds[began:]
        lost = await _drain(rig)
        outcome = Outcome(
            each.name,
            normal_ms,
            max((second.lag_p99_ms or 0 for second in watched), default=0),
            None if back is None else back - ended,
            before,
            max(second.rss_bytes for second in watched),
            after,
            arms.told.refused + rig.mover.told.refused,
            arms.told.unsent + rig.mover.told.unsent,
            lost,
            _wrong(rig),
            each.back_s_max,
        )
        answers = {name: dict(told.requests) for name, told in (("arms", arms.told), ("moves", rig.mover.told))}
        print(f"      answers by status (0: connection lost, -1: too late): {answers}")
        again = rig.target.repeated
        print(f"      {arms.told.taken:,} acknowledged, {rig.target.fired:,} received, {again:,} of them again\n")
        return outcome


def _calm_from(seconds: Sequence[Second], ended: int, limit_ms: float, load: float) -> int | None:
    """The first of so many seconds in a row that were normal."""
    calm = 0
    for n, second in enumerate(seconds[ended:]):
        lag = second.lag_p99_ms
        calm = calm + 1 if lag is not None and lag <= limit_ms and second.taken >= 0.8 * load else 0
        if calm == CALM_S:
            return ended + n + 1 - CALM_S
    return None


async def _drain(rig: Rig) -> int:
    """No more arms: what was acknowledged must come. How much did not."""
    await rig.arms.settle(30)
    end = time.monotonic() + DRAIN_S
    lost = 1
    while lost and time.monotonic() < end:
        await asyncio.sleep(1)
        lost = sum(rig.target.missing(first, last) for first, last in rig.arms.acknowledged)
    return lost


def _wrong(rig: Rig) -> list[str]:
    wrong = [f"timerd complains: {line}" for line in rig.server.complaints()[:3]]
    if rig.target.early:
        wrong.append(f"{rig.target.early} batches with early timers")
    for what, told in (("arms", rig.arms.told), ("moves", rig.mover.told)):
        if told.bare_refusals:
            wrong.append(f"{told.bare_refusals} {what} refused without Retry-After")
        if strange := {status: n for status, n in told.requests.items() if status not in (200, 503, 0, -1)}:
            wrong.append(f"{what} answered {strange}")
    if not rig.server.running:
        wrong.append("timerd has ended")
    return wrong


def judge(outcome: Outcome) -> list[str]:
    """What does not hold."""
    wrong = list(outcome.wrong)
    if outcome.back_s is None:
        wrong.append(f"not back to normal within {outcome.back_s_max} s")
    if outcome.rss_after > RSS_MORE * outcome.rss_before:
        wrong.append(f"RSS is {outcome.rss_after / outcome.rss_before - 1:+.0%} after")
    if outcome.lost:
        wrong.append(f"{outcome.lost:,} acknowledged timers did not come")
    return wrong


async def run(only: Sequence[str], seconds: float, load: float | None, seed: int, place: str | None) -> int:
    """All perturbations, or those named; the exit code."""
    if not SlowDisk.possible():
        print("a C compiler is needed: the disk that stalls is a library made here")
        return 1
    sustained = None
    if load is None:
        sustained = await calibrate(seed, place)
        load = 0.8 * sustained
        if not load:
            print("not even the smallest load holds: the machine is too busy, or timerd is broken")
            return 1
    outcomes = [await perturbed(p, load, seconds, seed, place) for p in PERTURBATIONS if not only or p.name in only]
    held = True
    print(f"{load:,.0f} timers a second, armed and fired", end="")
    print("" if sustained is None else f": 80 % of the {sustained:,.0f} that were sustained")
    print(
        "| perturbation | normal lag p99 ms | worst | back after s | RSS MB before | most | after | refused | lost |  |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for each in outcomes:
        wrong = judge(each)
        held &= not wrong
        back = "never" if each.back_s is None else f"{each.back_s:.0f}"
        print(
            f"| {each.name} | {each.normal_ms:,.0f} | {each.worst_ms:,.0f} | {back} | {each.rss_before / MB:.0f} |"
            f" {each.rss_most / MB:.0f} | {each.rss_after / MB:.0f} | {each.refused:,} | {each.lost:,} |"
            f" {'holds' if not wrong else '; '.join(wrong)} |"
        )
    print("everything holds" if held else "NOT everything holds")
    return 0 if held else 1
