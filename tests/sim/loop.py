"""A loop on virtual time: waiting costs nothing, and the same events come in the same order every time.

The selector never waits. When nothing is ready it lets the time pass until the next timer, so a day goes by as fast as
its events can be handled. When there is no next timer either, nothing will ever happen again: that is a deadlock, and
an error. So is a loop that goes round and round without letting time pass.

What would go to the system's network goes to `network`.
"""

import asyncio
import selectors
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from tests.sim.network import Network

ROUNDS_MAX: Final = 20_000  # rounds at one instant; the busiest instant of a run has some hundred
WAITS_MAX: Final = 500_000  # of a whole run; most have some ten thousand


class Stuck(Exception):
    """Deadlock, or a loop that never lets time pass."""


class _Selector(selectors.BaseSelector):
    """Adds what it should have waited to `now` (seconds)."""

    def __init__(self) -> None:
        self.now = 0.0
        self._rounds = 0
        self._waits = 0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck(f"deadlock at {self.now:.3f} s: nothing is ready and nobody waits for a time")
        if timeout > 0:
            self.now += timeout
            self._rounds = 0
            self._waits += 1
            if self._waits > WAITS_MAX:
                self._waits = 0
                raise Stuck(f"the loop has waited {WAITS_MAX} times by {self.now:.3f} s: something polls")
        else:
            self._rounds += 1
            if self._rounds > ROUNDS_MAX:
                self._rounds = 0
                raise Stuck(f"the loop spins at {self.now:.3f} s")
        return []


class _Future(asyncio.Future[Any]):
    """A future whose place in a set depends on when it was made, not on where in memory: sets of them have an order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        super().__init__(loop=loop)
        self._number = number

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` begins at 0. What raises in a callback is kept in `errors`."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        self.errors: list[BaseException] = []
        self.network: Network | None = None
        self._futures = 0
        self.tasks_made = 0
        super().__init__(self._virtual)
        self.set_exception_handler(self._note)

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual.now

    @property
    def waits(self) -> int:
        """How often it has waited for time to pass."""
        return self._virtual._waits

    def create_future(self) -> asyncio.Future[Any]:
        self._futures += 1
        return _Future(self, self._futures)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        assert self.network is not None, "nothing here has a network"
        return await self.network.getaddrinfo(host, port)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        assert self.network is not None, "nothing here has a network"
        await self.network.sock_connect(sock, address)

    async def create_connection(self, protocol_factory: Any, *args: Any, sock: Any = None, **options: Any) -> Any:
        assert self.network is not None, "nothing here has a network"
        return self.network.create_connection(protocol_factory, sock)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override]
        raise Stuck(f"a thread was asked for: {func!r}")

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # A task whose error nobody fetched is reported when it is collected, which is no moment of the run: whoever
        # made it looks at it. An error in a callback has nobody else.
        if "handle" in context and isinstance(error := context.get("exception"), BaseException):
            self.errors.append(error)
