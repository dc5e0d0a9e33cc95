"""The catalogue in a cluster: types, API keys and the ring table in a key-value bucket.

A bucket is a stream that keeps the last message of each subject; `nats kv` reads it. A value is the same JSON as a row
of the catalogue on one machine. Every change is acknowledged by the bucket's leader before its call returns; one whose
outcome is not known is made again, which does no harm. Reads are the leader's, never a replica's that may be behind.

The ring table is put before the first turn is written, and never taken away. So logs that hold something, and no ring
table, are a catalogue that was lost: nobody makes another one in its place who was not told to.
"""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from timerd.engine.errors import CatalogFull, ClusterRefused, IncompleteDirectory, UnreadableCatalog
from timerd.engine.ring import RingTable
from timerd.engine.timer import TimerType
from timerd.ports import ApiKey, Utilisation
from timerd.stored import stored_digest, stored_key, stored_secret, stored_table, stored_type
from timerd_cluster.bucket import OPERATION, Bucket
from timerd_cluster.connection import ApiError, Connection, NoAnswer
from timerd_cluster.names import Names
from timerd_cluster.servers import NO_STREAM, Servers, several
from timerd_cluster.shard_stream import NO_ROOM, PAUSE_MAX_S, PAUSE_S

BUCKET: Final = "catalog"
RING: Final = "ring.table"
OF_NODES: Final = "secret.cluster"
DIGEST: Final = "secret.digest"
DIGESTED: Final = b"timerd: the secret of a cluster's nodes"

log = structlog.get_logger()


class KvCatalog:
    """Implements `timerd.ports.Catalog`. Made by `open`. What reads raises UnreadableCatalog for a value of no form."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self._stream = names.bucket_stream(BUCKET)
        self._subject = names.bucket_subject(BUCKET, "")
        self._bucket = Bucket(connection, names, BUCKET)

    @classmethod
    async def open(cls, connection: Connection, names: Names, replicas: int, *, anew: bool = False) -> "KvCatalog":
        """Check the servers and the bucket, which is made if there is none. The connection stays the caller's.

        `anew`: although logs are there that had one. Raises ClusterRefused, IncompleteDirectory, NoAnswer, ApiError.
        """
        catalog = cls(connection, names)
        servers = await Servers.check(connection)
        if not anew:
            await catalog.refuse_if_lost(servers)  # first: a bucket that is made now is in the way of a backup
        await servers.bucket(names, BUCKET, replicas)
        return catalog

    async def refuse_if_lost(self, servers: Servers) -> None:
        """Raises IncompleteDirectory where logs hold something and no ring table is kept; NoAnswer, ApiError."""
        if await self._has_ring() or not await servers.written(self._names) or await self._has_ring():
            return  # the third: another node may have begun meanwhile
        raise IncompleteDirectory(
            f"there are logs and no catalogue (the bucket {self._names.prefix}-{BUCKET}), which holds the types and "
            "the keys. Put it back from a backup (docs/cluster.md); or, if it is lost, stop all nodes, start one with "
            "--cluster-new-catalog, and put the types again"
        )

    async def _has_ring(self) -> bool:
        try:
            return (await self._bucket.read(RING)).data is not None
        except ApiError as error:
            if error.code == NO_STREAM:
                return False
            raise

    async def types(self) -> list[TimerType]:
        """All types, by name."""
        found = [stored_type(key, name_at(key), data) for key, data in (await self._read("type")).items()]
        return sorted(found, key=lambda type: type.name)

    async def put_type(self, type: TimerType) -> None:
        """Add or replace a type."""
        await self._write(f"type.{key_of(type.name)}", msgspec.json.encode(type))

    async def delete_type(self, name: str) -> None:
        """Delete a type, if there is one of that name."""
        await self._write(f"type.{key_of(name)}", None)

    async def swap_type(self, name: str, before: TimerType | None, after: TimerType | None) -> bool:
        """Put a type in place of another (None: none); False: that is not there any more. Raises as `put_type` does."""
        key = f"type.{key_of(name)}"
        old, new = (None if type is None else msgspec.json.encode(type) for type in (before, after))
        sent = False
        pause = PAUSE_S
        while True:
            try:
                entry = await self._bucket.read(key)
                there = None if entry.data is None else stored_type(key, name, entry.data)
                now = None if there is None else msgspec.json.encode(there)
                if sent and now == new:
                    return True  # an answer was lost
                if now != old:
                    return False
                sent = True
                if await self._bucket.put(key, new, entry.revision) is not None:
                    return True
                continue
            except NoAnswer as error:
                log.warning("catalogue_unknown", reason=str(error))
            except ApiError as error:
                if error.code in NO_ROOM:
                    raise CatalogFull(error.text) from error
                log.warning("catalogue_unknown", reason=str(error))
            await asyncio.sleep(pause)
            pause = min(PAUSE_MAX_S, 2 * pause)

    async def keys(self) -> list[ApiKey]:
        """All API keys, by id. Where some can't be read, the error has the others."""
        found: list[ApiKey] = []
        faults: list[str] = []
        for subject, data in (await self._read("key")).items():
            try:
                found.append(stored_key(subject, name_at(subject), data))
            except UnreadableCatalog as error:
                faults.append(str(error))
        found.sort(key=lambda key: key.id)
        if faults:
            raise UnreadableCatalog("; ".join(faults[:3]), found)
        return found

    async def put_key(self, key: ApiKey) -> None:
        """Add or replace a key."""
        await self._write(f"key.{key_of(key.id)}", msgspec.json.encode(key))

    async def delete_key(self, id: str) -> None:
        """Delete a key, if there is one of that id."""
        await self._write(f"key.{key_of(id)}", None)

    async def ring(self) -> RingTable | None:
        """The ring table, or None before the first was put."""
        data = (await self._bucket.read(RING)).data
        return None if data is None else stored_table(RING, data)

    async def begin_ring(self, table: RingTable) -> RingTable:
        """Put the first ring table, unless there is one by now; the one that stands. Raises NoAnswer, ApiError."""
        while True:
            entry = await self._bucket.read(RING)
            if entry.data is not None:
                return stored_table(RING, entry.data)
            if await self._bucket.put(RING, msgspec.json.encode(table), entry.revision) is not None:
                return table

    async def secret(self, given: str | None, made: str) -> str:
        """What the nodes know each other by: the one `given` here, or the one that is kept, else `made` is kept.

        A digest is kept of the first, and another one is refused: its node would have shards that no other can ask for.
        Who can read it here can write to the logs as well. Raises ClusterRefused, NoAnswer, ApiError.
        """
        digest = await self._bucket.read(DIGEST)
        kept = given
        if kept is None:
            entry = await self._bucket.read(OF_NODES)
            if entry.data is not None:
                kept = stored_secret(OF_NODES, entry.data)
            elif digest.data is None:
                kept = stored_secret(OF_NODES, await self._first(OF_NODES, made))
            else:
                raise ClusterRefused("TIMERD_CLUSTER_SECRET is not set here, and the nodes of this cluster have one")
        if stored_digest(DIGEST, await self._first(DIGEST, digest_of(kept))) != digest_of(kept):
            raise ClusterRefused(
                "TIMERD_CLUSTER_SECRET is not the one of this cluster's nodes: they could not ask this one anything "
                "(docs/cluster.md, Secret, says how to replace it)"
            )
        return kept

    async def _first(self, key: str, value: str) -> bytes:
        """Put it, unless there is one by now; the one that stands. Raises NoAnswer, ApiError."""
        while True:
            entry = await self._bucket.read(key)
            if entry.data is not None:
                return entry.data
            if await self._bucket.put(key, value.encode(), entry.revision) is not None:
                return value.encode()

    async def put_ring(self, table: RingTable) -> None:
        """Replace the ring table."""
        await self._write(RING, msgspec.json.encode(table))

    async def utilisation(self) -> list[Utilisation]:
        """Nothing: in a cluster the number of shards is fixed, for now."""
        return []

    async def put_utilisation(self, rows: Sequence[Utilisation]) -> None:
        """Nothing is kept, since nobody would read it."""

    async def close(self) -> None:
        """The connection stays."""

    async def _read(self, kind: str) -> Mapping[str, bytes]:
        """All values of a kind, by subject. Raises NoAnswer, ApiError."""
        wanted: dict[str, Any] = {"subjects_filter": f"{self._subject}{kind}.*", "offset": 0}
        subjects: list[str] = []
        while True:
            answer = await self._connection.api(f"STREAM.INFO.{self._stream}", wanted)
            page = answer["state"].get("subjects") or {}
            subjects += page
            wanted["offset"] += len(page)
            if not page or wanted["offset"] >= answer.get("total", 0):
                break
        found = await several(
            [self._connection.message(self._stream, {"last_by_subj": subject}) for subject in sorted(subjects)]
        )
        return {
            subject: stored.data
            for subject, stored in zip(sorted(subjects), found, strict=True)
            if stored is not None and OPERATION not in stored.headers
        }

    async def _write(self, key: str, data: bytes | None) -> None:
        """Raises CatalogFull. Waits for the servers, for as long as it takes."""
        headers = {OPERATION: "DEL"} if data is None else {}
        pause = PAUSE_S
        while True:
            try:
                await self._connection.publish(self._subject + key, data or b"", headers)
                return
            except NoAnswer as error:
                log.warning("catalogue_unknown", reason=str(error))
            except ApiError as error:
                if error.code in NO_ROOM:
                    raise CatalogFull(error.text) from error
                log.warning("catalogue_unknown", reason=str(error))
            await asyncio.sleep(pause)
            pause = min(PAUSE_MAX_S, 2 * pause)


def digest_of(secret: str) -> str:
    """Tells secrets apart without telling them."""
    return hmac.digest(secret.encode(), DIGESTED, hashlib.sha256).hex()


def key_of(name: str) -> str:
    """A name as a bucket takes it for a key: what is neither letter, digit, `_` nor `-` is written as =XX."""
    return re.sub(rb"[^A-Za-z0-9_-]", lambda match: b"=%02X" % ord(match[0]), name.encode()).decode()


def name_at(subject: str) -> str:
    """The name whose value lies at this subject; "", which is nobody's, for one that `key_of` does not make."""
    key = subject.rpartition(".")[2]
    name = name_of(key)
    return name if key_of(name) == key else ""


def name_of(key: str) -> str:
    """The name that has this key."""
    return re.sub(rb"=([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), key.encode()).decode(errors="replace")
