"""Access: who calls.

With keys: whoever shows one. Without any: whoever is on this machine and means this machine. The second half is the
`Host` check: a name under somebody else's control can be made to resolve to 127.0.0.1, and a browser would then let
that somebody's page talk to timerd. A page may also post here under our own name, without reading the answer; it says
so in `Origin`. Both are refused unless they name the loopback.

What a caller may do is `scopes`' business, and how much of it `limits`'. Nothing here keeps or shows a key: they come
in, are hashed, and are forgotten.
"""

import hmac
import ipaddress
import re
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

from timerd.keys import digest_of, id_in
from timerd.ports import ApiKey
from timerd_api.limits import Meter
from timerd_api.problem import FORBIDDEN, UNAUTHORIZED, Problem
from timerd_api.scopes import ADMIN, OPEN_PATHS, allowed
from timerd_api.service import Service
from timerd_api.settings import ApiSettings

CALLER: Final = "timerd.caller"
"""Where a request's scope has its Caller."""
METER_CLOCK: Final = "timerd.meter_clock"
"""Where a request's scope has the clock that limits go by, in ms."""
_AUTHORITY: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@]+))(?::[0-9]{1,5})?")


class Caller:
    """Who calls: a key, or somebody without one where none is asked for."""

    __slots__ = ("_may", "expires_at", "id", "meter", "name", "seen_at")

    def __init__(
        self, id: str, name: str, scopes: tuple[str, ...], expires_at: int | None = None, meter: Meter | None = None
    ) -> None:
        self.id = id
        self.name = name
        self.expires_at = expires_at
        self.meter = meter
        self.seen_at: int | None = None
        """Unix ms of the last answer to it; None before the first of this process."""
        self._may = allowed(scopes)

    def require(self, need: str) -> None:
        """Raises Problem unless the caller has this scope."""
        if need not in self._may:
            raise Problem(
                FORBIDDEN,
                f"this call needs the scope {need!r}, which this key does not have",
                headers={"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{need}"'},
            )


OWNER: Final = "bootstrap"
"""The id of the key that comes from the environment. No other can have it: theirs have eight characters."""
NOBODY: Final = Caller("-", "-", (ADMIN,))
"""Whoever calls where no key is asked for. The probes see nobody else."""


class Access:
    """Decides on a request by its path and headers alone, before anything else of it is read."""

    def __init__(self, settings: ApiSettings, service: Service, now_ms: Callable[[], int]) -> None:
        """`now_ms`: what limits go by, a clock that runs."""
        bootstrap = None if settings.api_key is None else settings.api_key.encode().strip()
        if bootstrap == b"":
            raise ValueError("an API key may not be empty")  # else nothing behind "Bearer" would open everything
        self._owner_digest = None if bootstrap is None else digest_of(bootstrap)
        self._owner = Caller(OWNER, "TIMERD_API_KEY", (ADMIN,))
        self._service = service
        self._now_ms = now_ms
        self._known: Mapping[str, ApiKey] = {}
        self._callers: dict[str, Caller] = {}
        self._keyed = bootstrap is not None
        self._insecure = settings.insecure
        self._local_hosts: set[bytes] = set()

    def admit(self, path: bytes, headers: Mapping[bytes, bytes]) -> Caller:
        """Who it is that calls. Raises Problem unless the request may go on."""
        if path in OPEN_PATHS:
            return NOBODY
        if (known := self._service.keys.known) is not self._known:
            self._take_up(known)
        if not self._keyed:
            if not self._insecure:
                self._check_local(headers)
            return NOBODY
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        key = key.strip()
        if scheme.lower() != b"bearer" or not key:
            raise _unauthorized("send the key as 'Authorization: Bearer <key>'")
        return self._whose(key)

    def seen_at(self, id: str) -> int | None:
        """Unix ms at which a key was last used, as far as this process knows."""
        caller = self._callers.get(id)
        return None if caller is None else caller.seen_at

    def _whose(self, key: bytes) -> Caller:
        digest, id = digest_of(key), id_in(key)
        # First, for a stored key of the same text may be read-only or expired, and must not lock the owner out.
        if self._owner_digest is not None and hmac.compare_digest(self._owner_digest, digest):
            return self._owner
        known = self._known.get(id)
        if known is not None and hmac.compare_digest(known.digest, digest):
            caller = self._callers[id]
            if caller.expires_at is not None and self._service.clock.now().wall_ms >= caller.expires_at:
                raise _unauthorized(f"this key, {id}, has expired")
            return caller
        raise _unauthorized("this key is unknown, or was revoked")

    def _take_up(self, known: Mapping[str, ApiKey]) -> None:
        """These are the keys now. Those that stay keep what they have used of their allowance.

        Once a key has been asked for, one always is: taking the last key away must not open the door.
        """
        self._known = known
        self._keyed = self._keyed or bool(known)
        self._callers = {id: self._callers.get(id) or self._caller(key) for id, key in known.items()}

    def _caller(self, key: ApiKey) -> Caller:
        limit = key.max_per_second
        meter = None if limit is None else Meter(limit, self._now_ms())
        return Caller(key.id, key.name, key.scopes, key.expires_at, meter)

    def _check_local(self, headers: Mapping[bytes, bytes]) -> None:
        host = headers.get(b"host", b"")
        if host not in self._local_hosts:
            if not _is_loopback(host.decode("latin-1")):
                raise Problem(FORBIDDEN, "without a key, only requests to a loopback host are served")
            if len(self._local_hosts) < 16:  # 127.0.0.0/8 is large; a handful of ways to write it is not
                self._local_hosts.add(host)
        origin = headers.get(b"origin")
        if origin is not None and not _is_loopback(origin.decode("latin-1").partition("://")[2]):
            raise Problem(FORBIDDEN, "without a key, pages from elsewhere may not call")


def weigh(scope: MutableMapping[str, Any], timers: int) -> None:
    """Charge a request for the timers that it names. Raises Problem."""
    meter: Meter | None = scope[CALLER].meter
    if meter is not None:
        meter.weigh(timers, scope[METER_CLOCK]())


def peer(scope: MutableMapping[str, Any]) -> str:
    """The address at the other end of the connection."""
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "-"


def _unauthorized(detail: str) -> Problem:
    return Problem(UNAUTHORIZED, detail, headers={"WWW-Authenticate": "Bearer"})


def _is_loopback(authority: str) -> bool:
    """Whether `host` or `host:port` is the loopback, by name or by address."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return False
    host = found[1] or found[2]
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
