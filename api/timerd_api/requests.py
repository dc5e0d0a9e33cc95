"""Requests of callbacks: from the wire to what is kept, and back.

A request is checked here once and for all: what is kept can be sent as it stands. What it means to send it is nobody's
business here.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Final

from msgspec import UNSET, Raw, UnsetType

from timerd.engine.address import Targets
from timerd.engine.callback import BASE64, JSON, NONE, TEXT, CallbackRequest, decode_request
from timerd_api.headers import CONNECTION_HEADERS, header_faults
from timerd_api.problem import Fault
from timerd_api.request_schema import RequestBody, RequestItem
from timerd_api.urls import callback_url_fault

_OWN_PREFIXES: Final = ("webhook-", "timerd-")


def _is_own(name: str) -> bool:
    return name in CONNECTION_HEADERS or name.startswith(_OWN_PREFIXES)


def callback_request(
    body: RequestBody,
    at: str,
    targets: Targets,
    bytes_max: int,
    json_of: Callable[[Raw, str], bytes],
    faults: list[Fault],
) -> CallbackRequest | None:
    """The request that a body describes; else None, and what is wrong with it goes to `faults`.

    `json_of` gives the JSON of what stands at a pointer.
    """
    before = len(faults)
    if found := callback_url_fault(body.url, targets):
        faults.append(Fault(f"{at}/url", *found))
    faults += [Fault(*fault) for fault in header_faults(body.headers, f"{at}/headers", _is_own)]
    forms = [
        form
        for form, given in (
            (TEXT, body.body is not UNSET),
            (JSON, body.json is not UNSET),
            (BASE64, body.body_base64 is not UNSET),
        )
        if given
    ]
    for form in forms[1:]:
        faults.append(Fault(f"{at}/{form}", f"can't be given together with {forms[0]}"))
    data, form = b"", forms[0] if forms else NONE
    if isinstance(body.body, str):
        data = body.body.encode()
    elif isinstance(body.json, Raw):
        data = json_of(body.json, f"{at}/json")
    elif not isinstance(body.body_base64, UnsetType):
        try:
            data = base64.b64decode(body.body_base64, validate=True)
        except (binascii.Error, ValueError):
            faults.append(Fault(f"{at}/body_base64", "is no base64"))
    if len(data) > bytes_max:
        faults.append(Fault(f"{at}/{form}", f"a request's body may have at most {bytes_max} bytes"))
    if len(faults) > before:
        return None
    return CallbackRequest(body.method, body.url, tuple(body.headers.items()), form, data)


def request_item(payload: bytes) -> RequestItem:
    """A request as it is shown: as it was given, defaults filled in."""
    kept = decode_request(payload)
    item = RequestItem(kept.url, kept.method, dict(kept.headers))
    if kept.form == TEXT:
        item.body = kept.body.decode()
    elif kept.form == JSON:
        item.json = Raw(kept.body)
    elif kept.form == BASE64:
        item.body_base64 = base64.b64encode(kept.body).decode()
    return item
