"""Planted in callbacks: which may leave, what waits for its host, and where they may go."""

from typing import Final

from tests.mutations.mutation import Mutation, Pytest, Simulator

NO_NETWORK: Final = "callbacks do not go through its network, and its names are never looked up"
WORLD: Final = "tests/engine/test_callbacks.py"
SHARD: Final = "tests/engine/test_parking.py"

PLANTED: Final = (
    Mutation(
        "a-host-takes-it-all",
        "one host may have all of a type's requests under way",
        "timerd/engine/host.py",
        "return max(1, max_in_flight // SHARES)",
        "return max_in_flight",
        Simulator(60),
    ),
    Mutation(
        "slot-free-before-it-is-durable",
        "a slot is freed when the outcome is heard, and again when it is durable",
        "timerd/engine/callbacks.py",
        "            part.slots[host] += 1\n",
        "            gate.release(host, 1)\n            part.slots[host] += 1\n",
        Pytest(WORLD, because="it counts the requests that are open, and not the outcomes that are not durable"),
    ),
    Mutation(
        "probe-not-given-back",
        "a probe for which nothing was left under its host stays under way for ever",
        "timerd/engine/gate.py",
        "        host.breaker.drop_probe(batch_no)\n        self.hosts.offer(host)\n\n    def release",
        "        self.hosts.offer(host)\n\n    def release",
        Pytest(WORLD, because="what waits for a host is seldom cancelled to the last there"),
    ),
    Mutation(
        "pause-not-kept",
        "a Retry-After holds its own timer, and not its host",
        "timerd/engine/gate.py",
        "            host.held_until = max(host.held_until, now.boot_ms + failed.retry_after_ms)\n",
        "",
        Simulator(60),
    ),
    Mutation(
        "attempts-not-counted",
        "a callback that met a dead host keeps its attempts, as a processor's timer does",
        "timerd/engine/gate.py",
        "            counted=True,",
        "            counted=not failed.suspect,",
        Pytest(WORLD, because="a timer that is tried more often than its type allows breaks no promise that it judges"),
    ),
    Mutation(
        "hosts-never-forgotten",
        "a host that is well stays in memory",
        "timerd/engine/hosts.py",
        "            if self._hosts.pop(host.name, None) and host.pace.slowed:\n",
        "            if host.pace.slowed:\n",
        Pytest(WORLD, because="it does not look at memory"),
    ),
    Mutation(
        "drain-begins-anew",
        "what is sorted while the service drains is sent",
        "timerd/engine/gate.py",
        "                and not halted\n",
        "",
        Pytest(WORLD, because="a stop waits for what is sent, and so breaks no promise"),
    ),
    Mutation(
        "parked-is-never-early",
        "what is parked stays so when the wall clock goes back behind its time",
        "timerd/engine/lane.py",
        "        self._first = None\n        self._unpark_early(wall_ms)\n",
        "        self._first = None\n",
        Pytest(SHARD, because="something must wait for its host, and not be due, when the wall goes back"),
    ),
    Mutation(
        "parked-counts-as-answered",
        "a timer that was cancelled before it was put back counts as superseded",
        "timerd/engine/settling.py",
        "    failed = [(failure, current(ids)) for failure, ids in by_failure.items()]\n    if fired or gone:\n",
        "    failed = [(failure, current(ids)) for failure, ids in by_failure.items()]\n"
        "    for id in [id for ids in message.parked.values() for id in ids]:\n"
        "        gone += [left[id]] if left[id].state != IN_FLIGHT else []\n"
        "    if fired or gone:\n",
        Pytest(SHARD, because="it does not judge how many outcomes were superseded"),
    ),
    Mutation(
        "block-outlives-the-delivery",
        "a newer generation is still held back when the older one's callback has ended",
        "timerd/engine/settling.py",
        "    if gone:\n        _unblock(draft, gone)\n",
        "",
        Simulator(60),
    ),
    Mutation(
        "mapped-addresses-are-public",
        "an IPv4 address in an IPv6 one is not looked at",
        "timerd/engine/address.py",
        "            what = _what(inner)\n        else:",
        "            what = None\n        else:",
        Pytest("tests/engine/test_address.py", because=NO_NETWORK),
    ),
    Mutation(
        "names-only-are-guarded",
        "the address of a socket is not looked at, since names were",
        "timerd/guard.py",
        "    check(targets, where[0])\n    return socket.socket",
        "    return socket.socket",
        Pytest("tests/test_guard.py", because=NO_NETWORK),
    ),
    Mutation(
        "looked-up-twice",
        "what is handed on of a look-up is the name, which is looked up again to connect",
        "timerd/guard.py",
        "ResolveResult(hostname=host, host=where[0],",
        "ResolveResult(hostname=host, host=host,",
        Pytest("tests/test_guard.py", because=NO_NETWORK),
    ),
)
