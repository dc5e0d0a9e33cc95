"""URLs that requests of ours go to: what is refused before anything is ever sent there."""

import re
from typing import Final
from urllib.parse import urlsplit

from timerd.engine.address import Targets, is_canonical, literal
from timerd_api.problem import TARGET_FORBIDDEN, VALIDATION, Kind

_SHOWN: Final = 100  # characters of a URL in a refusal
_NO_CHARACTER: Final = re.compile(r"[\x00-\x20\x7f\"<>\\^`{|}]")


def url_fault(url: str) -> str | None:
    """Why this is no URL that can be asked; None if it is one."""
    if _NO_CHARACTER.search(url):
        return "has a character that a URL can't have"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    if parts.scheme not in ("http", "https"):
        return f"must begin with http:// or https://, and is {url[:_SHOWN]!r}"
    if not parts.hostname:
        return f"has no host: {url[:_SHOWN]!r}"
    if "@" in parts.netloc:
        return "may not have a user or password; use headers"
    if port == 0:
        return "has an impossible port"
    return None


def callback_url_fault(url: str, targets: Targets) -> tuple[str, Kind] | None:
    """Why a callback may not go there, as far as the URL itself says. A name is looked up when it is due."""
    if fault := url_fault(url):
        return fault, VALIDATION
    if not url.isascii():
        return "must be ASCII: percent-encode its path, and write its host in punycode", VALIDATION
    host = urlsplit(url).hostname or ""
    address = literal(host)
    if address is None:
        return None
    if refusal := targets.refusal(address):
        return refusal, TARGET_FORBIDDEN
    if not is_canonical(host):
        return f"has an address in an odd form; write {address}", VALIDATION
    return None
