"""What a run of a cluster has in it: everything is drawn from the seed, and each kind of fault is on or off by it."""

from random import Random
from typing import Final, NamedTuple

from tests.sim.cluster.loop import RATE_MAX, RATE_MIN
from timerd.engine.timer import RetryPolicy, TimerType

FAULTS: Final = (
    "kills", "pauses", "stops", "joins", "cut off", "heartbeats lost", "targets cut off", "splits", "elections",
    "minorities", "requests lost", "answers lost", "requests doubled", "reads of a replica behind", "servers away",
    "no room", "drifts", "wall steps", "owners deposed",
)  # fmt: skip
KINDS_MIN: Final = 3


class HostSwarm(NamedTuple):
    """One machine."""

    name: str
    rate: float
    """Of its clocks."""
    wall_ms: int
    """How far its wall clock is from the others'."""
    joins_s: float
    """When it begins."""


class Swarm(NamedTuple):
    """One run's configuration."""

    hosts: list[HostSwarm]
    shards: int
    lease_ms: int
    answer_s: float
    segment_bytes: int
    look_bytes: int
    """Appended bytes after which upkeep looks at a log (`upkeep.LOOK_BYTES`)."""
    slice_timers: int
    latency_s: float
    peer_latency_s: float
    types: list[TimerType]
    clients: int
    calls: int
    """Of all clients."""
    batch: int
    ids: int
    horizon_ms: int
    bodies: float
    trouble: float
    """The share of POSTs that go wrong."""
    rearms: float
    slow_s: float
    kills: int
    pauses: int
    stops: int
    cuts: int
    unheard: int
    target_cuts: int
    splits: int
    elections: int
    minorities: int
    storms: int
    """Spans in which requests and answers are lost and doubled."""
    lag_s: float
    absences: int
    full: int
    drifts: int
    steps: int
    depositions: int
    """Live owners whose shards are given to others."""

    @property
    def span_s(self) -> float:
        """How long faults go on."""
        return self.horizon_ms / 1000 * 1.5


def draw(seed: int) -> Swarm:
    """The run of a seed."""
    r = Random(f"{seed} cluster")
    lease_ms = r.choice([2_000, 3_000, 5_000])
    true_rates = r.random() < 0.3
    far = r.random() < 0.2  # wall clocks that nobody keeps together
    hosts = [
        HostSwarm(
            name,
            1.0 if true_rates else r.choice([RATE_MIN, RATE_MAX, r.uniform(RATE_MIN, RATE_MAX)]),
            r.randint(-20_000, 20_000) if far else r.randint(-300, 300),
            0.0 if name == "a" or r.random() < 0.7 else r.random() * 20.0,
        )
        for name in ("a", "b", "c", "d")[: r.choice([2, 2, 3, 3, 4])]
    ]
    batch = r.choice([3, 8, 16])
    counts = {
        name: r.randint(1, most) if r.random() < 0.45 else 0
        for name, most in (
            ("kills", 3), ("pauses", 4), ("stops", 2), ("cuts", 3), ("unheard", 3), ("target_cuts", 2), ("splits", 2),
            ("elections", 4), ("minorities", 3), ("storms", 3), ("absences", 1), ("full", 1), ("drifts", 2),
            ("steps", 2),
        )
    }  # fmt: skip
    while sum(count > 0 for count in counts.values()) < KINDS_MIN + 1:
        counts[r.choice(sorted(counts))] = 1
    if not any(counts[name] for name in ("kills", "pauses", "cuts")):
        counts[r.choice(["kills", "pauses", "cuts"])] = 1
    return Swarm(
        hosts=hosts,
        shards=r.choice([1, 2, 3, 4, 6]),
        lease_ms=lease_ms,
        answer_s=r.choice([0.5, 2.0]),
        segment_bytes=r.choice([2 << 10, 16 << 10]),
        look_bytes=r.choice([512, 4_096]),
        slice_timers=r.choice([5, 60, 4_000]),
        latency_s=r.choice([0.0005, 0.005, 0.05]),
        peer_latency_s=r.choice([0.0005, 0.02]),
        types=[_type(r, name) for name in ("poll", "mail.send")[: r.choice([1, 2])]],
        clients=r.choice([2, 4]),
        calls=700 // batch,
        batch=batch,
        ids=r.choice([40, 100, 300]),
        horizon_ms=r.choice([15_000, 30_000, 50_000]),
        bodies=r.choice([0.0, 0.0, 0.1]),
        trouble=r.choice([0.0, 0.1, 0.3]),
        rearms=r.choice([0.0, 0.2]),
        slow_s=r.choice([0.02, 0.3, 1.5]),
        lag_s=r.choice([0.0, 0.1, 3.0]),
        depositions=_depositions(seed),
        **counts,
    )


def _depositions(seed: int) -> int:
    r = Random(f"{seed} depositions")  # drawn apart: the other seeds are the runs that they were
    return r.randint(1, 6) if r.random() < 0.5 else 0


def _type(r: Random, name: str) -> TimerType:
    return TimerType(
        name=name,
        url=f"http://{name}.test/hook",
        batch_size=r.choice([1, 5, 100]),
        max_lag_ms=r.choice([0, 0, 100, 1_000]),
        request_timeout_ms=r.choice([500, 2_000, 5_000]),
        max_in_flight=r.choice([2, 4, 16]),
        retry=RetryPolicy(
            max_attempts=r.choice([0, 0, 3]),
            min_backoff_ms=r.choice([50, 500]),
            max_backoff_ms=r.choice([1_000, 3_000]),
            multiplier=2.0,
            jitter=r.choice([0.0, 0.2]),
        ),
    )
