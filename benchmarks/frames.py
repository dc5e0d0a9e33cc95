"""What a timer takes in frames, and so in a stream: the codec's own bytes, for ids of 15 bytes and a type of 8.

No clock and no machine in it: the same everywhere.
"""

from typing import Final

from benchmarks.figure import Round
from benchmarks.server import Place
from timerd.engine.record import Armed, Checkpoint, Fired, Totals
from timerd.engine.timer import BodyRef, Payload, Timer
from timerd_cluster.message import OVERHEAD_BYTES, encode
from timerd_storage.codec import encode as encode_frame

TIMERS: Final = 1_000
TYPE: Final = "reminder"
FIRE_AT: Final = 1_800_000_000_000
GENERATION: Final = 1 << 52
PAYLOADS: Final[dict[str, Payload]] = {
    "no payload": None,
    "a payload of 100 bytes": b"x" * 100,
    "a payload of 500 bytes": b"x" * 500,
    "a body": BodyRef(1 << 40, 1 << 20, 2_000, b"d" * 16),
}


def timers(payload: Payload) -> list[Timer]:
    """Timers as they wait."""
    return [Timer(FIRE_AT + n, GENERATION + n, f"trigger:{n:07d}", TYPE, payload) for n in range(TIMERS)]


async def run(place: Place) -> Round:
    """One round; the place does not matter."""
    found: Round = {}
    ids = [timer.id for timer in timers(None)]
    for name, payload in PAYLOADS.items():
        some = timers(payload)
        slice_ = Checkpoint([1], some, 0, 1, 0, 0, {TYPE: Totals()})
        for what, record in (
            ("armed", Armed(some)),
            ("fired and re-armed", Fired(TYPE, [], some)),
            ("in a slice", slice_),
        ):
            assert encode([record]) == encode_frame([record]), "a turn in a stream and a frame in a file are one format"
            found[f"frame bytes of a timer {what}, {name}"] = (len(encode([record])) / TIMERS, "bytes", 0.0)
    found["frame bytes of a timer fired"] = (len(encode([Fired(TYPE, ids)])) / TIMERS, "bytes", 0.0)
    found["frame bytes of a message beside its records"] = (float(OVERHEAD_BYTES), "bytes", 0.0)
    return found
