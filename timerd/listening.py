"""Listening: on which address, to whom, and with which certificate. What can't be right is refused before
anything runs. Raises ConfigError, which names the option.
"""

import ipaddress
import socket
import ssl

import structlog

from timerd.config import Config, ConfigError

log = structlog.get_logger()


def check_reach(config: Config, keys: int = 0) -> None:
    """Whoever can reach the port can arm and cancel: beyond loopback that takes a key, or someone who says so.

    `keys` is how many there are beside the one of the configuration.
    """
    if config.api_key or config.insecure or keys or _is_loopback(config.host):
        return
    raise ConfigError(
        f"--host {config.host} is reachable from elsewhere and no API key is set; set TIMERD_API_KEY, or say --insecure"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_everywhere(host: str) -> bool:
    """Whether it is no address, but all that the machine has."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def bind(config: Config) -> socket.socket:
    """A socket at the address, to which nobody can connect yet. Raises OSError."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise OSError(f"can't listen on {config.host}:{config.port}: {error.strerror}") from None
    return listener


def check_certificate(config: Config) -> None:
    """Whether certificate and key, if they are given, are there and belong together."""
    if config.tls_cert is not None:
        _load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), config)


def reload_certificate(context: ssl.SSLContext, config: Config) -> None:
    """Take renewed files for the connections to come. Files that can't be used leave the old ones in place."""
    try:
        check_certificate(config)  # a context is left half changed when a load fails
        _load(context, config)
    except ConfigError as error:
        log.error("certificate_not_reloaded", error=str(error))
    else:
        log.info("certificate_reloaded")


def _load(context: ssl.SSLContext, config: Config) -> None:
    assert config.tls_cert is not None, "there is a certificate"
    try:
        # A key with a passphrase would ask for it on a terminal, which a service has not: no passphrase is the answer.
        context.load_cert_chain(config.tls_cert, config.tls_key, str)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigError(f"--tls-cert {config.tls_cert} with --tls-key {config.tls_key}: {error}") from None
