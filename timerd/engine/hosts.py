"""The hosts of one callback type: which are remembered, and whose turn it is to have what is parked for it sent.

Hosts that have something parked stand in a ring, those of on-time callbacks apart from those of missed ones, so that
none starves when there are more hosts than slots. One that may not be tried yet leaves the ring, and comes back at its
moment. It knows hosts and moments: no batches, no rates, nothing of what is not sorted; those are the `Gate`'s.

Invariants
1. A host that has something parked, and room, is in its ring or among the moments.
2. A host of which nothing is parked or under way is forgotten if it is well, or slowed and has taken something since;
   of others `HOSTS_IDLE_MAX` are kept, and the log has no line of one that goes so.
"""

from collections.abc import Iterator
from heapq import heappop, heappush, nsmallest
from typing import Final

from timerd.engine.choice import Lane
from timerd.engine.command import TargetTurned
from timerd.engine.condition import HOSTS_SHOWN, HostsCondition
from timerd.engine.effect import Ready
from timerd.engine.host import Host

HOSTS_IDLE_MAX: Final = 4_096  # hosts in trouble that are remembered though nothing is due for them: a megabyte


class Hosts:
    """By name, made when they are first asked for."""

    def __init__(self, type: str, turned: list[TargetTurned]) -> None:
        """`turned`: where it is told that a host which is forgotten is slowed no more."""
        self.ring: dict[str, None] = {}
        """Hosts that may have room for what is parked."""
        self.missed_ring: dict[str, None] = {}
        """The same, for what is parked of missed ones."""
        self._type = type
        self._turned = turned
        self._hosts: dict[str, Host] = {}
        self._idle: dict[str, None] = {}  # hosts in trouble and without work, the longest so first
        self._moments: list[tuple[int, str]] = []  # heap: hosts that may be tried again from then on

    def __len__(self) -> int:
        return len(self._hosts)

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def of(self, name: str) -> Host:
        """The host of that name."""
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host(name)
        return host

    def forget(self, shard: int) -> list[Ready]:
        """Take out what the shard has parked. Linear in hosts."""
        said: list[Ready] = []
        for host in list(self._hosts.values()):
            said += host.parked.forget(shard) + host.missed.forget(shard)
            self.tidy(host)
        return said

    # ---- turns

    def offer(self, host: Host) -> None:
        """Let it have its turn in the ring, if there is something for it."""
        if host.parked.reported:
            self.ring.setdefault(host.name)
        if host.missed.reported:
            self.missed_ring.setdefault(host.name)

    def next(self, share: int, free: int, boot_ms: int, missed: bool) -> tuple[str, Lane, int] | None:
        """Whose turn it is, what is parked for it, and how many of that may leave, at most `free`."""
        ring = self.missed_ring if missed else self.ring
        while ring:
            name = next(iter(ring))
            del ring[name]
            if (host := self._hosts.get(name)) is None:
                continue
            lane = host.missed if missed else host.parked
            count = min(host.room(share), lane.total(), free)
            if count <= 0:
                continue
            if host.free_at > boot_ms:
                self._wait(host)
                continue
            ring[name] = None
            return name, lane, count
        return None

    def pass_moments(self, boot_ms: int) -> None:
        """Let those have their turn again whose moment has come."""
        while self._moments and self._moments[0][0] <= boot_ms:
            at, name = heappop(self._moments)
            if (host := self._hosts.get(name)) is not None:
                if host.waits_until == at:
                    host.waits_until = 0
                self.offer(host)

    def next_moment(self) -> int | None:
        """When the next may be tried again."""
        return self._moments[0][0] if self._moments else None

    def any_waits(self) -> bool:
        """Whether some host may have something for which its turn or its moment has to come."""
        return bool(self.ring or self.missed_ring or self._moments)

    def _wait(self, host: Host) -> None:
        if host.waits_until != host.free_at:
            host.waits_until = host.free_at
            heappush(self._moments, (host.free_at, host.name))

    # ---- memory

    def note_work(self, host: Host) -> None:
        """Something is under way to it."""
        self._idle.pop(host.name, None)

    def tidy(self, host: Host) -> None:
        """Forget it, if nothing is under way to it or parked and nothing would be missed."""
        if not host.idle:
            self._idle.pop(host.name, None)
            return
        self.ring.pop(host.name, None)
        self.missed_ring.pop(host.name, None)
        self._idle.pop(host.name, None)
        if host.untroubled:
            if self._hosts.pop(host.name, None) and host.pace.slowed:
                self._turned.append(TargetTurned(self._type, host.name, "slow_down_ended", host.pace.reason))
            return
        self._idle[host.name] = None
        if len(self._idle) > HOSTS_IDLE_MAX:
            oldest = next(iter(self._idle))
            del self._idle[oldest], self._hosts[oldest]

    def condition(self, share: int, boot_ms: int) -> HostsCondition:
        """How they are. Linear in those that are known; those that nothing has to do with any more are well."""
        all = [
            host.condition(share, boot_ms)
            for host in self._hosts.values()
            if host.troubled_since and not host.calm(boot_ms)
        ]
        open_ = [host for host in all if host.breaker != "closed"]
        slowed = [host for host in all if host.breaker == "closed" and host.window < host.bound]
        held = [host for host in all if host.breaker == "closed" and host.held_until]
        troubled = [host for host in all if host.breaker != "closed" or host.window < host.bound or host.held_until]
        longest = nsmallest(HOSTS_SHOWN, troubled, key=lambda host: (host.since, host.host))
        return HostsCondition(len(self._hosts), len(open_), len(slowed), len(held), longest)
