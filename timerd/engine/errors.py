"""The closed set of errors that the ports raise. Refusals that a caller can expect are values (`message.Refused`)."""

from collections.abc import Sequence
from typing import Any


class LogFailed(Exception):
    """A write or sync of the log failed. Never retried: the process ends and recovers from the log."""


class CorruptLog(Exception):
    """The log holds damage that is no torn last write. The process refuses to start."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: offset {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class DirectoryLocked(Exception):
    """Another process has the data directory."""


class CatalogFull(Exception):
    """The catalogue could not be written for want of space; nothing was changed."""


class UnreadableCatalog(Exception):
    """The catalogue is damaged, or of a version that this build does not read. `read`: what else of its kind can be."""

    def __init__(self, why: str, read: Sequence[Any] = ()) -> None:
        super().__init__(why)
        self.read = read


class IncompleteDirectory(Exception):
    """A data directory has lost its log or its catalogue. The process refuses to start rather than begin anew."""


class ClusterRefused(Exception):
    """The cluster's servers, or what they hold, are not as timerd needs them. The process refuses to start."""
