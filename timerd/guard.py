"""The guard of callbacks' connections: no address is connected to that `Targets` does not let through.

It stands where a connection is made, for every attempt, and it looks at addresses, never at names. What a name stands
for is looked up once: the addresses that pass are the addresses that are tried (`GuardedResolver`), and each is looked
at once more when its socket is made (`open_socket`), which is also the way of addresses that stand in the URL itself.
So neither a name that changes its mind (DNS rebinding), nor one with several addresses, nor an odd way to write an
address leads past it.

Look-ups have threads of their own, a bounded number: a name server that does not answer must hold up neither
processors nor the exit of the process, which the usual pools wait for.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

from timerd.engine.address import Targets

LOOKUPS_MAX: Final = 64  # at once; a host has at most its share of them, for its breaker opens

AddrInfo = tuple[Any, Any, Any, str, Any]
LookUp = Callable[[str, int, int], list[AddrInfo]]


class ForbiddenAddress(OSError):
    """Nothing may be sent there."""


def open_socket(targets: Targets, address: AddrInfo) -> socket.socket:
    """A socket for this very address. Raises ForbiddenAddress."""
    family, type, protocol, _, where = address
    check(targets, where[0])
    return socket.socket(family, type, protocol)


def check(targets: Targets, address: str) -> None:
    """Raises ForbiddenAddress unless this is an address, plainly written, that may be connected to."""
    try:
        refusal = targets.refusal(ip_address(address.partition("%")[0]))
    except ValueError:
        refusal = f"{address[:64]!r} is no plainly written address"
    if refusal:
        raise ForbiddenAddress(refusal)


class GuardedResolver(AbstractResolver):
    """A name's addresses, without those that are not allowed. Belongs to one loop."""

    def __init__(self, targets: Targets, look_up: LookUp | None = None) -> None:
        self._targets = targets
        self._look_up = look_up or _look_up
        self._slots = asyncio.Semaphore(LOOKUPS_MAX)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises ForbiddenAddress if the name has addresses and none of them is allowed, OSError if it has none."""
        found: list[ResolveResult] = []
        forbidden: ForbiddenAddress | None = None
        for kind, _, protocol, _, where in await self._run(host, port, family):
            try:
                check(self._targets, where[0])
            except ForbiddenAddress as error:
                forbidden = ForbiddenAddress(f"{host}: {error}")
                continue
            flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
            found.append(
                ResolveResult(hostname=host, host=where[0], port=port, family=kind, proto=protocol, flags=flags)
            )
        if not found:
            raise forbidden or OSError(f"{host} has no address")
        return found

    async def close(self) -> None:
        """Nothing is held; look-ups under way end by themselves."""

    async def _run(self, host: str, port: int, family: int) -> list[AddrInfo]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[list[AddrInfo]] = loop.create_future()
        await self._slots.acquire()

        def tell(found: list[AddrInfo], error: Exception | None) -> None:
            self._slots.release()
            if ended.done():
                return
            if error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(found)

        def work() -> None:
            found: list[AddrInfo] = []
            error: Exception | None = None
            try:
                found = self._look_up(host, port, family)
            except (OSError, UnicodeError) as wrong:
                error = wrong if isinstance(wrong, OSError) else OSError(f"{host} is no name")
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(tell, found, error)

        threading.Thread(target=work, name="look-up", daemon=True).start()
        return await ended


def _look_up(host: str, port: int, family: int) -> list[AddrInfo]:
    return socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
