"""Addresses: which of them a callback may be sent to.

Callers name the targets of callbacks, so nothing may be reached through them that the caller could not reach himself:
this machine, the networks it is in, and the services that a cloud shows to its machines alone. What is allowed is what
is public: everything on the lists of special addresses (IANA) is refused, and of IPv6 everything outside 2000::/3. An
address that carries an IPv4 address inside is judged by that one as well, whichever way it carries it.

Pure: text and addresses in, verdicts out. Names are nobody's business here; they are looked up when a connection is
made, and what they stand for then is held against this.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_SPECIAL_4: Final = [
    (IPv4Network(network), what)
    for network, what in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a metadata service"),  # of Azure, within public space
        ("169.254.0.0/16", "link-local"),  # most metadata services among them
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
]
_PUBLIC_6: Final = IPv6Network("2000::/3")
_SPECIAL_6: Final = [
    (IPv6Network(network), what)
    for network, what in (
        ("::1/128", "loopback"),
        ("::/128", "unspecified"),
        ("::ffff:0:0/96", "an IPv4 address in disguise"),
        ("::/96", "an IPv4 address in disguise"),
        ("64:ff9b::/96", "an IPv4 address in disguise"),
        ("64:ff9b:1::/48", "for local translation"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
        ("2001::/32", "a Teredo address"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "a 6to4 address"),
        ("3fff::/20", "for documentation"),
        ("5f00::/16", "reserved"),
    )
]
# As public as the IPv4 address within: a dual stack writes the one, an IPv6 network with NAT64 needs the other.
_AS_WITHIN: Final = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))
_COMPATIBLE: Final = IPv6Network("::/96")
_TEREDO: Final = IPv6Network("2001::/32")
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")


class Targets:
    """Which addresses callbacks may go to: public ones, and those in the `allowed` networks."""

    def __init__(self, allowed: Sequence[Network] = ()) -> None:
        self._allowed = tuple(allowed)

    def refusal(self, address: Address) -> str | None:
        """Why it may not be connected to; None if it may."""
        inner = within(address)
        for each in (address, inner):
            if each is not None and any(each.version == n.version and each in n for n in self._allowed):
                return None
        if isinstance(address, IPv6Address) and any(address in network for network in _AS_WITHIN):
            assert inner is not None
            what = _what(inner)
        else:
            what = _what(address) or (None if inner is None else _what(inner))
        return what and f"{address} is {what}; callbacks may not go there without --callback-allow"


def parse_network(text: str) -> Network:
    """A network like 10.0.0.0/8, or one address. Raises ValueError, also for a network without its size."""
    network = ip_network(text.strip())
    if "/" not in text and int(network.network_address) & 0xFF == 0:
        raise ValueError(f"{text.strip()} has no size; for this address alone write {network}")
    return network


def within(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address carries: mapped, compatible, translated (NAT64), 6to4 or Teredo."""
    if isinstance(address, IPv4Address):
        return None
    bits = int(address)
    if any(address in network for network in _AS_WITHIN) or (address in _COMPATIBLE and bits >> 24):
        return IPv4Address(bits & 0xFFFFFFFF)
    if address in _SIX_TO_FOUR:
        return IPv4Address(bits >> 80 & 0xFFFFFFFF)
    if address in _TEREDO:
        return IPv4Address(~bits & 0xFFFFFFFF)
    return None


def literal(host: str) -> Address | None:
    """The address that a URL's host is, as a system would read it; None for a name.

    Beside dotted quads that is all that inet_aton takes: fewer parts, octal, hexadecimal, one large number.
    """
    host = host.strip("[]").partition("%")[0]
    try:
        return ip_address(host)
    except ValueError:
        pass
    parts = host.rstrip(".").split(".")
    if not 1 <= len(parts) <= 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    try:
        numbers = [_number(part) for part in parts]
    except ValueError:
        return None
    *heads, tail = numbers
    if any(head > 255 for head in heads) or tail >= 256 ** (4 - len(heads)):
        return None
    return IPv4Address(sum(head << 8 * (3 - place) for place, head in enumerate(heads)) + tail)


def is_canonical(host: str) -> bool:
    """Whether a literal is written the one way that everybody reads alike."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _number(text: str) -> int:
    if text[:2] in ("0x", "0X"):
        return int(text[2:] or "0", 16)
    return int(text, 8) if text.startswith("0") and len(text) > 1 else int(text)


def _what(address: Address) -> str | None:
    if isinstance(address, IPv4Address):
        return next((what for network, what in _SPECIAL_4 if address in network), None)
    special = next((what for network, what in _SPECIAL_6 if address in network), None)
    return special or (None if address in _PUBLIC_6 else "not public")
