"""What is done to a cluster in a round, and what is measured of it. Each leaves the cluster whole again.

A figure is a time in seconds, or a count; its bound, if it has one, is in `BOUNDS`. What was lost, changed or
delivered early or too often is the book's to say, at the end of the round.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from random import Random
from typing import NamedTuple

from tests.failover.cluster import Cluster
from tests.failover.load import MAX_LAG_S, Load

FIRES, ARMS = "without a fire", "without an acknowledged arm"
LATE, HANDOVER, REJOINED, STOPPED = "late by", "hand-over", "whole again after", "stopped in"
ANSWERED, UNANSWERED = "answered within", "without an answer"
FIRES_AGAIN, ARMS_AGAIN = "fires again after", "arms again after"
REPEATS, UNFLAGGED = "repeats", "repeats without a flag"
TAKEN_S = 15.0
RECENT_S = 3.0  # every shard fires and is armed more often than that
FOUND_S = 90.0
BURST = 50
WOKEN_S = 3.0


class Options(NamedTuple):
    """How long things last."""

    pause_s: float = 60.0
    outage_s: float = 60.0
    cut_s: tuple[float, float] = (20.0, 30.0)


USUAL = Options()


class Stage(NamedTuple):
    """What a scenario acts on."""

    cluster: Cluster
    load: Load
    rng: Random
    options: Options


class Happened(NamedTuple):
    """`what`: in words. Repeats of what was due within `effect_s` of `begin` are looked on as in flight.

    `woken`: the time in which a request that left before a pause may arrive, without a flag.
    """

    what: str
    figures: dict[str, float]
    begin: float
    effect_s: float = 0.0
    woken: tuple[float, float] = (0.0, 0.0)


async def going_on(stage: Stage, series: Mapping[int, list[float]], shards: Iterable[int]) -> None:
    """Wait until each of these shards goes on: it has been heard of lately, and since the beginning of this."""
    wanted = set(shards)
    begin = time.time()
    while True:
        await asyncio.sleep(0.1)
        now = time.time()
        silent = {shard for shard in wanted if now - max(series.get(shard, [0.0])) > RECENT_S}
        if now > begin + RECENT_S + 0.5 and not silent:
            return
        if now > begin + FOUND_S:
            raise AssertionError(f"shards {sorted(silent)} of {sorted(wanted)} are silent after {FOUND_S:.0f} s")


def all_shards(stage: Stage) -> range:
    return range(stage.cluster.shards)


async def _victim(stage: Stage) -> tuple[str, set[int]]:
    name = stage.rng.choice(sorted(stage.cluster.nodes))
    shards = await stage.cluster.shards_of(name)
    assert shards, f"{name} owns nothing"
    return name, shards


async def _whole(stage: Stage, since: float) -> float:
    await stage.cluster.settled()
    return time.time() - since


async def kill_owner(stage: Stage) -> Happened:
    """kill -9 of a node; its timers fire elsewhere. It is started again then, or at once."""
    cluster, book = stage.cluster, stage.load.book
    victim, shards = await _victim(stage)
    at_once = stage.rng.random() < 0.25 or len(cluster.nodes) == 1
    begin = time.time()
    cluster.nodes[victim].kill()
    await cluster.nodes[victim].wait()
    refused = await cluster.restart(victim) if at_once else 0
    await going_on(stage, book.fires, shards)
    until = time.time()
    if not at_once:
        refused = await cluster.restart(victim)
    rejoined = await _whole(stage, until)
    again = f" and started at once ({refused} times refused)" if at_once else ""
    figures = {
        FIRES: book.fire_gap(shards, begin - 0.5, until),
        ARMS: book.ack_gap(shards, begin, until),
        REJOINED: rejoined,
    }
    return Happened(f"{victim} with {len(shards)} shards killed{again}", figures, begin)


async def pause(stage: Stage) -> Happened:
    """SIGSTOP, and SIGCONT when others have long taken over; it is asked at once."""
    cluster, book = stage.cluster, stage.load.book
    victim, shards = await _victim(stage)
    begin = time.time()
    cluster.nodes[victim].signal(signal.SIGSTOP)
    await asyncio.sleep(stage.options.pause_s)
    until = time.time()
    cluster.nodes[victim].signal(signal.SIGCONT)
    await stage.load.burst(victim, BURST)
    rejoined = await _whole(stage, until)
    figures = {
        FIRES: book.fire_gap(shards, begin - 0.5, until),
        ARMS: book.ack_gap(shards, begin, until),
        REJOINED: rejoined,
    }
    what = f"{victim} with {len(shards)} shards stood still for {until - begin:.0f} s"
    return Happened(what, figures, begin, woken=(until, until + WOKEN_S))


async def partition(stage: Stage) -> Happened:
    """A node is cut off from the servers and from the others."""
    cluster, book = stage.cluster, stage.load.book
    victim, shards = await _victim(stage)
    begin = time.time()
    cluster.cut_off(victim)
    await asyncio.sleep(stage.rng.uniform(*stage.options.cut_s))
    until = time.time()
    cluster.heal()
    rejoined = await _whole(stage, until)
    figures = {
        FIRES: book.fire_gap(shards, begin - 0.5, until),
        ARMS: book.ack_gap(shards, begin, until),
        REJOINED: rejoined,
    }
    what = f"{victim} with {len(shards)} shards cut off for {until - begin:.0f} s"
    return Happened(what, figures, begin, effect_s=5.0)


async def kill_server(stage: Stage) -> Happened:
    """kill -9 of a server, and then of the one that leads the stream of a shard."""
    cluster, book = stage.cluster, stage.load.book
    first = time.time()
    figures = {}
    shard = stage.rng.randrange(cluster.shards)
    for number in range(2):
        await cluster.current()
        server = await cluster.leader(shard) if number else stage.rng.choice(cluster.servers)
        begin = time.time()
        await server.kill()
        await going_on(stage, book.acks, all_shards(stage))
        await going_on(stage, book.fires, all_shards(stage))
        until = time.time()
        await server.start()
        of = ", a leader" if number else ", a server"
        figures[ARMS + of] = book.ack_gap(all_shards(stage), begin, until)
        figures[FIRES + of] = book.fire_gap(all_shards(stage), begin, until)
    await cluster.current()
    return Happened(f"a server killed, and the leader of shard {shard}", figures, first, effect_s=time.time() - first)


async def stop(stage: Stage) -> Happened:
    """A clean stop of a node, and its start."""
    cluster, book = stage.cluster, stage.load.book
    victim, shards = await _victim(stage)
    begin = time.time()
    code = await cluster.nodes[victim].stop()
    took = time.time() - begin
    assert code == 0, f"{victim} ended with {code}: {''.join(cluster.nodes[victim].stderr[-5:])}"
    await going_on(stage, book.fires, shards)
    until = time.time()
    handover = book.lag(all_shards(stage), begin, until) - MAX_LAG_S
    await cluster.restart(victim)
    rejoined = await _whole(stage, until)
    await asyncio.sleep(1)
    back = book.lag(all_shards(stage), until, time.time()) - MAX_LAG_S
    figures = {HANDOVER: max(0.0, handover), f"{HANDOVER} back": max(0.0, back), STOPPED: took, REJOINED: rejoined}
    return Happened(f"{victim} with {len(shards)} shards stopped, and started", figures, begin)


async def rolling(stage: Stage) -> Happened:
    """Every node and every server stopped and started, one by one."""
    cluster, book = stage.cluster, stage.load.book
    begin = time.time()
    for name, node in cluster.nodes.items():
        code = await node.stop()
        assert code == 0, f"{name} ended with {code}: {''.join(node.stderr[-5:])}"
        await cluster.restart(name)
        await cluster.settled()
    nodes = time.time()
    for server in cluster.servers:
        await cluster.current()
        await server.stop()
        await server.start()
    await cluster.current()
    await going_on(stage, book.fires, all_shards(stage))
    now = time.time()
    figures = {
        f"{LATE}, nodes": max(0.0, book.lag(all_shards(stage), begin, nodes) - MAX_LAG_S),
        f"{LATE}, servers": max(0.0, book.lag(all_shards(stage), nodes, now) - MAX_LAG_S),
    }
    return Happened(f"everything restarted in {now - begin:.0f} s", figures, begin, effect_s=now - begin)


async def all_servers(stage: Stage) -> Happened:
    """All servers gone; arms are refused in time, and everything goes on when they are back."""
    cluster, book = stage.cluster, stage.load.book
    begin = time.time()
    await asyncio.gather(*(server.kill() for server in cluster.servers))
    gone = time.time()
    await asyncio.sleep(stage.options.outage_s)
    late_acks = [at for acks in book.acks.values() for at in acks if at > gone + 0.5]
    assert not late_acks, f"{len(late_acks)} arms acknowledged while there was no server"
    await asyncio.gather(*(server.start() for server in cluster.servers))
    back = time.time()
    await going_on(stage, book.acks, all_shards(stage))
    await going_on(stage, book.fires, all_shards(stage))
    await cluster.settled()
    await cluster.current()
    answers = [(at, status, took) for at, status, took in book.answers if at > gone and at - took < back]
    figures = {
        ANSWERED: max((took for _, _, took in answers), default=0.0),
        UNANSWERED: sum(status == 0 for _, status, _ in answers),
        ARMS_AGAIN: _first_after(book.acks, back),
        FIRES_AGAIN: _first_after(book.fires, back),
    }
    what = f"no server for {back - begin:.0f} s, {book.refusals} arms and cancels refused"
    return Happened(what, figures, begin, effect_s=back - begin + 30)


def _first_after(series: Mapping[int, list[float]], back: float) -> float:
    """When the last of all shards was heard of first."""
    return max(min((at - back for at in times if at > back), default=FOUND_S) for times in series.values())


async def nothing(stage: Stage) -> Happened:
    """No fault: what the figures are without one."""
    begin = time.time()
    await asyncio.sleep(10)
    book, now = stage.load.book, time.time()
    used = sum(node.cpu_s() for node in stage.cluster.nodes.values())
    with suppress(asyncio.TimeoutError):
        await stage.cluster.settled()
    figures = {
        FIRES: book.fire_gap(all_shards(stage), begin, now),
        ARMS: book.ack_gap(all_shards(stage), begin, now),
        LATE: book.lag(all_shards(stage), begin, now),
        "CPU of all nodes so far": used,
    }
    return Happened("nothing", figures, begin)


SCENARIOS: dict[str, Callable[[Stage], Awaitable[Happened]]] = {
    "kill-owner": kill_owner,
    "pause": pause,
    "kill-server": kill_server,
    "partition": partition,
    "stop": stop,
    "rolling": rolling,
    "all-servers": all_servers,
    "nothing": nothing,
}

BOUNDS: dict[str, dict[str, float]] = {
    "kill-owner": {FIRES: TAKEN_S, REJOINED: 30.0, UNFLAGGED: 0},
    "pause": {FIRES: TAKEN_S, REJOINED: 30.0},
    "kill-server": {f"{ARMS}, a server": 10.0, f"{ARMS}, a leader": 10.0, UNFLAGGED: 0},
    "partition": {FIRES: TAKEN_S, REJOINED: 30.0, UNFLAGGED: 0},
    "stop": {HANDOVER: 1.0, f"{HANDOVER} back": 1.0, REPEATS: 0},
    "rolling": {f"{LATE}, nodes": 5.0, f"{LATE}, servers": 15.0, UNFLAGGED: 0},
    "all-servers": {ANSWERED: 12.0, UNANSWERED: 0, ARMS_AGAIN: 30.0, FIRES_AGAIN: 30.0, UNFLAGGED: 0},
    "nothing": {REPEATS: 0},
}
