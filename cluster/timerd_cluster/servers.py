"""The servers and their streams: whether they are what the log relies on, and what an acknowledgement means on them.

Checked at each start, before anything is read. What differs is named and refused, never changed: an operator has a
reason, or a stream of that name is somebody else's.
"""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import structlog

from timerd.engine.errors import ClusterRefused, CorruptLog
from timerd_cluster import message
from timerd_cluster.connection import ApiError, Connection, NoAnswer, Nobody
from timerd_cluster.names import Names

# 2.12 checks an expected sequence against what is under way as well, on the leader alone, so that replicas can't differ
# on it (nats-server pull request 7119); 2.12.3 loses less when servers leave a cluster (issue 7545). Reading in batches
# is in 2.11.
VERSION_MIN: Final = (2, 12, 3)
FORMAT: Final = "timerd-format"
LEASE: Final = "timerd-lease"
VERSIONED: Final[Mapping[str, str]] = {FORMAT: str(message.VERSION)}
NO_STREAM: Final = 10059
NOT_FOR_ACCOUNT: Final = 10039
NOT_NOW: Final = 10008  # they are choosing a leader
VARZ: Final = "$SYS.REQ.SERVER.PING.VARZ"
VARZ_S: Final = 1.0
TRIES: Final = 6  # a cluster that has just started has no leaders yet
AT_ONCE: Final = 8
ENDLESS: Final = 1 << 60
NANOSECONDS: Final = 1_000_000_000

Answer = TypeVar("Answer")

log = structlog.get_logger()

# What must not be otherwise, and why a stream that is otherwise loses or refuses turns.
SETTINGS: Final[Mapping[str, Any]] = {
    "storage": "file",
    "retention": "limits",
    "discard": "new",
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "no_ack": False,
    "sealed": False,
    "deny_delete": True,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
    "allow_direct": True,
    "allow_msg_ttl": False,
    "persist_mode": "default",
    "mirror": None,
    "sources": None,
    "subject_transform": None,
}
BUCKET_SETTINGS: Final[Mapping[str, Any]] = dict(SETTINGS) | {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True}
UNSET: Final[Mapping[str, Any]] = {"no_ack": False, "persist_mode": "default", "max_msg_size": -1}


class Servers:
    """What is known of them. Made by `check`; `streams` completes it."""

    def __init__(self, connection: Connection) -> None:
        self.replicas = 1
        """The fewest that any of our streams has."""
        self.sync = "unknown"
        """`always`, the longest interval as `120s`, or `unknown`: they have not said."""
        self.found = False
        """Any of the logs asked for had been there before."""
        self._connection = connection
        self._peers: set[str] = set()

    @property
    def durability(self) -> str:
        """What an acknowledgement means. What is not known is not claimed."""
        if self.replicas == 1:
            return "fsync" if self.sync == "always" else "none"
        return "quorum" if self.sync == "always" else "quorum-interval"

    @classmethod
    async def check(cls, connection: Connection) -> "Servers":
        """Raises ClusterRefused for servers that can't hold a log."""
        if version_of(connection.version) < VERSION_MIN:
            wanted = ".".join(map(str, VERSION_MIN))
            raise ClusterRefused(f"the NATS server is version {connection.version}; timerd needs {wanted} or later")
        for left in reversed(range(TRIES)):
            try:
                await connection.api("INFO")
                return cls(connection)
            except Nobody:
                raise ClusterRefused(
                    "the NATS server has no JetStream: put `jetstream { store_dir: ... }` into its configuration"
                ) from None
            except ApiError as error:
                if error.code == NOT_FOR_ACCOUNT:
                    raise ClusterRefused(
                        "JetStream is not enabled for this account: put `jetstream: enabled` into the account"
                    ) from None
                if not left:
                    raise ClusterRefused(f"JetStream answers that it can't: {error}") from None
            except NoAnswer as error:
                if not left:
                    raise ClusterRefused(f"JetStream does not answer: {error}; has its cluster a leader?") from None
            await asyncio.sleep(1)
        raise AssertionError("the last try returns or raises")

    async def streams(
        self,
        names: Names,
        shards: Sequence[int],
        replicas: int,
        lease_ms: int,
        *,
        new: bool = True,
        anew: Collection[int] = (),
        some: bool = False,
    ) -> None:
        """Make these shards' streams, or find that they are as they should be. Raises ClusterRefused, CorruptLog.

        Not `new`: somebody knows these shards, so a log that is missing was lost; with `some` that is an error for its
        shard alone, as long as there is any. Shards that are to begin `anew` do, if their streams are lost.
        The lease is kept with the streams: owner and taker must count with the same one.
        """
        wanted = _wanted(names, shards)
        found = dict(zip(wanted, await several([self._info(name) for name in wanted]), strict=True))
        written = [name for name, info in found.items() if info is not None and info["state"]["last_seq"]]
        for shard in shards:
            name = names.log(shard)
            if shard in anew:
                _begin_anew(shard, name, names.bodies(shard), found)
            elif found[name] is None and (written or not new):
                who = f"{written[0]} holds data" if written else "the catalogue knows its shard"
                lost = CorruptLog(f"stream {name}", 0, f"it is missing, while {who}: its timers are gone from here")
                if not some or not written:
                    raise lost
                log.critical("shard_lost", shard=shard, reason=str(lost))
                for each in (name, names.bodies(shard)):
                    del found[each], wanted[each]
        shards = [shard for shard in shards if names.log(shard) in found]
        self.found = any(found[names.log(shard)] is not None for shard in shards)
        infos = await self._ensured(found, wanted, replicas, SETTINGS, {**VERSIONED, LEASE: f"{lease_ms} ms"})
        self.replicas = min(int(info["config"]["num_replicas"]) for info in infos)
        self._peers = set().union(*(_peers(info) for info in infos))
        self.sync = await self._sync()

    async def verify(self, names: Names, shard: int, replicas: int, lease_ms: int) -> None:
        """One shard's streams once more, before it is read. Raises ClusterRefused, CorruptLog, NoAnswer."""
        wanted = _wanted(names, [shard])
        found = {name: await self._info(name) for name in wanted}
        if found[names.log(shard)] is None:
            raise CorruptLog(f"stream {names.log(shard)}", 0, "it is missing: the shard's timers are gone from here")
        await self._ensured(found, wanted, replicas, SETTINGS, {**VERSIONED, LEASE: f"{lease_ms} ms"})

    async def written(self, names: Names) -> int:
        """As many shards as have streams, if any of these has ever held anything; else 0. Raises NoAnswer, ApiError."""
        subjects = (f"{names.prefix}.log.*", names.body_subject("*", "*", "*"))
        answers = [await self._connection.api("STREAM.NAMES", {"subject": subject}) for subject in subjects]
        all_names = [name for answer in answers for name in answer.get("streams") or ()]
        found = [name for name in all_names if name.rpartition("-")[2].isdigit()]
        infos = await several([self._info(name) for name in found])
        if not any(info is not None and info["state"]["last_seq"] for info in infos):
            return 0
        return 1 + max(int(name.rpartition("-")[2]) for name in found)

    async def bucket(self, names: Names, name: str, replicas: int) -> None:
        """Make a key-value bucket, or find that it is as it should be. Raises ClusterRefused."""
        wanted = {names.bucket_stream(name): names.bucket_subject(name, ">")}
        await self._ensured(
            {stream: await self._info(stream) for stream in wanted}, wanted, replicas, BUCKET_SETTINGS, VERSIONED
        )

    async def _ensured(
        self,
        found: dict[str, Mapping[str, Any] | None],
        wanted: Mapping[str, str],
        replicas: int,
        settings: Mapping[str, Any],
        metadata: Mapping[str, str],
    ) -> list[Mapping[str, Any]]:
        """What the server says of these streams (name -> subject), once they are there and as they should be."""
        missing = [name for name, info in found.items() if info is None]
        made = await several([self._make(name, wanted[name], replicas, settings, metadata) for name in missing])
        infos = [info for info in (found | dict(zip(missing, made, strict=True))).values() if info is not None]
        for info in infos:
            name = info["config"]["name"]
            if differences := list(differing(info["config"], wanted[name], replicas, settings, metadata)):
                raise ClusterRefused(f"stream {name} is not as timerd made it: {'; '.join(differences)}")
        return infos

    async def _info(self, name: str) -> Mapping[str, Any] | None:
        try:
            return await self._connection.api(f"STREAM.INFO.{name}")
        except ApiError as error:
            if error.code == NO_STREAM:
                return None
            raise ClusterRefused(f"stream {name}: {error}") from None

    async def _make(
        self, name: str, subject: str, replicas: int, settings: Mapping[str, Any], metadata: Mapping[str, str]
    ) -> Mapping[str, Any]:
        config: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
        config.update(name=name, subjects=[subject], num_replicas=replicas, metadata=dict(metadata))
        for left in reversed(range(TRIES)):
            try:
                await self._connection.api(f"STREAM.CREATE.{name}", config)
            except NoAnswer as error:
                if not left:
                    raise ClusterRefused(f"stream {name} can't be made: {error}") from None
            except ApiError as error:
                if (info := await self._info(name)) is not None:
                    return info  # somebody else has just made it
                if error.code != NOT_NOW or not left:
                    raise ClusterRefused(f"stream {name} can't be made with {replicas} replicas: {error}") from None
            if (info := await self._info(name)) is not None:
                return info
            await asyncio.sleep(1)
        raise ClusterRefused(f"stream {name} was made, and is not there")

    async def free_bytes(self) -> int:
        """How much more each of them takes, by what they and the account's limits say. Raises NoAnswer, ApiError."""
        account = await self._connection.api("INFO")
        limit = int(account.get("limits", {}).get("max_storage", -1))
        free = [ENDLESS] if limit < 0 else [(limit - int(account["storage"])) // self.replicas]
        for said in (await self._varz()).values():
            room = int(said["config"].get("max_storage", -1))
            free += [room - int((said.get("stats") or {}).get("storage", 0))] if room > 0 else []
        return max(0, min(free))

    async def _sync(self) -> str:
        """What the servers say of their syncing."""
        configs = [said["config"] for said in (await self._varz()).values()]
        if not self._peers or len(configs) < len(self._peers):
            return "unknown"
        if all(config.get("sync_always") for config in configs):
            return "always"
        longest = max(config.get("sync_interval", 0) for config in configs if not config.get("sync_always"))
        return f"{longest / NANOSECONDS:g}s"

    async def _varz(self) -> Mapping[str, Mapping[str, Any]]:
        """What those servers that hold our streams say of their JetStream, by name.

        They say it only where the account may ask (docs/cluster.md).
        """
        said: dict[str, Mapping[str, Any]] = {}

        def enough(answers: Sequence[Mapping[str, Any]]) -> bool:
            for answer in answers:
                jetstream = (answer.get("data") or {}).get("jetstream") or {}
                if jetstream.get("config") and answer["server"]["name"] in self._peers:
                    said[answer["server"]["name"]] = jetstream
            return len(said) == len(self._peers)

        if self._peers:
            await self._connection.gather(VARZ, VARZ_S, enough)
        return said


def _begin_anew(shard: int, name: str, bodies: str, found: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Whether a shard may, whose log is to be made: one that is there stays. Raises ClusterRefused."""
    payloads = found[bodies]
    if found[name] is not None:
        log.warning("shard_not_begun_anew", shard=shard, reason=f"stream {name} is there, and stays as it is")
    elif payloads is not None and payloads["state"]["last_seq"]:
        raise ClusterRefused(
            f"shard {shard} can't begin anew: its stream {name} is lost, and {bodies}, with its payloads, is there. "
            "Put the first back from a backup, or remove the second too"
        )
    else:
        log.warning("shard_begun_anew", shard=shard)


def _wanted(names: Names, shards: Sequence[int]) -> dict[str, str]:
    """The streams of these shards, with their subjects."""
    logs = {names.log(shard): names.log_subject(shard) for shard in shards}
    return logs | {names.bodies(shard): names.body_subject(shard, "*", "*") for shard in shards}


def version_of(text: str) -> tuple[int, ...]:
    """2.12.3-RC.1 -> (2, 12, 3)."""
    return tuple(int(part) for part in text.split("-")[0].split(".") if part.isdigit())


def differing(
    config: Mapping[str, Any], subject: str, replicas: int, settings: Mapping[str, Any], metadata: Mapping[str, str]
) -> Iterable[str]:
    """What of a stream's settings is not as it should be, in words."""
    said = config.get("metadata") or {}
    for key, text in metadata.items():
        if said.get(key) != text:
            yield f"its {key} is {said.get(key, 'missing')}, not {text}"
    if config.get("subjects") != [subject]:
        yield f"its subjects are {config.get('subjects')}, not {[subject]}"
    if config.get("num_replicas") != replicas:
        yield f"it has {config.get('num_replicas')} replicas, not {replicas}"
    for key, value in settings.items():
        found = config.get(key, UNSET.get(key))
        if found != value and not (value is None and not found):
            yield f"{key} is {found}, not {value}"


async def several(jobs: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """The answers of all, a few at once."""
    found: list[Answer] = []
    try:
        for at in range(0, len(jobs), AT_ONCE):
            found += await asyncio.gather(*jobs[at : at + AT_ONCE])
    finally:
        for job in jobs[len(found) + AT_ONCE :]:
            job.close()  # after an error nobody waits for it
    return found


def _peers(info: Mapping[str, Any]) -> set[str]:
    """The names of the servers that hold a stream."""
    cluster = info.get("cluster") or {}
    return {cluster.get("leader", "")} - {""} | {replica["name"] for replica in cluster.get("replicas") or ()}
