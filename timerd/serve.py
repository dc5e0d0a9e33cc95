"""The roof: joins log, catalogue, deliveries, node and API into one process, and ends it properly.

Ways to end: SIGTERM, SIGINT or SIGHUP (stop accepting, let open deliveries end, record them: exit 0; before it is ready
at once), a start that is refused (exit 2 to 5, one line that says why), and a log that failed (exit 70 at once, without
another word to any caller: what is in memory is ahead of the disk then).
"""

import asyncio
import contextlib
import functools
import gc
import os
import random
import resource
import signal
import socket
import ssl
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO, cast
from urllib.parse import urlsplit

import msgspec
import structlog
import uvicorn
import uvloop
from starlette.types import ASGIApp

from timerd import boot, dev, joining, listening
from timerd.clock import SystemClock
from timerd.config import Config, ConfigError, node_name
from timerd.deliver import HttpDeliver
from timerd.engine.address import Targets, parse_network
from timerd.engine.errors import (
    CatalogFull,
    CorruptLog,
    DirectoryLocked,
    IncompleteDirectory,
    LogFailed,
    UnreadableCatalog,
)
from timerd.engine.instant import parse_duration
from timerd.engine.secrecy import scrub
from timerd.engine.settings import Settings
from timerd.node import Node
from timerd.ports import Clock
from timerd.stderr import Stderr, keep_standard_descriptors, say
from timerd.store import CATALOG, OF_THE_CLUSTER, open_files, servers_of
from timerd.virtual_clock import VirtualClock
from timerd_api.app import create_app
from timerd_api.connection import Connection, Crowd
from timerd_api.handshake import TlsListener
from timerd_api.peers import PeerDoor
from timerd_api.problem import Problem
from timerd_api.schema import TypeBody
from timerd_api.service import Service
from timerd_api.settings import ApiSettings
from timerd_api.types import timer_type
from timerd_cluster.connection import NoAnswer
from timerd_storage.recover import Unreadable

EXIT_CONFIG: Final = 2
EXIT_LOCKED: Final = 3
EXIT_CORRUPT: Final = 4
EXIT_REFUSED: Final = 5
EXIT_FAILED: Final = 70
DESCRIPTORS_MAX: Final = 65_536
QUESTION_BYTES_MIN: Final = 32 << 20  # of another node: what it has taken as one request it asks for as one
CLOSE_REQUESTS_S: Final = 5  # requests in progress at a stop get this long
GC_THRESHOLD: Final = (100_000, 20, 50)  # timers are invisible to the collector; requests make little that is cyclic

log = structlog.get_logger()


def configure_logging(level: str, secrets: Sequence[str] = ()) -> None:
    """One logfmt line an event, on stderr; tracebacks as text, without local variables (they may hold payloads).

    Whatever a line is made of, no secret of ours leaves in it, nor any of `secrets`.
    """

    def scrubbed(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {name: scrub(value, secrets) if isinstance(value, str) else value for name, value in event.items()}

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            scrubbed,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, Stderr())),
    )


def run(config: Config, *, virtual: bool = False) -> int:
    """Serve until told to stop; the exit code. `virtual`: by a clock that stands still until it is turned."""
    keep_standard_descriptors()
    for number in _stop_signals(config):
        signal.signal(number, _stop_at_once)
    configure_logging(config.log_level, _secrets(config))
    try:
        if config.cluster is not None and virtual:
            raise ConfigError("--cluster: a clock that is turned has no cluster")
        if config.cluster is None and not (Path(config.data) / CATALOG).exists():
            listening.check_reach(config)  # before anything is made; else once the catalogue says what keys it has
        settings, api_settings = _settings(config)
        deliver = HttpDeliver(api_settings.targets, _callback_tls(config))
    except ConfigError as error:
        return _refuse(EXIT_CONFIG, str(error))
    try:
        return uvloop.run(_serve(config, settings, api_settings, deliver, virtual))
    except DirectoryLocked as error:
        return _refuse(EXIT_LOCKED, str(error))
    except Unreadable as error:
        return _refuse(EXIT_CORRUPT, f"the log can't be read: {error}")
    except CorruptLog as error:
        if config.cluster is not None:
            return _refuse(EXIT_CORRUPT, f"the log is damaged: {error}")
        return _refuse(
            EXIT_CORRUPT,
            f"the log is damaged: {error}\n"
            f"look at it with: timerd log inspect {config.data}\n"
            f"and give up what is behind the damage with: timerd log repair {config.data}",
        )
    except UnreadableCatalog as error:
        return _refuse(EXIT_CORRUPT, f"the catalogue can't be read: {error}")
    except IncompleteDirectory as error:
        where = config.data if config.cluster is None else f"cluster {config.cluster_prefix}"
        return _refuse(EXIT_CORRUPT, f"{where}: {error}")
    except LogFailed as error:
        return _refuse(EXIT_FAILED, f"the log failed: {error}")
    except (ConfigError, boot.WrongShards) as error:
        return _refuse(EXIT_CONFIG, str(error))
    except NoAnswer as error:
        return _refuse(
            EXIT_REFUSED,
            f"the NATS servers did not answer in time: {error}\n"
            "they may be starting, have no majority, or too much to do: start timerd again when they are well",
        )
    except (boot.WrongClock, CatalogFull, OSError, *OF_THE_CLUSTER) as error:
        return _refuse(EXIT_REFUSED, str(error))


def _secrets(config: Config) -> list[str]:
    """What no log line may show: the bootstrap key, and passwords of servers."""
    servers = [urlsplit(server) for server in servers_of(config)]
    given = [
        config.api_key.strip() if config.api_key else None,
        config.cluster_secret,
        *(server.password for server in servers),
    ]
    return [secret for secret in given if secret]


def _refuse(code: int, why: str) -> int:
    say(f"timerd: {why}")
    return code


def _stop_signals(config: Config) -> list[int]:
    """SIGHUP is the terminal that went away; under nohup it is to be ignored, and with a certificate it renews that."""
    if config.tls_cert is not None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to renew
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


def _stop_at_once(number: int, _: object) -> None:
    """Told to stop before it is ready. A log that a start was cut short on is one that a crash was: nothing is lost."""
    say(f"timerd: {signal.Signals(number).name} before it was ready; stopped")
    os._exit(0)


def _settings(config: Config) -> tuple[Settings, ApiSettings]:
    def duration(name: str, value: str) -> int:
        try:
            return parse_duration(value)
        except ValueError as error:
            raise ConfigError(f"--{name}: {error}") from None

    listening.check_certificate(config)
    horizon_ms = duration("max-horizon", config.max_horizon)
    settings = Settings(
        node=node_name(config),
        shards=config.shards,
        shard_capacity=config.shard_capacity,
        max_payload_bytes=config.max_payload,
        max_horizon_ms=horizon_ms,
        max_retry_after_ms=duration("max-retry-after", config.max_retry_after),
    )
    api_settings = ApiSettings(
        host=config.host,
        port=config.port,
        tls=config.tls_cert is not None,
        api_key=config.api_key,
        insecure=config.insecure,
        max_body_bytes=config.max_body,
        max_bodies_in_progress_bytes=max(256 << 20, config.max_body),
        max_payload_bytes=config.max_payload,
        max_horizon_ms=horizon_ms,
        targets=Targets([parse_network(network) for network in config.callback_allow]),
    )
    return settings, api_settings


def _callback_tls(config: Config) -> ssl.SSLContext:
    """What callbacks trust and show over TLS. Raises ConfigError."""
    context = ssl.create_default_context()
    try:
        if config.callback_ca is not None:
            context.load_verify_locations(config.callback_ca)
        if config.callback_cert is not None:
            context.load_cert_chain(config.callback_cert, config.callback_key)
    except (OSError, ValueError) as error:
        given = config.callback_cert if config.callback_ca is None else config.callback_ca
        raise ConfigError(f"--callback-ca or --callback-cert, {given}: {error}") from None
    return context


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers (the roof has its own) and without its ten looks a second at a flag."""

    def __init__(self, config: uvicorn.Config, crowd: Crowd) -> None:
        super().__init__(config)
        self.tls: ssl.SSLContext | None = None
        """What new connections are spoken to with, if TLS is."""
        self._crowd = crowd
        self.ready = asyncio.Event()
        self.leave = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.tls = self.config.ssl
        if self.tls is None:
            await super().startup(sockets)
        else:
            make = functools.partial(
                cast(Any, self.config.http_protocol_class),
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )
            self.servers = [
                cast(Any, TlsListener(listener, self.config.backlog, self.tls, make, self._crowd))
                for listener in sockets or ()
            ]
            self.started = True
        self.ready.set()

    async def main_loop(self) -> None:
        await self.leave.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _connections_max() -> int:
    """No more connections than leave as many descriptors again for files and deliveries."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2


def _raise_descriptor_limit() -> None:
    """As many descriptors as the system lets this process have; 1,024, a common default, is a few idle connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(
    config: Config, settings: Settings, api_settings: ApiSettings, deliver: HttpDeliver, virtual: bool
) -> int:
    _raise_descriptor_limit()
    listener = listening.bind(config)
    os.umask(0o077)  # payloads are in the log, secrets in the catalogue: they are nobody else's
    if config.cluster is not None:
        return await _serve_member(config, settings, api_settings, deliver, listener)
    clock: Clock
    if virtual:
        clock = dev.open_clock(Path(config.data))
    else:
        dev.check_real(Path(config.data))
        clock = SystemClock()
    store = await open_files(config)
    try:
        listening.check_reach(config, len(await store.catalog.keys()))
        node = await boot.start(settings, store.log, store.catalog, clock, deliver, random.random)
        await _put_types(node, config)
        turner = node.turner(clock) if isinstance(clock, VirtualClock) else None
        return await _serve_node(config, node, create_app(node, api_settings, turner), listener)
    finally:
        await store.catalog.close()


async def _serve_member(
    config: Config, settings: Settings, api_settings: ApiSettings, deliver: HttpDeliver, listener: socket.socket
) -> int:
    """The same as a node of a cluster."""
    if config.data != Config().data:
        log.info("data_not_used", data=config.data, reason="the servers of the cluster hold everything")
    joined = await joining.join(config, settings, deliver, SystemClock(), listener)
    try:
        listening.check_reach(config, len(joined.node.keys.known))
        await _put_types(joined.front, config)
        joined.front.ensemble = joined.ensemble
        joined.start()
        door = PeerDoor(joined.parts, joined.secret, max(QUESTION_BYTES_MIN, 2 * config.max_body))
        app = create_app(joined.front, api_settings, None, joined.front, door)
        return await _serve_node(config, joined.node, app, listener, joined)
    finally:
        await joined.close()


async def _put_types(service: Service, config: Config) -> None:
    """Types of the configuration file; what they leave unsaid about state and secrets stays as it is."""
    for name, fields in config.types.items():
        old = service.types.get(name)
        if old is not None and "state" not in fields:
            fields = {**fields, "state": old.state}
        try:
            type = timer_type(name, msgspec.convert(fields, TypeBody))
        except (Problem, msgspec.ValidationError) as error:
            raise ConfigError(f"type {name} in the configuration file: {error}") from None
        stored = await service.put_type(type, "signing_secrets" not in fields, None)
        if not isinstance(stored, tuple):
            raise ConfigError(f"type {name} in the configuration file: {stored.detail}")


async def _serve_node(
    config: Config, node: Node, app: ASGIApp, listener: socket.socket, joined: joining.Joined | None = None
) -> int:
    crowd = Crowd(_connections_max(), lambda: node.clock.now().wall_ms)
    server = _Server(
        uvicorn.Config(
            app,
            http=cast(Any, functools.partial(Connection, crowd=crowd)),
            ws="none",
            lifespan="off",
            access_log=False,
            proxy_headers=False,
            log_config=None,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=CLOSE_REQUESTS_S,
            ssl_certfile=config.tls_cert,
            ssl_keyfile=config.tls_key,
        ),
        crowd,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = _stop_signals(config)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    if config.tls_cert is not None:
        loop.add_signal_handler(signal.SIGHUP, _reload, server, config)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    serving = loop.create_task(server.serve([listener]))
    stopping = loop.create_task(stop.wait())
    ready = loop.create_task(server.ready.wait())
    await _first(ready, serving, stopping, node.failed)
    if serving.done():
        serving.result()  # raises what kept it from being ready
    displaced = loop.create_future() if joined is None else loop.create_task(joined.ownership.displaced.wait())
    if joined is not None:
        await _first(loop.create_task(joined.until_ready()), stopping, serving, node.failed)
    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "https" if config.tls_cert else "http"
    if not stopping.done():
        say(f"timerd ready on {scheme}://{host}:{listener.getsockname()[1]}")
    await _first(stopping, serving, displaced, node.failed)
    if node.failed.done():
        _die(node)
    log.info("stopping")
    if joined is None or displaced.done():
        node.drain()
        server.leave.set()
    ended = loop.create_task(_stop(config, node, server, serving, joined))
    await _first(ended, node.failed)
    if node.failed.done():
        _die(node)
    log.info("stopped", drained=ended.result())
    for number in (*numbers, signal.SIGHUP):  # it is over: another one must not make a kill of it
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    if displaced.done():
        return _refuse(EXIT_REFUSED, f"another process has joined the cluster as node {node_name(config)}")
    return 0


async def _stop(
    config: Config, node: Node, server: _Server, serving: asyncio.Task[None], joined: joining.Joined | None
) -> bool:
    """Answer what was asked, and let everything else end. A shard of a cluster is served until another could take it:
    until then requests are answered here as well."""
    grace_ms = round(config.grace * 1000)
    clean = joined is None or await joined.leave(grace_ms)
    node.drain()
    server.leave.set()
    await asyncio.wait([serving])
    return await node.stop(grace_ms) and clean


def _reload(server: _Server, config: Config) -> None:
    if server.tls is not None:  # else it is about to be read for the first time
        listening.reload_certificate(server.tls, config)


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _die(node: Node) -> None:
    """End at once. What memory says may not be on disk, so nobody must hear of it any more."""
    error = node.failed.exception()
    if isinstance(error, LogFailed):
        say(f"timerd: the log failed and the process ends; it recovers at the next start: {error}")
    else:
        log.critical("failed", exc_info=error)
    os._exit(EXIT_FAILED)
