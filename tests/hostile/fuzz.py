"""The fuzzer: seeds, changed at random; what behaves in a new way becomes a seed. The same seed gives the same run.

Where atheris is installed, `guided.py` looks for what this one can't guess.
"""

import base64
import random
import resource
import time
import traceback
from collections.abc import Hashable
from typing import NamedTuple

from tests.hostile.targets import TARGETS

SLOW_S = 2.0
MEMORY_BYTES_MAX = 512 << 20
BYTES_MAX = 1 << 16
CORPUS_MAX = 2_000
TOKENS = [
    *(b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-0", b"1E+", b"0x1", b"null", b"true", b'""', b"{}", b"[]"),
    *(b'"\\ud800"', b'"\\udc00\\ud800"', b"\xed\xa0\x80", b"\xff", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf"),
    *(b'"id":"b",', b'"id":1,', b'"payload":', b'"fire_at":', b'"delay":-1,', b'"status":"rearm",', b'"x":0,'),
    *(b"9" * 400, b"18446744073709551616", b"9007199254740993", b"-9223372036854775809", b"0.1e-400", b"1" * 5000),
    *(b"[" * 2000, b'{"a":' * 2000, b"\x91" * 2000, b"\x81\xa1a" * 1000, b"x" * 300, b"\\u0000", b"\x00", b"\x7f"),
    *(b"\xc1", b"\xc7\x08\xff", b"\xd6\xff\0\0\0\0", b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"),
    *(b"\xca\x7f\xc0\0\0", b"\r\n", b"\r\n\r\n", b"\n", b"Content-Length: 5\r\n", b"Expect: 100-continue\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"),
    *(b"0\r\n\r\n", b"HTTP/1.0", b"CONNECT ", b"%2e", b"\xf7TF\xb1", b"\xf7TB\xb1", b"timerdLG", b"\xff" * 8),
    *(b"2026-02-30T24:00:60Z", b"1.0000000000000001s", b"Sat, 31"),
]  # fmt: skip


class Failure(NamedTuple):
    """An input that a target did not take as it must."""

    target: str
    data: bytes
    why: str

    @property
    def replay(self) -> str:
        """The command that shows it again."""
        return f"python -m tests.hostile fuzz --target {self.target} --replay {base64.b64encode(self.data).decode()}"


class Run(NamedTuple):
    """What one target's run came to."""

    executions: int
    behaviours: int
    failures: list[Failure]


def mutated(rng: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    """`data`, changed in a few places."""
    for _ in range(1 + rng.randrange(4)):
        at = rng.randrange(len(data) + 1)
        until = min(len(data), at + rng.choice((1, 1, 2, 4, 16, 100)))
        match rng.randrange(9):
            case 0 if data:
                at = rng.randrange(len(data))
                data = data[:at] + bytes((data[at] ^ (1 << rng.randrange(8)),)) + data[at + 1 :]
            case 1:
                data = data[:at] + rng.randbytes(1 + rng.randrange(4)) + data[at:]
            case 2:
                data = data[:at] + data[until:]
            case 3:
                data = data[:at] + data[at:until] * (1 + rng.randrange(5)) + data[until:]
            case 4:
                other = rng.choice(corpus)
                data = data[:at] + other[rng.randrange(len(other) + 1) :]
            case 5 | 6:
                data = data[:at] + rng.choice(TOKENS) + data[until if rng.random() < 0.5 else at :]
            case 7:
                data = data[:at] + rng.randbytes(until - at) + data[until:]
            case _:
                data = data[:at] if rng.random() < 0.3 else data[:at] + data[at:until] + data[at:]
    return data[:BYTES_MAX]


def once(name: str, data: bytes) -> tuple[Hashable, Failure | None]:
    """One execution: what became of it, or how it failed."""
    started = time.process_time()
    try:
        behaviour = TARGETS[name].run(data)
    except Exception:
        return None, Failure(name, data, traceback.format_exc(limit=-6))
    took = time.process_time() - started
    if took > SLOW_S:
        return None, Failure(name, data, f"it took {took:.1f} s of processor time")
    return behaviour, None


def run(name: str, seed: int, executions: int | None = None, seconds: float | None = None) -> Run:
    """So many executions, or as many as fit. Ends at the third failure."""
    rng = random.Random(f"{name} {seed}")
    corpus = list(TARGETS[name].seeds)
    seen: set[Hashable] = set()
    failures: list[Failure] = []
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    until = None if seconds is None else time.monotonic() + seconds
    done = 0
    while (executions is None or done < executions) and (until is None or time.monotonic() < until):
        data = corpus[done] if done < len(TARGETS[name].seeds) else mutated(rng, rng.choice(corpus), corpus)
        behaviour, failure = once(name, data)
        done += 1
        if failure is not None:
            failures.append(failure)
            if len(failures) == 3:
                break
        elif behaviour not in seen and len(corpus) < CORPUS_MAX:
            seen.add(behaviour)
            corpus.append(data[:4096])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - memory
    if grown > MEMORY_BYTES_MAX:
        failures.append(Failure(name, b"", f"memory grew by {grown >> 20} MiB"))
    return Run(done, len(seen), failures)
