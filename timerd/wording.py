"""What went wrong on the way to a target, in plain words: for `last_error`, which people read.

The client's own texts name its options (`ssl:default`) where a reader looks for the cause.
"""

import errno
import os
import socket
import ssl

import aiohttp


def wording(error: BaseException) -> str:
    """One line, never empty."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed before an answer came"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate of {error.host}:{error.port} is not accepted: {_tls(error.certificate_error)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return _connecting(error.os_error, f"{error.host}:{error.port}", error.host)
    if isinstance(error, OSError) and error.errno:
        return _system(error)
    return str(error) or type(error).__name__


def _connecting(cause: OSError, place: str, host: str) -> str:
    if isinstance(cause, socket.gaierror):
        return f"no address was found for {host}: {cause.strerror or 'unknown name'}"
    if isinstance(cause, ssl.SSLError):
        return f"no TLS with {place}: {_tls(cause)}"
    if cause.errno == errno.ECONNREFUSED:
        return f"{place} refused the connection"
    if cause.errno:
        return f"no connection to {place}: {_system(cause)}"
    return f"no connection to {place}: {cause}" if str(cause) else f"no connection to {place}"


def _system(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


def _tls(error: BaseException) -> str:
    return str(getattr(error, "verify_message", "") or getattr(error, "reason", "") or error)
