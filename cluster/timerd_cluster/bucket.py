"""One key of a key-value bucket, read and put by its revision.

A revision is the sequence of the key's last message, whatever that says: a key that was deleted has one as well, the
deletion's. So a key is made with the revision that a read has shown, never with "there must be none": that is refused
for ever behind a deletion (nats-server issues 3895 and 5162). No key has a time to live; nothing rests on one going.
"""

from typing import Final, NamedTuple

from timerd_cluster.connection import ApiError, Connection
from timerd_cluster.names import Names

OPERATION: Final = "KV-Operation"
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
WRONG_SEQUENCE: Final = (10071, 10164)


class Entry(NamedTuple):
    """What a key has just now."""

    revision: int
    """0: it has never had anything."""
    data: bytes | None
    """None: nothing, or it was deleted."""


class Bucket:
    """By its leader, never by a replica that may be behind."""

    def __init__(self, connection: Connection, names: Names, name: str) -> None:
        self.stream = names.bucket_stream(name)
        self.prefix = names.bucket_subject(name, "")
        """Of the subjects; a key follows."""
        self._connection = connection

    async def read(self, key: str) -> Entry:
        """Raises NoAnswer, ApiError."""
        stored = await self._connection.message(self.stream, {"last_by_subj": self.prefix + key})
        if stored is None:
            return Entry(0, None)
        return Entry(stored.sequence, None if OPERATION in stored.headers else stored.data)

    async def put(self, key: str, data: bytes | None, revision: int, answer_s: float | None = None) -> int | None:
        """Put it in place of that revision (None: delete it); its own, or None if another one is there now.

        Raises NoAnswer, after which only a read tells, and ApiError.
        """
        headers = {EXPECTED: str(revision)} | ({OPERATION: "DEL"} if data is None else {})
        try:
            return await self._connection.publish(self.prefix + key, data or b"", headers, answer_s)
        except ApiError as error:
            if error.code in WRONG_SEQUENCE:
                return None
            raise

    async def forget(self, key: str, revision: int) -> None:
        """Leave nothing of a key, not even that it was deleted, unless it has been put since that revision.

        Raises NoAnswer, ApiError.
        """
        await self._connection.api(f"STREAM.PURGE.{self.stream}", {"filter": self.prefix + key, "seq": revision + 1})

    async def last_sequence(self, answer_s: float | None = None) -> int:
        """Of the bucket's last change, whichever key had it. Raises NoAnswer, ApiError."""
        return int((await self._connection.api(f"STREAM.INFO.{self.stream}", None, answer_s))["state"]["last_seq"])
