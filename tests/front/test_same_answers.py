"""A cluster answers as one node does: the same random requests to both, at any of its nodes, and the same answers."""

import asyncio
from random import Random
from typing import Any

import pytest
from msgspec import structs

from tests.front.rig import Cluster, on_virtual_time
from timerd.engine.message import ArmDone, Condition, Filter, Refused, TimerView
from timerd.engine.timer import Timer, TimerType
from timerd.report import StatusReport

TYPES = [
    TimerType("ok", url="http://t/", max_lag_ms=0),
    TimerType("bad", url="http://t/", max_lag_ms=0, batch_size=1),
    TimerType("far", url="http://t/", state="paused"),
]
IDS = [f"timer {number}" for number in range(60)]
OUR_OWN = ("batches", "batch_timers", "lag", "target", "hosts", "breaker", "unnamed", "coalesced")


def asked(random: Random, now_ms: int) -> tuple[str, tuple[Any, ...]]:
    """A request: the method of `Service`, and what it is given."""
    what = random.choices(
        ["arm", "cancel", "fire", "get", "next", "list", "list_dead", "replay_dead", "purge_dead", "types", "tally",
         "status", "shards", "wait"],
        [30, 8, 6, 8, 4, 8, 6, 4, 3, 4, 3, 2, 2, 10],
    )[0]  # fmt: skip
    some = random.choices(IDS, k=random.choice([1, 1, 2, 5, 40]))
    type = random.choice(TYPES).name
    maybe_type = random.choice([None, type])
    expires_at = random.choice([None, None, None, now_ms - 1, now_ms + 60_000])
    if what == "arm":
        payloads = [None, b'{"a":1}', b'"' + b"x" * 600 + b'"', b'"' + b"y" * 3_000 + b'"']
        timers = [
            (
                random.choice([now_ms + 5_000, now_ms + 90_000, now_ms - 5]),
                id,
                random.choice(TYPES).name,
                random.choice(payloads),
            )
            for id in some
        ]
        modes = ["replace", "replace", "earliest", "latest", "keep"]
        conditions = None
        if random.random() < 0.4:
            conditions = [Condition(random.choice(modes), random.choice([None, None, 0, 5])) for _ in some]
        return what, (timers, conditions, random.random() < 0.8, expires_at)
    if what == "cancel":
        return what, (some, expires_at)
    if what in ("fire", "get"):
        return what, (some[0], expires_at) if what == "fire" else (some[0],)
    if what == "next":
        return what, (maybe_type, random.choice([1, 5, 100]))
    if what == "list":
        filter = Filter(
            type=maybe_type,
            state=random.choice([None, "armed", "paused", "dead"]),
            fire_after=random.choice([None, now_ms]),
            id_prefix=random.choice([None, "timer 1"]),
        )
        return what, (filter, random.choice([1, 7, 100]))
    if what == "list_dead":
        return what, (maybe_type, random.choice([1, 7, 100]))
    if what in ("replay_dead", "purge_dead"):
        by_ids = random.random() < 0.5
        return what, (some if by_ids else None, None if by_ids else type, expires_at)
    if what == "types":
        return random.choice([
            ("put_type", (TimerType("new", url="http://t/", batch_size=random.randint(1, 9)), False, expires_at)),
            ("delete_type", (random.choice(["new", "far", "nothing"]), expires_at)),
            ("put_type", (structs.replace(TYPES[2], kind="callback"), True, expires_at)),
        ])  # fmt: skip
    return what, (random.choice([100, 1_000, 8_000]),) if what == "wait" else ()


async def answer(service: Any, what: str, given: tuple[Any, ...]) -> Any:
    if what == "wait":
        return await asyncio.sleep(given[0] / 1000)
    if what == "arm":
        timers, *rest = given
        return await service.arm([Timer(at, 0, id, type, payload) for at, id, type, payload in timers], *rest)
    if what in ("list", "list_dead"):
        pages, token = [], None
        while True:
            page = await getattr(service, what)(*given, token)
            if isinstance(page, Refused):
                return page
            pages += page[0]
            if (token := page[1]) is None:
                return pages
    said = comparable(await getattr(service, what)(*given))
    if what == "put_type" and given[0].name == "far":  # nothing that is armed here is a callback
        said = said, comparable(await service.put_type(TYPES[2], True, None))
    return said


def comparable(value: Any) -> Any:
    """What must be the same whoever is asked."""
    if isinstance(value, Refused):
        return structs.replace(value, errors=tuple(value.errors))
    if isinstance(value, StatusReport):
        return value.timers, value.oldest_due_at, value.ring_version
    if hasattr(value, "types"):
        plain = {
            name: [getattr(report, field) for field in report.__struct_fields__ if field not in OUR_OWN]
            for name, report in value.types.items()
        }
        return plain, sorted((tally.shard, tally.oldest_due_at) for tally in value.shards)
    if isinstance(value, list) and value and hasattr(value[0], "owner"):
        return [structs.replace(report, owner="") for report in value]
    return value


def rounded(value: Any) -> Any:
    """Without the microseconds of generations: virtual time is a sum of floats, and not the same ones."""
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    if isinstance(value, ArmDone):
        return structs.replace(value, results=rounded(value.results), unavailable=list(value.unavailable))
    if hasattr(value, "generation"):
        return structs.replace(value, generation=value.generation // 1000)
    return value


def answers(seed: int, names: tuple[str, ...], steps: int) -> list[Any]:
    """What a cluster of these nodes says; one name: a node by itself, without a front."""
    found: list[Any] = []

    async def work(cluster: Cluster) -> None:
        random = Random(seed)
        await cluster.put(*TYPES)
        for _ in range(steps):
            what, given = asked(random, cluster.clock.wall_ms)
            number = random.randrange(3)
            service = cluster.nodes["a"] if len(names) == 1 else cluster.fronts[names[number]]
            found.append((what, given, rounded(await answer(service, what, given))))
            await asyncio.sleep(0.005)

    on_virtual_time(work, names)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_three_nodes_answer_as_one_does(seed):
    one, three = answers(seed, ("a",), 150), answers(seed, ("a", "b", "c"), 150)
    for step, (alone, together) in enumerate(zip(one, three, strict=True)):
        assert together == alone, f"step {step}: {alone[0]} {alone[1]}"
    assert any(isinstance(said, list) and said and isinstance(said[0], TimerView) for _, _, said in three)
