"""timerd for tests: the service itself, in this process, in memory, on a clock that you turn.

    pytest_plugins = ["timerd_client.testing"]  # in conftest.py

    def test_a_reminder_after_sixty_days(virtual_timerd):
        due = virtual_timerd.collect("reminder")
        virtual_timerd.client.arm("order:42", "reminder", delay=timedelta(days=60))
        virtual_timerd.advance(timedelta(days=59))
        assert due == []
        virtual_timerd.advance(timedelta(days=1))
        assert [timer.id for timer in due] == ["order:42"]

The clock stands still between turns. A turn returns when everything that is due by then has been delivered, retries
and re-arms on the way included. Deliveries to processors that were added here, and to mounted apps, stay inside the
process; any other URL is really called. Nothing can be asked of it outside of its `with`, and a handler can't turn the
clock: the turn would wait for the handler (RuntimeError). `timerd` has to be installed beside this package.
"""

import asyncio
import threading
from collections.abc import AsyncIterable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

import httpx

from timerd_client._async import AsyncTimerd
from timerd_client._instants import EPOCH, Duration, duration, instant_ms
from timerd_client._processor import App, Handler, Message, processor
from timerd_client._receiver import Batch, DueTimer
from timerd_client._sync import Timerd

if TYPE_CHECKING:
    from timerd.in_process import InProcess
    from timerd.ports import Answer, Request

T = TypeVar("T")

URL = "http://127.0.0.1:8470"  # nothing listens there; the service checks whom a request means
PROCESSORS = "http://processor.invalid/"
TIMEOUT_S = 60.0  # of the clients: nothing is lost by waiting for a debugger

_within: "ContextVar[_Delivery | None]" = ContextVar("timerd_delivery", default=None)


class AsyncVirtualTimerd:
    """A timerd of its own for tests that are coroutines; use it as an async context manager.

    `now` is where its clock begins, by default at the time. Callbacks may go to public addresses, to what is mounted,
    and to the networks in `callback_allow`.
    """

    def __init__(self, *, now: datetime | None = None, callback_allow: Sequence[str] = ()) -> None:
        self._began_at = now
        self._callback_allow = callback_allow
        self._client: AsyncTimerd
        self._deliver: _AppDeliver
        self._running: InProcess | None = None

    async def __aenter__(self) -> Self:
        try:
            from timerd.in_process import InProcess
        except ImportError as error:
            raise ImportError(
                "timerd_client.testing runs timerd itself: install timerd beside timerd-client"
            ) from error
        self._deliver = _AppDeliver(self._callback_allow)
        began_ms = None if self._began_at is None else instant_ms(self._began_at)
        self._running = await InProcess.start(self._deliver, now_ms=began_ms, targets=self._deliver.targets)
        transport = httpx.ASGITransport(app=self._running.app)
        self._client = AsyncTimerd(URL, timeout=TIMEOUT_S, transport=transport)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        service, self._running = self._service, None
        await self._client.close()
        await service.stop()

    @property
    def client(self) -> AsyncTimerd:
        """Arms, cancels and asks, as in production."""
        assert self._service
        return self._client

    @property
    def now(self) -> datetime:
        """What the clock shows."""
        return _datetime(self._service.clock.now().wall_ms)

    async def process(self, type: str, handler: Handler, **options: Any) -> None:
        """Put a type whose deliveries go to `handler`, as with `processor`. `options` are those of `put_type`."""
        await self.client.put_type(type, url=self._deliver.add(type, processor(handler)), **options)

    async def collect(self, type: str, **options: Any) -> list[DueTimer]:
        """Put a type whose timers succeed, and are appended to the list that is returned."""
        due: list[DueTimer] = []
        await self.process(type, _Collector(due), **options)
        return due

    def mount(self, origin: str, app: App) -> None:
        """Let deliveries to `origin` ("https://api.example.com") go to an ASGI app of yours."""
        assert self._service
        self._deliver.mount(origin, app)

    async def advance(self, by: Duration | str) -> int:
        """Turn the clock, and deliver everything due by then; how many timers were fired."""
        from timerd.engine.instant import parse_duration

        return await self._turn_to(self._service.clock.now().wall_ms + parse_duration(duration(by)))

    async def advance_to(self, instant: datetime) -> int:
        """As `advance`, to an instant. One that has passed raises ValueError: the clock is not turned back."""
        wall_ms = instant_ms(instant)
        if wall_ms < self._service.clock.now().wall_ms:
            raise ValueError(f"the clock shows {self.now.isoformat()} and is not turned back")
        return await self._turn_to(wall_ms)

    async def _turn_to(self, wall_ms: int) -> int:
        from timerd.engine.timer import MAX_WALL_US
        from timerd.virtual_clock import ClockStopped

        if wall_ms * 1_000 >= MAX_WALL_US:
            raise ValueError("the clock can't be turned beyond the year 2200")
        delivery = _within.get()
        if delivery is not None and delivery.open and delivery.of is self._deliver:
            raise RuntimeError("a handler can't turn the clock: the turn would wait for the handler; do it in the test")
        try:
            return await self._service.turner.turn_to(wall_ms)
        except ClockStopped:
            raise RuntimeError("this timerd was closed during the turn") from None

    @property
    def _service(self) -> "InProcess":
        if self._running is None:
            raise RuntimeError("this timerd does not run: use it inside its `with`")
        return self._running


class VirtualTimerd:
    """A timerd of its own for plain tests; use it as a context manager, or take the fixture `virtual_timerd`.

    It runs on an event loop in a thread of its own, and so do handlers: coroutines there, plain functions in further
    threads.
    """

    def __init__(self, *, now: datetime | None = None, callback_allow: Sequence[str] = ()) -> None:
        self._inner = AsyncVirtualTimerd(now=now, callback_allow=callback_allow)
        self._client: Timerd
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="virtual-timerd", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        running = threading.Event()
        self._loop.call_soon_threadsafe(running.set)
        running.wait()
        try:
            self._run(self._inner.__aenter__())
        except BaseException:
            self._end()
            raise
        self._client = Timerd(URL, timeout=TIMEOUT_S, transport=_Bridge(self._loop, self._inner._service.app))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        try:
            self._run(self._inner.__aexit__(None, None, None))
        finally:
            self._end()

    @property
    def client(self) -> Timerd:
        """Arms, cancels and asks, as in production."""
        assert self._inner._service
        return self._client

    @property
    def now(self) -> datetime:
        """What the clock shows."""
        return self._inner.now

    def process(self, type: str, handler: Handler, **options: Any) -> None:
        """Put a type whose deliveries go to `handler`, as with `processor`. `options` are those of `put_type`."""
        self._run(self._inner.process(type, handler, **options))

    def collect(self, type: str, **options: Any) -> list[DueTimer]:
        """Put a type whose timers succeed, and are appended to the list that is returned."""
        return self._run(self._inner.collect(type, **options))

    def mount(self, origin: str, app: App) -> None:
        """Let deliveries to `origin` ("https://api.example.com") go to an ASGI app of yours."""
        self._inner.mount(origin, app)

    def advance(self, by: Duration | str) -> int:
        """Turn the clock, and deliver everything due by then; how many timers were fired."""
        return self._run(self._inner.advance(by))

    def advance_to(self, instant: datetime) -> int:
        """As `advance`, to an instant. One that has passed raises ValueError: the clock is not turned back."""
        return self._run(self._inner.advance_to(instant))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return _wait(coroutine, self._loop)

    def _end(self) -> None:
        _wait(self._loop.shutdown_default_executor(), self._loop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Collector:
    """A handler that never fails."""

    def __init__(self, due: list[DueTimer]) -> None:
        self._due = due

    async def __call__(self, batch: Batch) -> None:
        self._due.extend(batch.timers)


class _AppDeliver:
    """timerd's port for deliveries: to apps in this process, or on to HTTP."""

    def __init__(self, callback_allow: Sequence[str]) -> None:
        from timerd.deliver import HttpDeliver
        from timerd.engine.address import Targets, parse_network
        from timerd.in_process import MountedTargets

        self._apps: dict[str, App] = {}  # by URL, or by origin
        allowed = [parse_network(network) for network in callback_allow]
        self._http = HttpDeliver(Targets(allowed))
        self.targets = MountedTargets(allowed)
        """What callbacks may be armed for. At a port that is not mounted an address is still refused when it is due."""

    def add(self, type: str, app: App) -> str:
        """The URL at which the processor of a type is."""
        self._apps[PROCESSORS + type] = app
        return PROCESSORS + type

    def mount(self, origin: str, app: App) -> None:
        from timerd.engine.address import literal
        from timerd.engine.callback import host_of

        parts = urlsplit(origin)
        beyond = parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc
        if parts.scheme not in ("http", "https") or not parts.hostname or beyond:
            raise ValueError(f"not an origin such as https://api.example.com: {origin!r}")
        self._apps[host_of(origin)] = app
        if (address := literal(parts.hostname or "")) is not None:
            self.targets.mounted.add(address)

    async def post(self, request: "Request") -> "Answer":
        from timerd.engine.callback import host_of
        from timerd.ports import Answer

        app = self._apps.get(request.url) or self._apps.get(host_of(request.url))
        if app is None:
            return await self._http.post(request)
        delivery = _Delivery(self)
        before = _within.set(delivery)
        try:
            async with asyncio.timeout(request.timeout_ms / 1000):
                status, headers, body = await _call(app, request)
        except TimeoutError:
            return Answer(error="timeout", detail=f"no answer within {request.timeout_ms} ms")
        except Exception as error:  # as an ASGI server answers for an app that raises
            return Answer(status=500, body=f"{type(error).__name__}: {error}".encode())
        finally:
            delivery.open = False
            _within.reset(before)
        limit = request.answer_bytes_max
        return Answer(status=status, headers=headers, body=body[:limit], overlong=len(body) > limit)

    async def close(self) -> None:
        await self._http.close()


class _Delivery:
    """A delivery to an app; whatever the app calls can tell by `_within` that it is inside."""

    def __init__(self, of: _AppDeliver) -> None:
        self.of = of
        self.open = True


async def _call(app: App, request: "Request") -> tuple[int, Mapping[str, str], bytes]:
    """One request to an ASGI app: what it answers."""
    parts, body = urlsplit(request.url), request.body
    own = {name.lower(): value for name, value in request.headers.items()}
    given = {"host": parts.netloc, "content-length": str(len(body)), **own}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": parts.scheme,
        "path": unquote(parts.path) or "/",
        "raw_path": (parts.path or "/").encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
        "client": ("127.0.0.1", 0),
        "server": (parts.hostname, parts.port),
    }
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = next((message for message in sent if message["type"] == "http.response.start"), None)
    if start is None:
        raise RuntimeError("the app sent no response")
    answered = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start.get("headers", ())}
    return start["status"], answered, b"".join(message.get("body", b"") for message in sent if message is not start)


class _Bridge(httpx.BaseTransport):
    """From a thread to an ASGI app on a loop in another one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, app: Any) -> None:
        self._loop = loop
        self._transport = httpx.ASGITransport(app=app)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def handle() -> httpx.Response:
            response = await self._transport.handle_async_request(inner)
            assert isinstance(response.stream, AsyncIterable)
            body = b"".join([chunk async for chunk in response.stream])
            return httpx.Response(response.status_code, headers=response.headers, content=body)

        inner = httpx.Request(request.method, request.url, headers=request.headers, content=request.read())
        return _wait(handle(), self._loop)


def _wait(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """What a coroutine gives on a loop that runs in another thread."""
    wrong = None
    if not loop.is_running():
        wrong = "this timerd does not run: use it inside its `with`"
    elif asyncio._get_running_loop() is loop:
        wrong = "a coroutine would wait here for its own loop; let the handler be a plain function"
    if wrong is not None:
        coroutine.close()
        raise RuntimeError(wrong)
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def _datetime(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


with suppress(ImportError):  # the classes are of use without pytest, too
    import pytest

    @pytest.fixture
    def virtual_timerd() -> Iterator[VirtualTimerd]:
        """A timerd of its own for this test, on a clock that the test turns."""
        with VirtualTimerd() as timerd:
            yield timerd
