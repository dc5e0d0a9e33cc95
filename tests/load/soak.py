"""Soak: the same timers go round and round, by answers and by calls, with kill -9 at random; nothing grows or is lost.

The kills come in the first two thirds of the time. The last third is one life, so that memory that grows shows: a
process that is killed every two minutes leaks into nothing. At the end the type is paused, everything is listed, and
the list, the counts of /metrics and the judge's book must agree.
"""

import asyncio
import random
import re
import statistics
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tests.load.chains import Chains
from tests.load.fit import Slope, slope
from tests.load.round import Caller, Rounds, ms
from tests.load.server import Server
from tests.load.target import Listener
from tests.load.wire import TYPE, Connection, call, request

MAX_LAG_MS: Final = 1_000
LOOK_S: Final = 2.0
SHOW_S: Final = 10.0
SETTLED_S: Final = 180.0  # of the run, or a quarter if that is less: what is before is not part of a slope
WARM_S: Final = 120.0  # of the last life, or a tenth of the run if that is less
JUDGED_S: Final = 180.0  # what is watched for less is still warming up
YOUNG_S: Final = 15.0  # of a life: it catches up, and its lag says nothing
DUE_GRACE_MS: Final = 15_000
CALM_SHARE: Final = 1 / 3
SEGMENT_BYTES: Final = 16 << 20  # the log grows by whole ones
CATALOGUE_BYTES: Final = 1 << 20  # and what else lies in the directory
COUNTS: Final = ("armed", "revived", "fired", "cancelled", "replaced", "dead", "dropped", "live")
_SAMPLE: Final = re.compile(r"^timerd_([a-z_]+?)(?:_total)?\{[^}]*\} (\S+)$", re.M)


class Look(NamedTuple):
    """What was seen at one moment."""

    at_s: float
    life: int
    age_s: float
    rss_bytes: int
    disk_bytes: int
    live_log_bytes: int


class Soak:
    """One run."""

    def __init__(self, directory: Path, timers: int, interval_s: float, seed: int) -> None:
        self.rng = random.Random(seed)
        self.server = Server(directory)
        self.chains = Chains(timers)
        self.rounds = Rounds(self.chains, round(interval_s * 1000), self.rng)
        self.listener = Listener(self.rounds)
        self.looks: list[Look] = []
        self.recoveries: list[float] = []
        self.lags = array("d")
        self.wrong: list[str] = []
        self.interval_s = interval_s
        self._life_began = 0.0
        self._seen: dict[str, float] = {}
        self._shown = 0.0
        self._fired_shown = 0

    async def lay(self) -> None:
        """Start, and arm them all, to come over one interval."""
        await self.listener.open()
        self._begin = time.monotonic()
        await self.start()
        retry = {"min_backoff": "500ms", "max_backoff": "2s"}
        fields = {"batch_size": 800, "max_lag": MAX_LAG_MS / 1000, "retry": retry}
        await call(self.server.port, "PUT", f"/v1/types/{TYPE}", {"url": self.listener.url, **fields})
        self.caller = Caller(self.server.port, self.chains, self.rounds, self.rng)
        count = self.chains.count
        first = time.time_ns() // 1_000_000 + 3_000 + count // 50
        for at in range(0, count, 5_000):
            ids = list(range(at, min(at + 5_000, count)))
            await self.caller.arm(ids, [first + round(n * self.interval_s * 1000 / count) for n in ids])

    async def start(self) -> float:
        took = await self.server.start()
        self._life_began = time.monotonic()
        return took

    async def kill(self) -> None:
        """kill -9, and start again."""
        await self.server.kill()
        self.recoveries.append(await self.start())
        print(f"{self.now():6.0f}  killed; ready again after {self.recoveries[-1]:.2f} s", flush=True)

    def now(self) -> float:
        return time.monotonic() - self._begin

    # ---- looking

    async def watch(self) -> None:
        """Look every two seconds, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                counts = await self.counts()
            except RuntimeError:  # it was killed a moment ago
                continue
            self.look(counts)

    async def counts(self) -> dict[str, float]:
        """All of /metrics that is of the type, and what the log takes; checked on the way."""
        server = self.server.starts
        text = (await call(self.server.port, "GET", "/metrics", timeout_s=20)).decode()
        counts: dict[str, float] = dict.fromkeys(COUNTS, 0.0)
        for name, value in _SAMPLE.findall(text):
            counts[name] = counts.get(name, 0.0) + float(value)
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name in ("timerd_log_live_bytes", "timerd_log_disk_bytes"):
                counts[name] = float(value)
        here = counts["armed"] + counts["revived"]
        there = sum(counts[name] for name in COUNTS[2:])
        if here != there:
            self.wrong.append(f"promise 8: armed + revived = {here:.0f}, and all the rest is {there:.0f}")
        for name in COUNTS[:-1]:
            if counts[name] < self._seen.get(name, 0):
                self.wrong.append(f"{name} went back from {self._seen[name]:.0f} to {counts[name]:.0f}")
        if server == self.server.starts:
            self._seen = {name: counts[name] for name in COUNTS}
        return counts

    def look(self, counts: dict[str, float]) -> None:
        now, age = self.now(), time.monotonic() - self._life_began
        lags, self.rounds.lags_ms = self.rounds.lags_ms, []
        if age > YOUNG_S:
            self.lags.extend(lags)
        self.looks.append(
            Look(
                now,
                self.server.starts,
                age,
                self.server.rss_bytes(),
                self.server.disk_bytes(),
                round(counts.get("timerd_log_live_bytes", 0)),
            )
        )
        if now - self._shown < SHOW_S:
            return
        fired = self.rounds.fired
        rate = (fired - self._fired_shown) / (now - self._shown)
        self._shown, self._fired_shown = now, fired
        last = self.looks[-1]
        lags.sort()
        print(
            f"{now:6.0f}  fires/s {rate:8,.0f}  lag p50 {_share(lags, 50):6.0f}  p99 {_share(lags, 99):6.0f} ms  "
            f"live {counts['live']:9,.0f}  in flight {counts.get('in_flight', 0):6.0f}  "
            f"RSS {last.rss_bytes / 1e6:6.1f} MB  disk {last.disk_bytes / 1e6:6.1f} MB  "
            f"by calls {self.caller.acknowledged:9,}  again {self.chains.repeated:7,}  "
            f"faults {sum(self.chains.faults.values())}",
            flush=True,
        )

    # ---- the end

    async def settle(self) -> None:
        """No more calls and no more done; then let everything that is open end, and pause."""
        self.caller.moving = False
        self.rounds.done_share = 0.0
        end = time.monotonic() + 60
        while not self.caller.idle and time.monotonic() < end:
            await asyncio.sleep(0.1)
        if not self.caller.idle:
            self.wrong.append("some calls were not acknowledged within a minute")
        late = self.chains.overdue(time.time_ns() // 1_000_000, DUE_GRACE_MS)
        if late:
            self.wrong.append(f"{len(late):,} timers are overdue by more than {DUE_GRACE_MS} ms, such as {late[:3]}")
        await call(self.server.port, "POST", f"/v1/types/{TYPE}:pause")
        while True:
            counts = await self.counts()
            if not counts["in_flight"] and not counts.get("retrying"):
                break
            if time.monotonic() > end + 30:
                self.wrong.append("some timers stay in flight although the type is paused")
                break
            await asyncio.sleep(0.2)
        if counts["live"] != self.chains.count:
            self.wrong.append(f"{counts['live']:.0f} are live, and {self.chains.count} should be")

    async def list_all(self) -> dict[int, tuple[int, int]]:
        """Every timer there is: (generation, fire_at)."""
        found: dict[int, tuple[int, int]] = {}
        connection = await Connection.open(self.server.port)
        token = ""
        while True:
            reply = await connection.ask(request("GET", f"/v1/timers?page_size=1000{token}"), 60)
            assert reply.taken, reply
            page = msgspec.json.decode(reply.body)
            for timer in page["timers"]:
                found[int(timer["id"])] = (timer["generation"], ms(timer["fire_at"]))
            if "next_page_token" not in page:
                connection.close()
                return found
            token = f"&page_token={page['next_page_token']}"


async def run(minutes: float, timers: int, interval_s: float, kill_every_s: float, seed: int, place: str | None) -> int:
    """One soak; the exit code."""
    print(f"{timers:,} timers, each again after about {interval_s:.0f} s, for {minutes:g} minutes; --seed {seed}")
    with tempfile.TemporaryDirectory(prefix="timerd-soak-", dir=place) as made:
        soak = Soak(Path(made), timers, interval_s, seed)
        try:
            return await _run(soak, minutes * 60, kill_every_s)
        finally:
            soak.listener.close()
            await soak.server.kill()


async def _run(soak: Soak, seconds: float, kill_every_s: float) -> int:
    await soak.lay()
    print(f"{soak.now():6.0f}  all are armed", flush=True)
    tasks = [asyncio.create_task(soak.watch()), asyncio.create_task(soak.caller.run())]
    soak.caller.moving = True
    try:
        last_kill = seconds * (1 - CALM_SHARE)
        while kill_every_s:
            # Now and then one comes on the heels of another, while the new life is catching up.
            wait = kill_every_s * soak.rng.uniform(0.5, 1.5) if soak.rng.random() < 0.8 else soak.rng.uniform(0, 5)
            if soak.now() + wait > last_kill:
                break
            await _sleep(wait, tasks)
            await soak.kill()
        await _sleep(max(0.0, seconds - soak.now()), tasks)
        await soak.settle()
        tasks[0].cancel()
        soak.chains.listed(await soak.list_all())
        await soak.counts()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        soak.caller.close()
    return report(soak, seconds)


async def _sleep(seconds: float, tasks: list["asyncio.Task[None]"]) -> None:
    """Unless one of the tasks breaks."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def report(soak: Soak, seconds: float) -> int:
    """The sum; the exit code."""
    chains, looks = soak.chains, soak.looks
    wrong = soak.wrong + [f"{count:,} x {what}" for what, count in chains.faults.items()]
    wrong += [f"timerd complains: {line}" for line in soak.server.complaints()[:3]]
    for example in chains.examples:
        print(f"fault: {example}")
    later = [look for look in looks if look.at_s >= min(SETTLED_S, seconds / 4)]
    lines: list[tuple[str, Slope | None]] = []
    last = [look for look in looks if look.life == soak.server.starts and look.age_s >= min(WARM_S, seconds / 10)]
    lines.append(("RSS within the last life", slope([x.at_s for x in last], [x.rss_bytes for x in last])))
    lives: dict[int, list[Look]] = {}
    for look in later:
        if look.age_s >= YOUNG_S:
            lives.setdefault(look.life, []).append(look)
    for life, some in lives.items():
        if life != soak.server.starts:
            lines.append((f"RSS within life {life}", slope([x.at_s for x in some], [x.rss_bytes for x in some])))
    firsts = [some[0] for some in lives.values()]
    lines.append(("disk, all lives", slope([x.at_s for x in later], [x.disk_bytes for x in later])))
    print("| slope | MB/h | +- | MB over the time | mean MB | s |  |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, line in lines:
        if line is None:
            print(f"| {name} | - | | | | | too short to say |")
            continue
        judged = name in ("RSS within the last life", "disk, all lives")  # the others are too short, and warm up
        grows = line.grows and judged and (name.startswith("RSS") or line.rise > 2 * SEGMENT_BYTES)
        grows &= line.seconds >= JUDGED_S
        verdict = "GROWS" if grows else "flat" if line.seconds >= JUDGED_S else "too short to judge"
        verdict = verdict if judged else ""
        print(
            f"| {name} | {line.per_hour / 1e6:+.1f} | {line.error / 1e6:.1f} | {line.rise / 1e6:+.1f} |"
            f" {line.mean / 1e6:.1f} | {line.seconds:.0f} | {verdict} |"
        )
        if grows:
            wrong.append(f"{name} grows by {line.per_hour / 1e6:.1f} MB/h")
    if len(firsts) > 1:
        young = ", ".join(f"{look.rss_bytes / 1e6:.0f}" for look in firsts)
        print(f"RSS {YOUNG_S:.0f} s after each start, MB: {young}")
    most = max((look.disk_bytes / max(1, look.live_log_bytes) for look in later), default=0.0)
    over = max((look.disk_bytes - 3 * look.live_log_bytes for look in later), default=0)
    if over > 2 * SEGMENT_BYTES + CATALOGUE_BYTES:
        wrong.append(f"promise 9: the disk holds 3 x live and {over / SEGMENT_BYTES:.1f} segments")
    lags = sorted(soak.lags)
    took = soak.recoveries
    print(f"disk: at most {most:.2f} of the live bytes")
    caller = soak.caller
    print(
        f"fires {soak.rounds.fired:,}, armed by calls {caller.acknowledged:,}; "
        f"calls refused {caller.refused:,}, broken {caller.broken:,}"
    )
    p50, p99, most_ms = (_share(lags, percent) for percent in (50, 99, 100))
    print(f"lag p50 {p50:.0f}, p99 {p99:.0f}, max {most_ms:.0f} ms (max_lag {MAX_LAG_MS})")
    if took:
        median = statistics.median(took)
        print(f"{len(took)} kills; ready again after {min(took):.2f} to {max(took):.2f} s, median {median:.2f}")
    print(f"duplicates {chains.repeated:,}, all of them announced" if chains.repeated else "duplicates 0")
    lost = sum(count for what, count in chains.faults.items() if what.startswith("lost"))
    print(f"lost {lost}, early {chains.faults['early']}")
    for each in wrong:
        print(f"WRONG: {each}")
    print("everything holds" if not wrong else "NOT everything holds")
    return 0 if not wrong else 1


def _share(ascending: Any, percent: int) -> float:
    return float(ascending[min(len(ascending) - 1, len(ascending) * percent // 100)]) if len(ascending) else 0.0
