"""Scopes: which call needs which. This table is the only place where it stands.

The door and the routes ask it, the contract and the page are made from it, and a route that is not in it can't be
added: the application does not start. (What nodes of a cluster ask each other is not in it: see `peers`.)
"""

from collections.abc import Mapping
from typing import Final, Literal

Scope = Literal["arm", "read", "admin"]

ARM: Final = "arm"
READ: Final = "read"
ADMIN: Final = "admin"
ANY: Final = "any"  # any key, whatever its scopes
OPEN: Final = "open"  # no key: probes have none, and are told nothing

SCOPES: Final[Mapping[Scope, str]] = {
    "arm": "arm, move, cancel and fire timers",
    "read": "look at timers, types, dead letters, counts and the node; metrics",
    "admin": "everything: types, replays and purges, keys, and what the other two scopes allow",
}

NEEDS: Final[Mapping[tuple[str, str], str]] = {
    ("post", "/v1/timers"): ARM,
    ("get", "/v1/timers"): READ,
    ("get", "/v1/timers:next"): READ,
    ("post", "/v1/timers:cancel"): ARM,
    ("get", "/v1/timers/{id}"): READ,
    ("put", "/v1/timers/{id}"): ARM,
    ("delete", "/v1/timers/{id}"): ARM,
    ("post", "/v1/timers/{id}:fire"): ARM,
    ("get", "/v1/types"): READ,
    ("get", "/v1/types/{name}"): READ,
    ("put", "/v1/types/{name}"): ADMIN,
    ("delete", "/v1/types/{name}"): ADMIN,
    ("post", "/v1/types/{name}:pause"): ADMIN,
    ("post", "/v1/types/{name}:resume"): ADMIN,
    ("get", "/v1/dead-letters"): READ,
    ("post", "/v1/dead-letters:replay"): ADMIN,
    ("post", "/v1/dead-letters:purge"): ADMIN,
    ("get", "/v1/keys"): ADMIN,
    ("post", "/v1/keys"): ADMIN,
    ("delete", "/v1/keys/{id}"): ADMIN,
    ("get", "/healthz"): OPEN,
    ("get", "/readyz"): OPEN,
    ("get", "/v1/status"): READ,
    ("get", "/v1/shards"): READ,
    ("post", "/v1/shards:scale"): ADMIN,
    ("get", "/v1/nodes"): READ,
    ("get", "/v1/ring"): READ,
    ("get", "/v1/stats"): READ,
    ("get", "/metrics"): READ,
    ("get", "/v1/clock"): READ,
    ("post", "/v1/clock:advance"): ADMIN,
    ("get", "/openapi.json"): ANY,
    ("get", "/docs"): ANY,
}
"""By method and path, as the contract writes them."""

OPEN_PATHS: Final = frozenset(path.encode() for (_, path), need in NEEDS.items() if need == OPEN)


def allowed(scopes: tuple[str, ...]) -> frozenset[str]:
    """The needs that a key with these scopes meets."""
    implied = (ARM, READ, ADMIN) if ADMIN in scopes else scopes
    return frozenset((*implied, ANY, OPEN))
