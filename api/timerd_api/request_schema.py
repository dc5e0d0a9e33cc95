"""Request schema: the shape of a callback's request on the wire, as it is given and as it is shown. See schema.py."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from timerd.engine.secrecy import masked_repr


class RequestBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a callback sends, as it stands. At most one of `body`, `json` and `body_base64` is given."""

    url: Annotated[str, Meta(max_length=2048, description="http or https, ASCII, without user or password")]
    method: Annotated[
        Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"], Meta(description="as it is sent; POST if left out")
    ] = "POST"
    headers: Annotated[
        dict[str, str],
        Meta(max_length=64, description="sent as they are; none that the connection needs, no webhook-*, no Timerd-*"),
    ] = msgspec.field(default_factory=dict)
    body: Annotated[str, Meta(description="sent as UTF-8")] | UnsetType = UNSET
    json: (
        Annotated[
            Raw,
            Meta(description="sent byte for byte; with Content-Type: application/json unless the headers have one"),
        ]
        | UnsetType
    ) = UNSET
    body_base64: Annotated[str, Meta(description="any bytes, as base64")] | UnsetType = UNSET

    def __repr__(self) -> str:
        return masked_repr(self, "headers", "body", "json", "body_base64")


class RequestItem(msgspec.Struct):
    """What a callback sends, as it is shown."""

    url: str
    method: str
    headers: dict[str, str]
    body: str | UnsetType = UNSET
    json: Annotated[Raw, Meta(description="any JSON")] | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
