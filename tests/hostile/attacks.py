"""The attacks: each keeps a server busy with one kind of abuse, and counts what the server did about it.

`python -m tests.hostile.attacks NAME URL SECONDS` runs one in a process of its own: it says "ready", goes on for so
long, and prints the counts as JSON.
"""

import asyncio
import contextlib
import functools
import gzip
import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.hostile.wire import JSON, Wire, head, request

FAR = 2_050_000_000_000
MAX_BODY = 16 << 20
MAX_PAYLOAD = 64 << 10


@functools.cache
def limit_cases() -> list[tuple[bytes, int]]:
    """Every documented bound of a request, at it and one beyond, with the status that is due."""
    item = {"type": "t", "fire_at": FAR}
    cases: list[tuple[bytes, int]] = []
    for over in (0, 1):
        long_id = {"id": "i" * (256 + over), **item}
        large = {"id": "p", **item, "payload": "x" * (MAX_PAYLOAD - 2 + over)}
        wide = {"id": "é" * (128 + over), **item}
        many = {"ids": [str(n) for n in range(10_000 + over)]}
        full = {"timers": [{"id": f"full:{n}", **item} for n in range(10_000 + over)]}
        cases += [
            (request("POST", "/v1/timers", {"timers": [long_id]}), 422 if over else 200),
            (request("POST", "/v1/timers", {"timers": [large]}), 422 if over else 200),
            (request("POST", "/v1/timers", {"timers": [wide]}), 422 if over else 200),
            (request("POST", "/v1/timers", full), 422 if over else 200),
            (request("POST", "/v1/timers:cancel", many), 422 if over else 200),
            (request("GET", f"/v1/timers?page_size={1000 + over}"), 422 if over else 200),
            (request("POST", "/v1/timers", b" " * (MAX_BODY + over)), 413 if over else 400),
        ]
    return cases


class Attack:
    """One attack's target and what came of it so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: Counter[str] = Counter()
        self.ready = asyncio.Event()

    async def wire(self) -> Wire:
        return await Wire.open(self.url)

    async def reply(self, wire: Wire) -> int:
        """The next answer's status, counted; 0 when there is none."""
        try:
            status = (await wire.reply()).status
        except (asyncio.IncompleteReadError, ConnectionError):
            self.seen["closed"] += 1
            return 0
        self.seen[str(status)] += 1
        return status

    async def again(self, once: Callable[[], Awaitable[None]], pause_s: float = 0) -> None:
        while True:
            try:
                await once()
            except (ConnectionError, asyncio.IncompleteReadError):
                self.seen["closed"] += 1
            await asyncio.sleep(pause_s)

    async def many(self, count: int, once: Callable[[], Awaitable[None]], pause_s: float = 0) -> None:
        await asyncio.gather(*(self.again(once, pause_s) for _ in range(count)))

    async def drip(self, wire: Wire, data: bytes, pause_s: float) -> None:
        """A byte at a time, until the server has had enough."""
        for at in range(len(data)):
            if wire.reader.at_eof():
                break
            await wire.send(data[at : at + 1])
            await asyncio.sleep(pause_s)

    # ---- slow

    async def slow_heads(self) -> None:
        async def once() -> None:
            async with await self.wire() as wire:
                await self.drip(wire, head("GET", "/healthz", "X: " + "x" * 1000), 1)
                await self.reply(wire)

        await self.many(500, once, 1)

    async def slow_bodies(self) -> None:
        async def once() -> None:
            async with await self.wire() as wire:
                await wire.send(head("PUT", "/v1/timers/slow", JSON, "Content-Length: 1000"))
                await self.drip(wire, b" " * 1000, 1)
                await self.reply(wire)

        await self.many(500, once, 1)

    async def unread_answers(self) -> None:
        timers = [{"id": f"u{n}", "type": "t", "fire_at": FAR, "payload": "x" * 2_000} for n in range(100)]
        async with await self.wire() as wire:
            await wire.ask(request("POST", "/v1/timers", {"timers": timers}))

        async def once() -> None:
            async with await self.wire() as wire:
                wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
                wire.writer.write(request("GET", "/v1/timers?page_size=100") * 1000)
                self.seen["asked"] += 1000
                await asyncio.sleep(60)

        await self.many(50, once)

    # ---- odd

    async def half_closed(self) -> None:
        async def once() -> None:
            async with await self.wire() as wire:
                await wire.send(request("GET", "/healthz") + request("PUT", "/v1/timers/h", b"{}")[:-1])
                wire.writer.write_eof()
                await self.reply(wire)
                await self.reply(wire)

        await self.many(10, once, 0.02)

    async def no_http(self) -> None:
        kinds = [b"\x16\x03\x01\x02\0\x01", b"PRI * HTTP/2.0\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"\0" * 2000]

        async def once() -> None:
            async with await self.wire() as wire:
                await wire.send(kinds[sum(self.seen.values()) % len(kinds)])
                await self.reply(wire)

        await self.many(10, once, 0.02)

    async def odd_forms(self) -> None:
        body = gzip.compress(b"{}")
        forms = [
            request("PUT", "/v1/timers/z", body, "Content-Encoding: gzip"),
            head("GET", "/healthz", version="1.0"),
            head("GET", f"{self.url}/v1/status"),
            head("PUT", "/v1/timers/e", JSON, "Content-Length: 2", "Expect: 100-continue") + b"{}",
            head("GET", "/healthz", "Connection: Upgrade", "Upgrade: h2c"),
        ]

        async def once() -> None:
            for form in forms:
                async with await self.wire() as wire:
                    await wire.send(form)
                    if await self.reply(wire) == 100:
                        await self.reply(wire)

        await self.many(5, once, 0.05)

    async def wrong_lengths(self) -> None:
        async def once() -> None:
            for length in (1, 100, 10**15):
                async with await self.wire() as wire:
                    await wire.send(head("PUT", "/v1/timers/w", JSON, f"Content-Length: {length}") + b"{}  x")
                    wire.writer.write_eof()
                    await self.reply(wire)

        await self.many(5, once, 0.05)

    # ---- large

    async def huge_heads(self) -> None:
        async def once() -> None:
            async with await self.wire() as wire:
                await wire.send(head("GET", "/healthz", "X: " + "x" * (1 << 20)))
                await self.reply(wire)

        await self.many(4, once, 0.05)

    async def endless_chunks(self) -> None:
        async def once() -> None:
            async with await self.wire() as wire:
                await wire.send(head("POST", "/v1/timers", JSON, "Transfer-Encoding: chunked"))
                while not wire.reader._buffer:  # type: ignore[attr-defined]  # until it says something
                    await wire.send(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
                    await asyncio.sleep(0.002)
                await self.reply(wire)

        await self.many(4, once)

    async def limits(self) -> None:
        cases = limit_cases()

        async def once() -> None:
            for data, expected in cases:
                async with await self.wire() as wire:
                    await wire.send(data)
                    status = await self.reply(wire)
                    if status != expected:
                        self.seen[f"{status} instead of {expected}"] += 1
                await asyncio.sleep(0.2)

        await self.many(1, once)

    # ---- many

    async def pipelined(self) -> None:
        segment = request("GET", "/healthz") * 300
        arm = request("PUT", "/v1/timers/pipelined", {"type": "t", "fire_at": FAR})

        async def once() -> None:
            async with await self.wire() as wire:
                while True:
                    await wire.send(segment + arm)
                    for _ in range(301):
                        if not await self.reply(wire):
                            return
                    await asyncio.sleep(0.1)

        await self.many(2, once)

    async def connects(self) -> None:
        async def once() -> None:
            async with await self.wire():
                self.seen["connected"] += 1

        await self.many(20, once, 0.01)

    async def idle(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = min(10_000, soft - 100)

        async def once() -> None:
            async with await self.wire() as wire:
                self.seen["connected"] += 1
                await wire.ends()
                self.seen["closed"] += 1

        tasks = []
        for n in range(wanted):  # a hundred at a time, as fast as they are taken
            tasks.append(asyncio.create_task(self.again(once, 1)))
            if n % 100 == 99:
                await asyncio.sleep(0.05)
        self.ready.set()
        await asyncio.gather(*tasks)


BUILT_UP = ("idle",)
"""Attacks that begin once they stand, not while they are being built up."""
BUILD_UP_S = 30
NAMES = (
    *("slow_heads", "slow_bodies", "unread_answers", "half_closed", "no_http", "odd_forms", "wrong_lengths"),
    *("huge_heads", "endless_chunks", "limits", "pipelined", "connects", "idle"),
)


async def main(name: str, url: str, seconds: float) -> None:
    attack = Attack(url)
    attacking = asyncio.create_task(getattr(attack, name)())
    if name in BUILT_UP:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(attack.ready.wait(), BUILD_UP_S)
    print("ready", flush=True)
    await asyncio.wait([attacking], timeout=seconds)
    if attacking.done():
        attacking.result()
    attacking.cancel()
    print(json.dumps(attack.seen), flush=True)
    os._exit(0)  # ten thousand connections are not worth an orderly end


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
