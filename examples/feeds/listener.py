"""The service's web server: uvicorn, within a task of this process."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

# timerd waits for the answers of open deliveries when it ends; this is for one that was killed and doesn't read them.
SHUTDOWN_S_MAX = 5


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program around it."""
        yield


@asynccontextmanager
async def listening(app: Callable[..., Awaitable[Any]], host: str, port: int) -> AsyncIterator[str]:
    """Serve an ASGI app while the block runs; gives its URL. Port 0 takes a free one."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=SHUTDOWN_S_MAX
    )
    server = _Server(config)
    with socket.create_server((host, port), backlog=128) as listener:
        bound: int = listener.getsockname()[1]
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://{host}:{bound}/"
        finally:
            server.should_exit = True
            await task


def free_port(host: str) -> int:
    """A port nobody listens on just now, for a child that has to be told one."""
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
