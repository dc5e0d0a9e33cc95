"""What a seed makes of a run: sizes, limits, habits of targets, and which faults there are. Everything is drawn here.

Runs differ in kind and not only in detail (swarm testing: Groce and others, 2012): a fault that is always present hides
what its absence would show, so each is switched on or off by seed.
"""

from base64 import b64encode
from random import Random
from typing import Final, NamedTuple

import msgspec

from timerd.engine.timer import Misfire, RetryPolicy, TimerType

KINDS_MIN: Final = 3  # of fault, that every run has
FAULTS: Final = (
    *("power cuts", "kills", "log failures", "disk errors", "read errors", "disk full", "disk stalls"),
    *("wall steps", "suspends", "drifts", "outages", "refused", "unresolved", "connect hangs", "half there", "stale"),
    *("reset before", "reset after", "closed after", "truncated", "no http", "answer never", "answer late", "hang"),
    *("slow", "lost", "retry-after", "no-retry", "garbage", "overlong", "redirect", "gone", "proxy", "error", "poison"),
    "busy",
)


class Habits(NamedTuple):
    """How a type's target behaves."""

    calm: bool
    """It answers every batch, soon: promise 3 can be judged."""
    trouble: float
    """The share of POSTs that go wrong as a whole."""
    mixed: float
    """The share of answers that name items, and do different things to them."""
    rearms: float
    """The share of named items that are armed again in the answer."""
    outages: int
    slow_s: float
    """An answer takes up to this long."""
    poison: float
    """The share of ids that fail any batch they are in."""
    capacity: int = 0
    """It refuses (429, 503) what is more than so much at a time; 0 = it does not."""


class Swarm(NamedTuple):
    """One run's configuration."""

    shards: int
    segment_bytes: int
    disk_bytes: int
    look_bytes: int
    """Appended bytes after which upkeep looks at the log (`upkeep.LOOK_BYTES`)."""
    slice_timers: int
    """`shard.SLICE_TIMERS`"""
    slices: bool
    """Slices are written at odd moments, too. Nothing keeps room for them, so not where the disk may be full."""
    turn_timers: int
    """`dispatch.TURN_TIMERS`"""
    usual_s: float
    """A job of the disk."""
    types: list[TimerType]
    habits: dict[str, Habits]
    network: bool
    """Deliveries go through the shipped client and a network; else straight to the targets."""
    latency_s: float
    """Of the network, at most, one way."""
    twins: bool
    """Targets have two addresses, and nobody is at the first."""
    races: float
    """The share of deliveries during which the target calls back about a timer of the batch."""
    clients: int
    calls: int
    """Of all clients."""
    ids: int
    batch: int
    """Timers in an arm, at most."""
    horizon_ms: int
    """Most timers are due within this."""
    bodies: float
    """The share of payloads above 512 bytes."""
    dead_kept: int
    power_cuts: int
    kills: int
    stops: int
    wall_steps: int
    suspends: int
    drifts: bool
    disk_full: int
    disk_stalls: int
    disk_errors: int
    read_errors: int
    type_changes: bool
    pauses: bool
    scales: int
    """Times that the number of shards is changed."""
    pulls: int
    """Timers a second that pass between shards in the background."""
    callbacks: bool
    """There is a type of callbacks too. Not where deliveries go through the network, which knows processors alone."""


SHARDS_MAX: Final = 6  # where their number changes
HOOKS: Final = "hooks"
HOSTS: Final = ("calm.test", "a.test", "b.test", "c.test:8080")
CALM: Final = f"{HOOKS} http://calm.test:80"
"""The lane of callbacks whose host answers always, and soon: promise 3 can be judged there, whatever the others do."""


def draw(seed: int) -> Swarm:
    """The run of a seed."""
    r = Random(f"{seed} swarm")
    count = r.choice([1, 1, 2, 3])
    names = ["poll", "mail.send", "sweep"][:count]
    crashes = r.choice([1, 1, 2, 3])
    cuts = r.randint(0, crashes)
    batch = r.choice([8, 14, 24])
    disk_full = _sometimes(r, 2)
    steps, suspends, stalls = _sometimes(r, 4), _sometimes(r, 2), _sometimes(r, 2)
    while (cuts > 0) + (cuts < crashes) + (steps > 0) + (suspends > 0) + (stalls > 0) + (disk_full > 0) < KINDS_MIN:
        steps, suspends, stalls = (number or r.randint(0, 1) for number in (steps, suspends, stalls))
    drawn = Swarm(
        shards=r.choice([1, 1, 2, 3, 5]),
        segment_bytes=r.choice([64, 64, 128]) << 10,
        disk_bytes=r.choice([4, 8, 64]) << 20,
        look_bytes=r.choice([1024, 8192, 32_768]),
        slice_timers=r.choice([10, 60, 4_000]),
        slices=not disk_full and r.random() < 0.7,
        turn_timers=Random(f"{seed} turns").choice([1, 40, 300, 2_000]),
        usual_s=r.choice([0.0002, 0.001, 0.004]),
        types=[_type(r, name) for name in names],
        habits={name: _habits(r) for name in names},
        network=r.random() < 0.4,
        latency_s=r.choice([0.0002, 0.002, 0.02]),
        twins=r.random() < 0.1,
        races=r.choice([0.04, 0.04, 0.15]),
        clients=r.choice([2, 4, 8]),
        calls=1_200 // batch,
        ids=r.choice([40, 150, 600]),
        batch=batch,
        horizon_ms=r.choice([3_000, 15_000, 60_000]),
        bodies=r.choice([0.0, 0.05, 0.2]),
        dead_kept=r.choice([100_000, 100_000, 8]),
        power_cuts=cuts,
        kills=crashes - cuts,
        stops=_sometimes(r, 2),
        wall_steps=steps,
        suspends=suspends,
        drifts=r.random() < 0.3,
        disk_full=disk_full,
        disk_stalls=stalls,
        disk_errors=_sometimes(r, 1),
        read_errors=_sometimes(r, 2),
        type_changes=r.random() < 0.4,
        pauses=r.random() < 0.4,
        scales=0,
        pulls=10_000,
        callbacks=False,
    )
    load = Random(f"{seed} load")  # apart, as the next
    for name, habit in drawn.habits.items():
        if not habit.calm and load.random() < 0.5:
            drawn.habits[name] = habit._replace(capacity=load.choice([1, 2, 3, 6]))
    moves = Random(f"{seed} scales")  # apart, so that a seed has what it would have without them
    if moves.random() < 0.4:
        drawn = drawn._replace(scales=moves.randint(1, 4), pulls=moves.choice([20, 200, 10_000]))
    hooks = Random(f"{seed} hooks")  # apart, so that a seed has what it would have without them
    if drawn.network or hooks.random() < 0.4:
        return _with_misfires(drawn, Random(f"{seed} misfires"))
    habits = _habits(hooks)._replace(calm=False, mixed=0.0, rearms=0.0, outages=hooks.choice([0, 1, 2, 3]))
    habits = habits._replace(capacity=hooks.choice([0, 0, 1, 3]))
    drawn = drawn._replace(types=[*drawn.types, _hooks(hooks)], habits={**drawn.habits, HOOKS: habits}, callbacks=True)
    return _with_misfires(drawn, Random(f"{seed} misfires"))


def _with_misfires(swarm: Swarm, r: Random) -> Swarm:
    """Types that say what becomes of timers that are overdue, with graces that a restart is enough for."""
    types = [msgspec.structs.replace(type, misfire=_misfire(r)) for type in swarm.types]
    return swarm._replace(types=types) if r.random() < 0.7 else swarm


def _misfire(r: Random) -> Misfire:
    policy = r.choice(["fire", "fire", "drop", "coalesce"])
    return Misfire(policy, r.choice([0, 300, 2_000, 60_000]), r.choice([None, 10.0, 40.0]))


def _sometimes(r: Random, most: int) -> int:
    return r.randint(1, most) if r.random() < 0.4 else 0


def _type(r: Random, name: str) -> TimerType:
    return TimerType(
        name=name,
        url=f"http://{name}.test/hook",
        batch_size=r.choice([1, 2, 5, 20, 100, 800]),
        max_lag_ms=r.choice([0, 0, 100, 1_000, 5_000]),
        request_timeout_ms=r.choice([500, 2_000, 10_000]),
        max_in_flight=r.choice([1, 2, 4, 16]),
        max_per_second=r.choice([None, None, None, 30.0, 200.0]),
        retry=RetryPolicy(
            max_attempts=r.choice([0, 0, 1, 3, 5]),
            min_backoff_ms=r.choice([50, 200, 1_000]),
            max_backoff_ms=r.choice([1_000, 5_000, 15_000]),
            multiplier=r.choice([1.0, 2.0, 3.0]),
            jitter=r.choice([0.0, 0.2]),
        ),
        signing_secrets=_secrets(r),
    )


def _secrets(r: Random) -> tuple[str, ...]:
    return tuple("whsec_" + b64encode(r.randbytes(24)).decode() for _ in range(r.choice([0, 0, 1, 2])))


def _hooks(r: Random) -> TimerType:
    return msgspec.structs.replace(
        _type(r, HOOKS),
        url="",
        kind="callback",
        max_in_flight=r.choice([1, 4, 8, 40]),
        batch_size=r.choice([3, 20, 800]),
    )


def _habits(r: Random) -> Habits:
    calm = r.random() < 0.35
    return Habits(
        calm=calm,
        trouble=0.0 if calm else r.choice([0.0, 0.05, 0.3]),
        mixed=r.choice([0.0, 0.3, 0.8]),
        rearms=r.choice([0.0, 0.1, 0.4]),
        outages=0 if calm else r.choice([0, 0, 1, 2]),
        slow_s=0.02 if calm else r.choice([0.02, 0.2, 1.5]),
        poison=0.0 if calm else r.choice([0.0, 0.0, 0.02]),
    )


def changed(r: Random, type: TimerType) -> TimerType:
    """The type after somebody has put it anew."""
    other = _type(r, type.name)
    return TimerType(
        name=type.name,
        url=type.url,
        kind=type.kind,
        batch_size=other.batch_size,
        max_lag_ms=other.max_lag_ms,
        request_timeout_ms=type.request_timeout_ms,
        max_in_flight=other.max_in_flight,
        max_per_second=other.max_per_second,
        retry=other.retry,
        misfire=_misfire(Random(f"{type.misfire} {other.batch_size} {other.max_lag_ms}")),
        signing_secrets=type.signing_secrets,
        state=type.state,
    )
