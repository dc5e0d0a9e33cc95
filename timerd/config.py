"""What `timerd serve` can be told: flag over environment (`TIMERD_<NAME>`) over TOML file over default.

One table of options makes the flags, the environment names and the keys of the file. Nothing else reads the
environment.
"""

import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from timerd.engine.address import parse_network
from timerd.engine.secrecy import is_made_key, masked_repr

DEFAULT_NAME: Final = "timerd"
SECRET_CHARS_MIN: Final = 16
IN_IMAGES: Final = "TIMERD_DATA"  # is set there, whatever the process is to be, so it is no word against a cluster


class ConfigError(Exception):
    """An option, or the file, is not as it must be; the message names it."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a process is started with. Sizes in bytes, times in seconds."""

    data: str = "timerd-data"
    """The directory that holds everything; with `cluster` it is not used."""
    host: str = "127.0.0.1"
    port: int = 8470
    node: str | None = None
    shards: int | None = None
    shard_capacity: int = 100_000
    grace: float = 30.0
    api_key: str | None = None
    insecure: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    segment_bytes: int | None = None
    cluster: str | None = None
    """NATS servers, with commas or spaces between; None: a data directory."""
    cluster_prefix: str = "timerd"
    cluster_replicas: int = 3
    cluster_lease: float = 5.0
    cluster_address: str | None = None
    """Where the other nodes reach this one."""
    cluster_new_catalog: bool = False
    """Begin another catalogue on logs that have lost theirs."""
    cluster_new_shard: list[int] = []
    """Shards to begin anew, without a timer, whose streams are lost."""
    cluster_secret: str | None = None
    """What nodes know each other by; None: the one that the catalogue keeps."""
    max_body: int = 16 << 20
    max_payload: int = 64 << 10
    max_horizon: str = "3660d"
    max_retry_after: str = "1h"
    callback_allow: list[str] = []
    """Networks that callbacks may go to although they are not public."""
    callback_ca: str | None = None
    callback_cert: str | None = None
    callback_key: str | None = None
    log_level: str = "info"
    types: dict[str, dict[str, Any]] = {}
    """Only in the file: types to put at start, by name, as in the contract."""

    def __repr__(self) -> str:
        return masked_repr(self, "api_key", "cluster", "cluster_secret", "types")


_NOT_OPTIONS = {"types"}
_LISTS = {"callback_allow", "cluster_new_shard"}  # repeated as flags; in the environment with commas or spaces between


def option_names() -> list[str]:
    """Every option that can be a flag or in the environment."""
    return [field.name for field in msgspec.structs.fields(Config) if field.name not in _NOT_OPTIONS]


def read_config(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None, defaults: Mapping[str, Any] = {}
) -> Config:
    """Put the three sources together; `defaults` stand in place of the usual ones. Raises ConfigError."""
    values: dict[str, Any] = dict(defaults)
    given: dict[str, str] = {}  # where the value of an option comes from
    if file is not None:
        try:
            read = tomllib.loads(Path(file).read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"--config {file}: {error}") from None
        read = {name.replace("-", "_"): value for name, value in read.items()}
        values.update(read)
        given.update(dict.fromkeys(read, f"in {file}"))
    for name in option_names():
        if value := environment.get(f"TIMERD_{name.upper()}"):
            values[name] = value.replace(",", " ").split() if name in _LISTS else value
            given[name] = f"TIMERD_{name.upper()}"
    set_flags = {name: value for name, value in flags.items() if value is not None and value != []}
    values.update(set_flags)
    given.update(dict.fromkeys(set_flags, "the flag"))
    if "data" in given and "cluster" in given and given["data"] != IN_IMAGES:
        raise ConfigError(
            f"--data ({given['data']}) names a directory, and --cluster ({given['cluster']}) servers that hold "
            "everything in its place: leave one of them out"
        )
    try:
        config = msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"configuration: {error}") from None
    return _checked(config)


def _checked(config: Config) -> Config:
    def refuse(name: str, why: str) -> None:
        raise ConfigError(f"--{name.replace('_', '-')} {why}")

    if not 0 <= config.port <= 65_535:
        refuse("port", "must be 0 to 65535")
    if config.shards is not None and not 1 <= config.shards <= 1_024:
        refuse("shards", "must be 1 to 1024")
    if not 1_000 <= config.shard_capacity <= 1 << 40:
        refuse("shard_capacity", "must be 1000 or more")
    if not 0 <= config.grace <= 86_400:
        refuse("grace", "must be 0 to 86400 seconds")
    if config.segment_bytes is not None and not 65_536 <= config.segment_bytes <= 1 << 30:
        refuse("segment_bytes", "must be 64 KiB to 1 GiB")
    if config.cluster is not None and not _are_servers(config.cluster):
        refuse("cluster", "must name servers, like nats://nats1:4222,nats://nats2:4222")
    if config.cluster_new_shard and config.cluster is None:
        refuse("cluster_new_shard", "is about a cluster's streams, and --cluster is not there")
    if config.cluster_replicas not in (1, 3, 5):
        refuse("cluster_replicas", "must be 1, 3 or 5")
    if not 0.1 <= config.cluster_lease <= 60:
        refuse("cluster_lease", "must be 0.1 to 60 seconds")
    if not 1_024 <= config.max_body <= 1 << 30:
        refuse("max_body", "must be 1 KiB to 1 GiB")
    if not 0 <= config.max_payload <= config.max_body:
        refuse("max_payload", "must not be above --max-body")
    if config.api_key is not None and not config.api_key.strip():
        refuse("api_key", "must not be empty")
    if config.api_key is not None and is_made_key(config.api_key.strip()):
        # A shell that calls timerd with its own key must not make that key all-powerful when it starts another.
        refuse("api_key", "(TIMERD_API_KEY) is a key that timerd made; here is the bootstrap key, which you make up")
    if (config.tls_cert is None) != (config.tls_key is None):
        refuse("tls_cert", "and --tls-key go together")
    for network in config.callback_allow:
        try:
            parse_network(network)
        except ValueError as error:
            refuse("callback_allow", f"must name networks like 10.1.0.0/16: {error}")
    if (config.callback_cert is None) != (config.callback_key is None):
        refuse("callback_cert", "and --callback-key go together")
    if config.log_level not in ("debug", "info", "warning", "error"):
        refuse("log_level", "must be debug, info, warning or error")
    if config.node is not None and not _is_name(config.node):
        refuse("node", "must be 1 to 64 printable characters")
    if config.cluster_address is not None and not _is_address(config.cluster_address):
        refuse("cluster_address", "must be a URL like http://10.1.2.3:8470")
    if config.cluster_secret is not None and not is_secret(config.cluster_secret):
        refuse("cluster_secret", f"(TIMERD_CLUSTER_SECRET) must be {SECRET_CHARS_MIN} or more characters of ASCII")
    return config


def node_name(config: Config) -> str:
    """What this node is called: in a cluster two must not have one name, so it is the host's."""
    return config.node or (DEFAULT_NAME if config.cluster is None else socket.gethostname())


def is_secret(text: str) -> bool:
    """Whether nodes can know each other by it: it travels in a header."""
    return len(text) >= SECRET_CHARS_MIN and text.isascii() and text.isprintable() and " " not in text


def _is_name(text: str) -> bool:
    return 1 <= len(text) <= 64 and text.isprintable()


def _is_address(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0 and url.path in ("", "/")
    except ValueError:
        return False


def _are_servers(text: str) -> bool:
    try:
        urls = [urlsplit(server) for server in text.replace(",", " ").split()]
        return bool(urls) and all(url.scheme in ("nats", "tls") and url.hostname and url.port != 0 for url in urls)
    except ValueError:  # no such port, or half an IPv6 address
        return False
