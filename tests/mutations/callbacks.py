"""Planted in callbacks: which may leave, what waits for its host, and where they may go."""

from typing import Final

from tests.mutations.mutation import Mutation, Pytest

HAS_NONE: Final = "its types are processors"
WORLD: Final = Pytest("tests/engine/test_callbacks.py", because=HAS_NONE)
MODEL: Final = Pytest("tests/property/test_shard_model.py", because=HAS_NONE)
GUARD: Final = Pytest("tests/test_guard.py", because=HAS_NONE)

PLANTED: Final = (
    Mutation(
        "a-host-takes-it-all",
        "what was asked for under a host's name is not counted to its share before it has come",
        "timerd/engine/gate.py",
        "        self.in_flight += count\n        host.in_flight += count\n",
        "        self.in_flight += count\n        host.in_flight += count if host.breaker.open else count // 2\n",
        WORLD,
    ),
    Mutation(
        "slot-free-before-it-is-durable",
        "a slot is freed when the outcome is heard, and again when it is durable",
        "timerd/engine/callbacks.py",
        "            part.slots[host] += 1\n",
        "            gate.release(host, 1)\n            part.slots[host] += 1\n",
        WORLD,
    ),
    Mutation(
        "probe-not-given-back",
        "a probe for which nothing was left under its host stays under way for ever",
        "timerd/engine/gate.py",
        "        host.breaker.drop_probe(batch_no)\n        self._offer(host)\n\n    def release",
        "        self._offer(host)\n\n    def release",
        WORLD,
    ),
    Mutation(
        "pause-not-kept",
        "a Retry-After holds its own timer, and not its host",
        "timerd/engine/gate.py",
        "            host.held_until = max(host.held_until, now.boot_ms + failed.retry_after_ms)\n",
        "",
        WORLD,
    ),
    Mutation(
        "attempts-not-counted",
        "a callback that met a dead host keeps its attempts, as a processor's timer does",
        "timerd/engine/gate.py",
        "            counted=True,",
        "            counted=not failed.suspect,",
        WORLD,
    ),
    Mutation(
        "hosts-never-forgotten",
        "a host that is well stays in memory",
        "timerd/engine/gate.py",
        "            self._hosts.pop(host.name, None)\n            return\n",
        "            return\n",
        WORLD,
    ),
    Mutation(
        "drain-begins-anew",
        "what is sorted while the service drains is sent",
        "timerd/engine/gate.py",
        "                and not halted\n",
        "",
        Pytest("tests/engine/test_callbacks.py", because=HAS_NONE),
    ),
    Mutation(
        "parked-is-never-early",
        "what is parked stays so when the wall clock goes back behind its time",
        "timerd/engine/lane.py",
        "        self._due.push(early)\n        self._unpark_early(wall_ms)\n        self.changed = True\n",
        "        self._due.push(early)\n        self.changed = True\n",
        MODEL,
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
        MODEL,
    ),
    Mutation(
        "block-outlives-the-delivery",
        "a newer generation is still held back when the older one's callback has ended",
        "timerd/engine/settling.py",
        "    if gone:\n        _unblock(draft, gone)\n",
        "",
        MODEL,
    ),
    Mutation(
        "mapped-addresses-are-public",
        "an IPv4 address in an IPv6 one is not looked at",
        "timerd/engine/address.py",
        "            what = _what(inner)\n        else:",
        "            what = None\n        else:",
        Pytest("tests/engine/test_address.py", because=HAS_NONE),
    ),
    Mutation(
        "names-only-are-guarded",
        "the address of a socket is not looked at, since names were",
        "timerd/guard.py",
        "    check(targets, where[0])\n    return socket.socket",
        "    return socket.socket",
        GUARD,
    ),
    Mutation(
        "one-public-address-is-enough",
        "a name with one address that is allowed may be reached at all of them",
        "timerd/guard.py",
        '                forbidden = ForbiddenAddress(f"{host}: {error}")\n                continue\n',
        '                forbidden = ForbiddenAddress(f"{host}: {error}")\n',
        GUARD,
    ),
)
