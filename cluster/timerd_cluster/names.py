"""What the streams of one timerd are called, and the subjects of their messages. See STREAM.md.

A prefix keeps several timerds apart on one set of servers.
"""

import re
from typing import Final, NamedTuple

PREFIX: Final = "timerd"
_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")


class Names(NamedTuple):
    """Made from the prefix alone."""

    prefix: str

    def log(self, shard: int) -> str:
        """The stream of a shard's turns."""
        return f"{self.prefix}-log-{shard}"

    def log_subject(self, shard: int) -> str:
        """The only subject of that stream."""
        return f"{self.prefix}.log.{shard}"

    def bodies(self, shard: int) -> str:
        """The stream of a shard's large payloads."""
        return f"{self.prefix}-bodies-{shard}"

    def body_subject(self, shard: int | str, segment: int | str, end: int | str) -> str:
        """The subject of one extent of a body segment, or of many, with wildcards."""
        return f"{self.prefix}.bodies.{shard}.{segment}.{end}"

    def said(self, word: str, shard: int | str) -> str:
        """The subject of what is said of a shard, which no stream keeps, or with wildcards of all that is said."""
        return f"{self.prefix}.said.{word}.{shard}"

    def bucket_stream(self, name: str) -> str:
        """The stream of a key-value bucket."""
        return f"KV_{self.prefix}-{name}"

    def bucket_subject(self, name: str, key: str) -> str:
        """The subject of a bucket's key."""
        return f"$KV.{self.prefix}-{name}.{key}"


def names(prefix: str) -> Names | None:
    """None: the prefix is none that the servers take."""
    return Names(prefix) if _PREFIX.fullmatch(prefix) else None
