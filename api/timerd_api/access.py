"""Access: who may call.

With a key: whoever shows it. Without one: whoever is on this machine and means this machine. The second half is the
`Host` check: a name under somebody else's control can be made to resolve to 127.0.0.1, and a browser would then let
that somebody's page talk to timerd. A page may also post here under our own name, without reading the answer; it says
so in `Origin`. Both are refused unless they name the loopback.
"""

import hmac
import ipaddress
import re
from collections.abc import Mapping
from typing import Final

from timerd_api.problem import FORBIDDEN, UNAUTHORIZED, Problem
from timerd_api.settings import ApiSettings

OPEN: Final = frozenset((b"/healthz", b"/readyz"))
"""Paths that are open to everybody: probes have no key, and they tell nothing."""

_AUTHORITY: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@]+))(?::[0-9]{1,5})?")


class Access:
    """Decides on a request by its path and headers alone, before anything else of it is read."""

    def __init__(self, settings: ApiSettings) -> None:
        self._key = None if settings.api_key is None else settings.api_key.encode().strip()
        if self._key == b"":
            raise ValueError("an API key may not be empty")  # else nothing behind "Bearer" would open everything
        self._local_only = settings.api_key is None and not settings.insecure
        self._local_hosts: set[bytes] = set()

    def check(self, path: bytes, headers: Mapping[bytes, bytes]) -> None:
        """Raises Problem unless the request may go on."""
        if path in OPEN:
            return
        if self._key is not None:
            scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._key):
                raise Problem(
                    UNAUTHORIZED,
                    "send the key as 'Authorization: Bearer <key>'",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        elif self._local_only:
            host = headers.get(b"host", b"")
            if host not in self._local_hosts:
                if not _is_loopback(host.decode("latin-1")):
                    raise Problem(FORBIDDEN, "without a key, only requests to a loopback host are served")
                if len(self._local_hosts) < 16:  # 127.0.0.0/8 is large; a handful of ways to write it is not
                    self._local_hosts.add(host)
            origin = headers.get(b"origin")
            if origin is not None and not _is_loopback(origin.decode("latin-1").partition("://")[2]):
                raise Problem(FORBIDDEN, "without a key, pages from elsewhere may not call")


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
