"""A14: the arithmetic of backoff overflows and retrying ends.

`base * factor ** attempt` was worked out before the cap was laid on it: after some 47 or 1,024 attempts the retry code
itself raised, and the item was given up (twisted/twisted #9476, hynek/stamina PR #137, codingjoe/threadmill #47).
"""

import itertools
import statistics
import time
from pathlib import Path

import pytest

from tests.support.cases import each, seeded, sized
from tests.support.process import Process
from tests.support.processor import Answer, Delivery, Processor

ATTEMPTS = 1_100
"""More than the 1,024 at which a power of two is no float any more."""
RESTARTED_AT = 600
MIN_MS, MAX_MS = sized((10, 50), (1, 5))
OUTAGE_S = sized(90.0, 0.0)
MAX_ATTEMPTS = 3_000
JITTER = 0.2
ROUND_TRIP_S = 0.05  # room for the attempt itself on a busy machine
SETTLED = 20  # attempts after which the gap is at its cap

CALLBACK = "a callback to a host that fails, no limit"
OUTAGES = {
    CALLBACK: (502, 0),
    "503, no limit": (503, 0),
    "500, a limit of 3,000": (500, MAX_ATTEMPTS),
}


def attempt_of(delivery: Delivery) -> int:
    """Of the one timer in it, whichever way it says so."""
    return int(delivery.headers.get("Timerd-Attempt") or delivery.body["timers"][0]["attempt"])


@pytest.mark.slow
async def test_retrying_goes_on_at_the_cap_to_the_end_of_an_outage(tmp_path: Path) -> None:
    seeded()

    async def run(name: str) -> None:
        status, limit = OUTAGES[name]
        begin = time.monotonic()
        well = False

        def answer(delivery: Delivery) -> Answer:
            nonlocal well
            attempt = attempt_of(delivery)
            well = well or (attempt > ATTEMPTS and time.monotonic() - begin > OUTAGE_S)
            return Answer(200 if well else status)

        options = ("--callback-allow", "127.0.0.0/8")
        async with Processor(answer) as processor, Process(tmp_path / str(status), *options) as timerd:
            retry = {
                "min_backoff": f"{MIN_MS}ms", "max_backoff": f"{MAX_MS}ms", "multiplier": 2, "jitter": JITTER,
                "max_attempts": limit,
            }  # fmt: skip
            if name == CALLBACK:
                await timerd.put_type("t", kind="callback", retry=retry)
                await timerd.arm([{"id": "x", "type": "t", "delay": 0, "request": {"url": processor.url}}])
            else:
                await timerd.put_type("t", url=processor.url, retry=retry)
                await timerd.arm([{"id": "x", "type": "t", "delay": 0}])
            await processor.until(lambda: len(processor.deliveries) >= RESTARTED_AT, timeout_s=OUTAGE_S + 60)
            timerd.kill()
            await timerd.wait()
            restarted = len(processor.deliveries)
            await timerd.start()
            shown = await timerd.get("x")
            assert shown is not None
            assert shown["attempt"] >= restarted - 1
            await processor.until(lambda: well, timeout_s=OUTAGE_S + 90)

            async def fired() -> bool:
                stats = await timerd.stats("t")
                return (stats["fired"], stats["live"], stats["dead"]) == (1, 0, 0)

            await timerd.until(fired)
            attempts = [attempt_of(delivery) for delivery in processor.deliveries]
            gaps = [after.at - before.at for before, after in itertools.pairwise(processor.deliveries)]
            usual = statistics.median(gaps[restarted + SETTLED :])
            print(f"{name}: {len(attempts)} attempts, the last is no. {attempts[-1]}; median gap {usual * 1000:.1f} ms")
            # A kill may undo the count of the one attempt that was under way.
            assert all(b - a == 1 or (at == restarted and b - a in (0, 1)) for at, (a, b) in
                       enumerate(itertools.pairwise(attempts), 1)), attempts[restarted - 3 : restarted + 3]  # fmt: skip
            assert attempts[-1] > ATTEMPTS
            assert not any(a == b for a, b in itertools.pairwise(attempts[:restarted])), "counted twice"
            assert usual >= MAX_MS / 1000 * (1 - JITTER), "it does not wait"
            assert usual <= MAX_MS / 1000 * (1 + JITTER) + ROUND_TRIP_S, "it waits longer than the cap"
            assert max(gaps[restarted + 1 :]) < 2, "it paused"
            assert await timerd.list() == []
            assert not timerd.complaints()

    await each(run, OUTAGES)
