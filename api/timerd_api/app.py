"""The application: one door in front of all routes.

Every request passes here first: access, then either the short way (arms) or the framework's. Every
answer passes here last: it gets `Timerd-Now`, and what went wrong becomes a problem. Nothing below writes an error to
the wire by itself, and nothing of an exception's text ever reaches a caller.

Routing sees the path *as it was sent*. The path that a server hands on is decoded already, and in it the id `a/b`
is two segments and `a%3Afire` an action; so the raw path takes its place, and a route decodes its one segment itself.
"""

import traceback
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import quote

import structlog
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from timerd.engine.instant import format_instant
from timerd_api import (
    arms,
    clock,
    contract_page,
    dead_letters,
    keys,
    nodes,
    openapi,
    operations,
    peers,
    shards,
    timers,
    types,
)
from timerd_api.access import CALLER, METER_CLOCK, Access, Caller, peer
from timerd_api.arms import Arms
from timerd_api.body import JSON, Intake
from timerd_api.clock import Turner
from timerd_api.guard import GuardedRoute
from timerd_api.items import Items
from timerd_api.limits import real_ms
from timerd_api.peers import PeerDoor
from timerd_api.problem import INTERNAL_ERROR, METHOD_NOT_ALLOWED, NOT_FOUND, UNAUTHORIZED, Problem
from timerd_api.scopes import ARM
from timerd_api.service import Cluster, Service
from timerd_api.settings import ApiSettings
from timerd_api.turns import AT_ONCE_IN_A_CLUSTER, Turns
from timerd_api.values import Query

NOW_HEADER: Final = b"timerd-now"
_REPEAT_MS: Final = 1_000  # a full disk refuses every arm; a log line for each would fill what is left of it

log: structlog.stdlib.BoundLogger = structlog.get_logger("timerd.api")


def create_app(
    service: Service,
    settings: ApiSettings,
    turner: Turner | None = None,
    cluster: Cluster | None = None,
    door: PeerDoor | None = None,
) -> ASGIApp:
    """The API of a service, as an ASGI application. It keeps no state but counts of what is in progress.

    With a `turner`, of a service on a virtual clock, it has routes to show and to turn that. In a cluster, `cluster` is
    what the service knows of that, and other nodes come in at `door`.
    """
    return _Door(service, settings, turner, cluster, door)


class _Door:
    def __init__(
        self,
        service: Service,
        settings: ApiSettings,
        turner: Turner | None,
        cluster: Cluster | None,
        door: PeerDoor | None,
    ) -> None:
        self._peers = door
        self._clock = service.clock
        # A virtual clock stands still; what a second allows, and how often a line is logged, is real time all the same.
        self._now_ms = real_ms if turner is not None else lambda: service.clock.now().boot_ms
        self._access = Access(settings, service, self._now_ms)
        self._failures = _Failures(self._now_ms)
        intake = Intake(
            settings.max_body_bytes,
            settings.max_bodies_in_progress_bytes,
            settings.body_grace_ms,
            settings.body_bytes_per_s,
        )
        items = Items(lambda: service.types, settings.max_horizon_ms, settings.max_payload_bytes, settings.targets)
        self._arms = Arms(service, items, intake, cluster)
        self._surface = _surface(service, intake, self._access, self._failures, turner, cluster)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._surface(scope, receive, send)
            return
        method: str = scope["method"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        started = False
        caller: Caller | None = None

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                now = self._clock.now()
                said = [*message.get("headers", ()), (NOW_HEADER, format_instant(now.wall_ms).encode())]
                if caller is not None:
                    caller.seen_at = now.wall_ms
                    if caller.meter is not None:
                        said += caller.meter.fields(self._now_ms())
                message = {**message, "headers": said}
            elif method == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        try:
            if path == peers.PATH and method == "POST" and self._peers is not None:
                await self._peers.post(headers, receive, answer)
                return
            caller = scope[CALLER] = self._access.admit(path, headers)
            if caller.meter is not None:
                scope[METER_CLOCK] = self._now_ms
                caller.meter.admit(self._now_ms())
            if path == arms.PATH and method == "POST":
                caller.require(ARM)
                if scope["query_string"]:
                    Query(scope["query_string"]).check()
                await self._arms.post(headers, scope, receive, answer)
            elif method == "PUT" and (segment := arms.id_segment(path)) is not None:
                caller.require(ARM)
                if scope["query_string"]:
                    Query(scope["query_string"]).check()
                await self._arms.put(segment, headers, receive, answer)
            else:
                seen = {**scope, "path": path.decode("latin-1"), "method": "GET" if method == "HEAD" else method}
                await self._surface(seen, receive, answer)
        except Problem as problem:
            self._failures.note(problem, scope)
            await problem.response()(scope, receive, answer)
        except Exception as error:
            self._failures.note(error, scope)
            if not started:
                await _internal().response()(scope, receive, answer)


class _Failures:
    """One line for a request that failed for a reason of ours, or showed no good key; of one kind, one a second."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._noted_ms: dict[str, int] = {}
        self._unnoted: dict[str, int] = {}

    def note(self, failure: Exception, scope: Scope) -> None:
        if not isinstance(failure, Problem):
            # As text: a renderer that is given the exception may print the variables of its frames, keys among them.
            text = "".join(traceback.format_exception(failure))
            log.error("request_failed", method=scope["method"], path=scope["path"], exception=text)
            return
        name = failure.kind.name
        if failure.kind.status < 500 and failure.kind is not UNAUTHORIZED:
            return
        now_ms = self._now_ms()
        if now_ms - self._noted_ms.get(name, -_REPEAT_MS) < _REPEAT_MS:
            self._unnoted[name] = self._unnoted.get(name, 0) + 1
            return
        self._noted_ms[name] = now_ms
        log.warning(
            "access_refused" if failure.kind is UNAUTHORIZED else "request_refused",
            peer=peer(scope),
            method=scope["method"],
            path=scope["path"],
            problem=name,
            detail=failure.detail,
            unnoted=self._unnoted.pop(name, 0),
        )


def _internal() -> Problem:
    return Problem(INTERNAL_ERROR, "the request failed; the server's log says why")


def _surface(
    service: Service,
    intake: Intake,
    access: Access,
    failures: _Failures,
    turner: Turner | None,
    cluster: Cluster | None,
) -> FastAPI:
    """All routes but the short way, under FastAPI. It makes no contract of its own and redirects nothing."""
    document = openapi.document(virtual=turner is not None)
    contract, page = openapi.encoded(document), contract_page.render(document)
    app = FastAPI(title="timerd", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.router.route_class = GuardedRoute
    turns = Turns(1 if cluster is None else AT_ONCE_IN_A_CLUSTER)
    timers.add_routes(app.router, service, intake, turns)
    types.add_routes(app.router, service, intake)
    dead_letters.add_routes(app.router, service, intake, turns)
    operations.add_routes(app.router, service, cluster)
    nodes.add_routes(app.router, service, cluster)
    shards.add_routes(app.router, service, intake)
    keys.add_routes(app.router, service, intake, access)
    if turner is not None:
        clock.add_routes(app.router, service.clock, turner, intake)

    @app.get("/openapi.json")
    async def show_contract(request: Request) -> Response:
        return Response(contract, media_type=JSON)

    @app.get("/docs")
    async def show_page(request: Request) -> Response:
        return Response(page, media_type="text/html")

    async def on_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        failures.note(error, request.scope)
        return error.response()

    async def on_unmatched(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            allowed = sorted(_methods(app, request.scope))
            detail = f"{request.scope['method']} is not among {', '.join(allowed)}"
            return Problem(METHOD_NOT_ALLOWED, detail, headers={"Allow": ", ".join(allowed)}).response()
        return Problem(NOT_FOUND, "there is no such path").response()

    async def on_exception(request: Request, error: Exception) -> Response:
        return _internal().response()  # it is raised again behind this, and noted at the door

    handlers: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        Problem: on_problem,
        HTTPException: on_unmatched,
        Exception: on_exception,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
    return app


def _methods(app: FastAPI, scope: Scope) -> set[str]:
    """The methods that the path of this request knows, the short way's included."""
    path = scope["path"].encode("latin-1")
    short = {"POST"} if path == arms.PATH else {"PUT"} if arms.id_segment(path) is not None else set()
    return short | {
        method
        for route in app.routes
        if route.matches(scope)[0] is not Match.NONE
        for method in getattr(route, "methods", None) or ()
    }
