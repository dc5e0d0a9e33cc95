"""The capacity model: what R fires a second take in nodes, shards, messages, bytes, disk and memory. Pure arithmetic.

It knows no machine. What was measured comes in as constants (constants.json says by which benchmark each); what is
left here are relations, each with its reason. docs/capacity.md says what they mean, and where the model is weak.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

US: Final = 1_000_000
INLINE_BYTES: Final = 512  # a larger payload is a body: a place in the frame, its bytes in a stream beside it
TURN_KIB_MAX: Final = 512.0  # no larger turns were measured
NODES_MAX: Final = 1_000
SHARDS_MAX: Final = 1_024
RATE_MAX: Final = 1e9


class Load(NamedTuple):
    """What is asked for."""

    rate: float
    """Fires a second, kept up."""
    pending: float
    rearmed: float = 1.0
    """The part of fires that the answer arms again; the rest is armed over HTTP, once each."""
    payload: int = 0
    """Bytes of JSON."""
    batch: int = 800
    """Timers in a delivery."""
    request: int = 1_000
    """Timers in a request that arms."""
    routed: bool = False
    """Clients send each timer to the node that has its shard."""
    share: float = 0.6
    """How busy a node, a NATS server's cores and its disk may be."""
    spare: int = 1
    """Nodes that may be missing."""
    replicas: int = 3
    nats_cores: int = 4
    """Of each NATS server."""
    shards: int | None = None
    """None: as the model would choose."""


class Plan(NamedTuple):
    """What it takes."""

    nodes: int
    shards: int
    node_cores: float
    """The busiest node, with all of them there."""
    node_cores_short: float
    """The same with `spare` of them missing."""
    cores: float
    """All nodes together."""
    forwarded: float
    """The part of arms that go to another node than the one that was asked."""
    memory: float
    """Bytes of a node, with `spare` of them missing."""
    messages: float
    """A second, into all streams together."""
    messages_a_stream: float
    stream_limit: float
    """How many a stream takes one after the other."""
    timers_a_message: float
    bytes: float
    """A second, sent to NATS."""
    bytes_written: float
    """A second, on all disks together."""
    nats_servers: int
    nats_cores: float
    """All servers together."""
    syncs: float
    """A second, on each disk."""
    disk: float
    """Bytes on each NATS server, at the most."""
    takeover_s: float
    """From a kill -9 of a node until the last of its shards fires elsewhere."""
    files_cores: float
    """The same load on one node that keeps its log in files; above 1 it can't."""


class Impossible(ValueError):
    """No number of nodes that the model knows is enough."""


def frame_bytes(payload: int, constants: Mapping[str, float]) -> float:
    """Of a timer that is armed, re-armed, or in a slice."""
    if payload > INLINE_BYTES:
        return constants["frame_body"]
    return constants["frame_armed"] + (payload + 2 if payload else 0)  # msgpack says its length


def plan(load: Load, constants: Mapping[str, float]) -> Plan:
    """The fewest nodes that can lose `spare` of them and still be less busy than `share`. Raises Impossible."""
    for working in range(1, NODES_MAX + 1):
        nodes = working + load.spare
        shards = load.shards or _shards(nodes)
        if shards >= nodes and _node_cores(load, constants, working, shards) <= load.share:
            return _described(load, constants, nodes, shards)
    raise Impossible("more than a thousand nodes, or more nodes than shards; larger batches and requests take fewer")


def bearable(load: Load, constants: Mapping[str, float], nodes: int) -> tuple[Load, Plan]:
    """The load with the largest rate, in three digits, that so many nodes bear, and what it takes beside them; a minute
    of it is pending at the least. Raises Impossible."""
    if nodes <= load.spare:
        raise Impossible("there must be more nodes than nodes that may be missing")
    shards = load.shards or _shards(nodes)
    if shards < nodes:
        raise Impossible("more nodes than shards")
    working = nodes - load.spare
    low, high = 0.0, RATE_MAX
    for _ in range(100):
        middle = (low + high) / 2
        if _node_cores(load._replace(rate=middle), constants, working, shards) <= load.share:
            low = middle
        else:
            high = middle
    if low < 1:
        raise Impossible("that many shards alone keep these nodes as busy as they may be")
    unit = 10.0 ** (math.floor(math.log10(low)) - 2)
    rate = math.floor(low / unit) * unit
    found = load._replace(rate=rate, pending=load.pending or 60 * rate)
    return found, _described(found, constants, nodes, shards)


def _shards(nodes: int) -> int:
    """Four a node are even enough when one is missing; each has a message for every batch, so no more than that."""
    return min(SHARDS_MAX, max(24, 4 * nodes))


def _forwarded(load: Load, nodes: int) -> float:
    return 0.0 if load.routed else (nodes - 1) / nodes


def _cost_us(load: Load, constants: Mapping[str, float], nodes: int) -> float:
    """CPU of a fire and of the arm that belongs to it, wherever it is spent; messages come beside it."""
    armed = constants["arm"] + _forwarded(load, nodes) * constants["forward"]
    return load.rearmed * constants["loop"] + (1 - load.rearmed) * (constants["fire"] + armed)


def _node_cores(load: Load, constants: Mapping[str, float], nodes: int, shards: int) -> float:
    """The node with most shards: they do not divide evenly."""
    return _cores(load, constants, nodes, shards) * math.ceil(shards / nodes) / shards


def _cores(load: Load, constants: Mapping[str, float], nodes: int, shards: int) -> float:
    """All nodes together."""
    each = _messages(load, constants, nodes, shards)[0] * constants["node_message"] + constants["shard_idle"]
    return (load.rate * _cost_us(load, constants, nodes) + shards * each) / US


def _described(load: Load, constants: Mapping[str, float], nodes: int, shards: int) -> Plan:
    short = max(1, nodes - load.spare)
    frame = frame_bytes(load.payload, constants)
    messages_a_stream, stream_limit = _messages(load, constants, nodes, shards)
    sent = _bytes(load, constants, frame, shards * messages_a_stream)
    messages = max(shards * messages_a_stream, sent / 1024 / TURN_KIB_MAX)
    nats_us = load.replicas * (messages * constants["nats_message"] + sent / 1024 * constants["nats_kib"])
    nats_us += load.replicas * shards * constants["nats_shard_idle"]
    synced = load.replicas * messages
    servers = max(
        load.replicas,
        math.ceil(nats_us / US / load.share / load.nats_cores),
        math.ceil(synced / load.share / constants["syncs"]),
    )
    return Plan(
        nodes=nodes,
        shards=shards,
        node_cores=_node_cores(load, constants, nodes, shards),
        node_cores_short=_node_cores(load, constants, short, shards),
        cores=_cores(load, constants, nodes, shards),
        forwarded=_forwarded(load, nodes),
        memory=_memory(load, constants, short, shards),
        messages=messages,
        messages_a_stream=messages / shards,
        stream_limit=stream_limit,
        timers_a_message=load.rate / messages if messages else 0.0,
        bytes=sent,
        bytes_written=sent * load.replicas,
        nats_servers=servers,
        nats_cores=nats_us / US,
        syncs=synced / servers,
        disk=_disk(load, constants, frame, shards) * load.replicas / servers,
        takeover_s=_takeover_s(load, constants, frame, nodes, short, shards),
        files_cores=_files_cores(load, constants),
    )


def _messages(load: Load, constants: Mapping[str, float], nodes: int, shards: int) -> tuple[float, float]:
    """Into each stream, a second; and how many it takes one after the other.

    A batch's timers are of all shards of its node, and so is what a request arms, on each node that it is split to.
    So a shard has a turn for each batch of its node and for each request; while one is being stored, the next gathers.
    """
    batches = load.rate / load.batch / nodes
    requests = load.rate * (1 - load.rearmed) / load.request / (nodes if load.routed else 1)
    limit = 1000 / constants["append"]
    return min(batches + requests, limit), limit


def _bytes(load: Load, constants: Mapping[str, float], frame: float, messages: float) -> float:
    """Sent to NATS, a second: frames, slices of them, message heads, bodies."""
    arms = (1 + constants["slices"]) * frame
    records = load.rate * (arms + (1 - load.rearmed) * constants["frame_fired"])
    bodies = load.rate * (1 - load.rearmed) * load.payload * constants["bodies_written"]
    return records + messages * constants["frame_message"] + (bodies if load.payload > INLINE_BYTES else 0)


def _disk(load: Load, constants: Mapping[str, float], frame: float, shards: int) -> float:
    """One copy of everything, at the most (promise 9): three times what lives and two segments a shard; bodies."""
    frames = 3 * load.pending * frame + 2 * shards * constants["segment"]
    bodies = load.pending * load.payload * constants["bodies_kept"] + 2 * shards * constants["segment"]
    return frames + (bodies if load.payload > INLINE_BYTES else 0)


def _memory(load: Load, constants: Mapping[str, float], nodes: int, shards: int) -> float:
    inline = load.payload + 33 if 0 < load.payload <= INLINE_BYTES else 0  # a bytes object
    largest = math.ceil(shards / nodes)
    timers = load.pending * largest / shards * (constants["memory_timer"] + inline)
    return constants["memory_node"] + timers + largest * constants["memory_shard"]


def _takeover_s(load: Load, constants: Mapping[str, float], frame: float, nodes: int, short: int, shards: int) -> float:
    """Held for dead, a lease, and its shards read and applied by those who are left, all at once."""
    lost = math.ceil(shards / nodes)
    timers = load.pending * math.ceil(lost / short) / shards
    read = 3 * timers * frame / 1e6 / constants["read"]
    return constants["dead"] + constants["lease"] + read + timers * constants["replay"] / US


def _files_cores(load: Load, constants: Mapping[str, float]) -> float:
    once = constants["fire_files"] + constants["arm_files"]
    return load.rate * (load.rearmed * constants["loop_files"] + (1 - load.rearmed) * once) / US
