"""What the servers and streams must be, what is said when they are not, and what is known of their syncing."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.cluster.nats_server import NatsServer, free_ports
from tests.cluster.open_log import Opener, boot_ms, opener_of
from tests.storage.laid import armed
from timerd.engine.errors import ClusterRefused, CorruptLog
from timerd_cluster import connection, servers
from timerd_cluster.connection import ApiError, Connection, Unreachable, UserRefused
from timerd_cluster.stream_log import StreamLog


@pytest_asyncio.fixture
async def opener(shared_server: NatsServer) -> AsyncIterator[Opener]:
    opener = opener_of(shared_server)
    yield opener
    await opener.close()


async def refusal(opener: Opener, replicas: int = 1) -> str:
    with pytest.raises(ClusterRefused) as caught:
        await opener.open(replicas=replicas)
    return str(caught.value)


async def test_one_server_that_syncs_always_is_as_good_as_a_disk(opener: Opener) -> None:
    log = await opener.open()
    assert (log.durability, log.replicas, log.sync) == ("fsync", 1, "always")


async def test_a_server_that_syncs_now_and_then_promises_nothing(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "lazy", free_ports(1)[0], sync='"90s"')
    await server.start()
    opener = opener_of(server)
    log = await opener.open()
    assert (log.durability, log.replicas, log.sync) == ("none", 1, "90s")
    await opener.close()
    await server.kill()


async def test_what_the_account_may_not_ask_is_not_known_and_not_claimed(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "mute", free_ports(1)[0])
    config = tmp_path / "mute" / "server.conf"
    config.write_text(config.read_text().replace("$SYS.REQ.SERVER.PING.VARZ", "$SYS.REQ.SERVER.PING.STATSZ"))
    await server.start()
    opener = opener_of(server)
    log = await opener.open()
    assert (log.durability, log.sync) == ("none", "unknown")
    await opener.close()
    await server.kill()


async def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_TRIES", 1)
    with pytest.raises(Unreachable, match=r"no NATS server at 127.0.0.1:\d+"):
        await Connection.connect([f"nats://user:hidden@127.0.0.1:{free_ports(1)[0]}"], "test")


async def test_a_wrong_password_is_no_server(shared_server: NatsServer) -> None:
    with pytest.raises(UserRefused, match=r"refuses user or password.*Authorization Violation.*TIMERD_CLUSTER"):
        await Connection.connect([shared_server.url.replace(":t@", ":wrong@")], "test")


async def test_a_server_without_jetstream(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "bare", free_ports(1)[0], jetstream=False)
    await server.start()
    opener = opener_of(server)
    assert "has no JetStream" in await refusal(opener)
    await opener.close()
    await server.kill()


async def test_an_account_without_jetstream(shared_server: NatsServer) -> None:
    opener = Opener(shared_server.url.replace("timerd:t", "bare:b"))
    assert "JetStream is not enabled for this account" in await refusal(opener)
    await opener.close()


async def test_a_server_that_is_too_old(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    version = (await opener.connect()).version
    monkeypatch.setattr(servers, "VERSION_MIN", (99, 1, 0))
    assert await refusal(opener) == f"the NATS server is version {version}; timerd needs 99.1.0 or later"


def test_versions_are_compared_as_numbers() -> None:
    assert servers.version_of("2.12.3") < servers.version_of("2.12.10-RC.1") < servers.version_of("2.14.0")


async def test_replicas_that_the_servers_cannot_hold(opener: Opener) -> None:
    said = await refusal(opener, replicas=3)
    assert "can't be made with 3 replicas: replicas > 1 not supported in non-clustered mode" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_age": 3_600_000_000_000}, "max_age is 3600000000000, not 0"),
        ({"max_msgs": 10}, "max_msgs is 10, not -1"),
        ({"max_bytes": 1_000_000}, "max_bytes is 1000000, not -1"),
        ({"discard": "old"}, "discard is old, not new"),
        ({"allow_direct": False}, "allow_direct is False, not True"),
        ({"metadata": {"timerd-format": "2", "timerd-lease": "0 ms"}}, "its timerd-format is 2, not 1"),
        ({"metadata": {"timerd-lease": "0 ms"}}, "its timerd-format is missing, not 1"),
        ({"metadata": {"timerd-format": "1", "timerd-lease": "9 ms"}}, "its timerd-lease is 9 ms, not 0 ms"),
        ({"subjects": ["somewhere.else"]}, "its subjects are ['somewhere.else'], not ['{prefix}.log.0']"),
    ],
)
async def test_a_stream_whose_settings_differ_is_named_with_what_differs(
    opener: Opener, change: dict[str, Any], said: str
) -> None:
    log = await opener.open()
    await log.close()
    connection = await opener.connect()
    name = opener.names.log(0)
    config = dict((await connection.api(f"STREAM.INFO.{name}"))["config"])
    if "subjects" in change:
        change = {"subjects": [f"{opener.names.prefix}.{change['subjects'][0]}"]}
        said = said.replace("somewhere", f"{opener.names.prefix}.somewhere")
    await connection.api(f"STREAM.UPDATE.{name}", config | change)
    said = said.replace("{prefix}", opener.names.prefix)
    assert await refusal(opener) == f"stream {name} is not as timerd made it: {said}"


async def test_settings_that_can_not_be_changed_later_differ_in_a_stream_of_somebody_else(opener: Opener) -> None:
    connection = await opener.connect()
    name = opener.names.log(0)
    await connection.api(
        f"STREAM.CREATE.{name}", {"name": name, "subjects": [opener.names.log_subject(0)], "storage": "memory"}
    )
    said = await refusal(opener)
    for part in ("its timerd-format is missing", "storage is memory, not file", "deny_delete is False, not True"):
        assert part in said


async def test_a_stream_that_is_missing_among_others_that_hold_data_is_a_loss(opener: Opener) -> None:
    log, _ = await opener.replayed((0, 1))
    await log.append([armed(0, 1), armed(1, 1)])
    await (await opener.connect()).api(f"STREAM.DELETE.{opener.names.log(1)}")
    with pytest.raises(CorruptLog, match=f"stream {opener.names.log(1)}: .* it is missing"):
        await opener.open((0, 1))


async def test_a_stream_that_is_missing_though_its_shard_is_known_is_a_loss_and_stays_missing(opener: Opener) -> None:
    """Were it made, the next start would find a new and empty log."""
    log_open = StreamLog.open(await opener.connect(), opener.names, (0,), "w", 1, new=False, boot_ms=boot_ms)
    with pytest.raises(CorruptLog, match="it is missing, while the catalogue knows its shard"):
        await log_open
    with pytest.raises(ApiError, match="stream not found"):
        await (await opener.connect()).api(f"STREAM.INFO.{opener.names.log(0)}")


async def test_a_lost_log_begins_anew_when_it_is_said_unless_payloads_of_it_are_there(opener: Opener) -> None:
    log, _ = await opener.replayed((0, 1))
    log.place_bodies(1, [("a", b"a" * 600)])
    await log.append([armed(0, 1), armed(1, 1)])
    connection = await opener.connect()

    async def begin(shard: int) -> None:
        found = await servers.Servers.check(connection)
        await found.streams(opener.names, (0, 1), 1, opener.lease_ms, new=False, anew=(shard,), some=True)

    await connection.api(f"STREAM.DELETE.{opener.names.log(1)}")
    with pytest.raises(ClusterRefused, match="shard 1 can't begin anew"):
        await begin(1)
    await connection.api(f"STREAM.DELETE.{opener.names.bodies(1)}")
    await begin(1)
    assert len((await opener.replayed((0, 1)))[1]) == 1
    await connection.api(f"STREAM.DELETE.{opener.names.log(0)}")
    await begin(0)  # its stream of payloads is there, and there are none
    assert (await opener.replayed((0, 1)))[1] == []


async def test_a_stream_of_bodies_that_is_missing_is_a_loss_for_who_has_bodies_there(opener: Opener) -> None:
    log, _ = await opener.replayed()
    places = log.place_bodies(0, [("a", b"a" * 600)])
    await log.append([armed(0, 1)])
    await (await opener.connect()).api(f"STREAM.DELETE.{opener.names.bodies(0)}")
    again, _ = await opener.replayed()
    with pytest.raises(CorruptLog, match="live timers have their payloads in this segment, and it is missing"):
        await again.check_bodies(places)


@pytest.mark.parametrize("kind", ["header", "data", "none"])
async def test_a_message_that_is_not_ours_is_no_end_of_the_log_but_damage(opener: Opener, kind: str) -> None:
    log, _ = await opener.replayed()
    await log.append([armed(0, 1)])
    stored = await (connection := await opener.connect()).message(opener.names.log(0), {"seq": 1})
    assert stored is not None
    value = stored.headers["Timerd-Turn"]
    headers = {"header": {"Timerd-Turn": value.replace("1 1 1", "1 1 2")}, "data": {"Timerd-Turn": value}, "none": {}}
    data = stored.data if kind == "header" else b"something else"
    await connection.publish(opener.names.log_subject(0), data, headers[kind] or {"Other": "1"})
    said = {"header": "checksum .* is wrong", "data": "checksum .* is wrong", "none": "without the header Timerd-Turn"}
    with pytest.raises(CorruptLog, match=f"stream {opener.names.log(0)}: offset 2: .*{said[kind]}"):
        await opener.replayed()
