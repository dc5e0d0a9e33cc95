"""Configuration: flag over environment over file, and every refusal names its option."""

import re
from pathlib import Path

import pytest

from timerd.config import Config, ConfigError, option_names, read_config


def test_flag_over_environment_over_file_over_default(tmp_path):
    file = tmp_path / "timerd.toml"
    file.write_text('port = 1\nnode = "file"\nmax-body = 2048\nmax-payload = 1024\n[types.a]\nurl = "http://h/"\n')
    config = read_config({"port": 3}, {"TIMERD_PORT": "2", "TIMERD_NODE": "environment"}, str(file))
    assert (config.port, config.node, config.max_body) == (3, "environment", 2048)
    assert config.types == {"a": {"url": "http://h/"}}
    assert config.host == Config().host


def test_networks_are_repeated_as_flags_and_lists_elsewhere(tmp_path):
    file = tmp_path / "timerd.toml"
    file.write_text('callback-allow = ["10.0.0.0/8", "fd00::/8"]\n')
    assert read_config({}, {}, str(file)).callback_allow == ["10.0.0.0/8", "fd00::/8"]
    given = read_config({"callback_allow": []}, {"TIMERD_CALLBACK_ALLOW": "10.1.0.0/16, ::1"}, str(file))
    assert given.callback_allow == ["10.1.0.0/16", "::1"]
    assert read_config({"callback_allow": ["127.0.0.0/8"]}, {}, str(file)).callback_allow == ["127.0.0.0/8"]


def test_every_option_can_come_from_the_environment():
    assert set(option_names()) == set(Config.__struct_fields__) - {"types"}
    assert read_config({}, {"TIMERD_INSECURE": "true", "TIMERD_SHARDS": "3"}, None).insecure


@pytest.mark.parametrize(
    ("flags", "environment", "named"),
    [
        ({"port": 70_000}, {}, "--port"),
        ({"shards": 0}, {}, "--shards"),
        ({"grace": -1.0}, {}, "--grace"),
        ({}, {"TIMERD_GRACE": "nan"}, "--grace"),
        ({}, {"TIMERD_GRACE": "inf"}, "--grace"),
        ({"api_key": " "}, {}, "--api-key"),
        ({}, {"TIMERD_API_KEY": f" td_k3jx5a2q_{'A' * 43}"}, r"--api-key \(TIMERD_API_KEY\)"),
        ({"segment_bytes": 10}, {}, "--segment-bytes"),
        ({"max_payload": 1 << 30}, {}, "--max-payload"),
        ({"tls_cert": "a.pem"}, {}, "--tls-cert"),
        ({"node": ""}, {}, "--node"),
        ({"callback_allow": ["10.0.0.1/8"]}, {}, "--callback-allow"),
        ({"callback_allow": ["10.0.0.0"]}, {}, "--callback-allow.*10.0.0.0/32"),
        ({"callback_allow": ["fd00::"]}, {}, "--callback-allow.*fd00::/128"),
        ({}, {"TIMERD_CALLBACK_ALLOW": "10.0.0.0/8,localhost"}, "--callback-allow"),
        ({"callback_cert": "a.pem"}, {}, "--callback-cert"),
        ({"cluster_new_shard": [1]}, {}, "--cluster-new-shard is about a cluster"),
        ({}, {"TIMERD_CLUSTER": "nats://a:1", "TIMERD_CLUSTER_NEW_SHARD": "3,x"}, "cluster_new_shard"),
        ({"log_level": "loud"}, {}, "--log-level"),
        ({}, {"TIMERD_PORT": "many"}, "port"),
    ],
)
def test_a_refusal_names_the_option(flags, environment, named):
    with pytest.raises(ConfigError, match=named):
        read_config(flags, environment, None)


ROWS = re.findall(
    r"^\| (`.+?) \| .+? \| (.+) \|$", (Path(__file__).parents[1] / "docs/configuration.md").read_text(), re.MULTILINE
)
TOLD = {name: text for names, text in ROWS for name in re.findall("`([a-z_]+)`", names)}


def test_the_page_tells_every_option():
    assert set(option_names()) <= set(TOLD)


@pytest.mark.parametrize(
    ("name", "least", "most", "told"),
    [
        ("port", 0, 65_535, "0 to 65535"),
        ("shards", 1, 1_024, "1 to 1024"),
        ("shard_capacity", 1_000, 1 << 40, "1000 or more"),
        ("grace", 0, 86_400, "0 to 86400"),
        ("segment_bytes", 64 << 10, 1 << 30, "64 KiB to 1 GiB"),
        ("cluster_lease", 0.1, 60, "0.1 to 60"),
        ("max_body", 1 << 10, 1 << 30, "1 KiB to 1 GiB"),
    ],
)
def test_the_page_tells_the_bounds_that_are_enforced(name, least, most, told):
    assert told in TOLD[name]
    for value in (least, most):
        assert getattr(read_config({name: value, "max_payload": 0}, {}, None), name) == value
    for value in (least - 0.05, most + 0.05) if name == "cluster_lease" else (least - 1, most + 1):
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}"):
            read_config({name: value, "max_payload": 0}, {}, None)


@pytest.mark.parametrize(
    "servers", ["", " , ", "nats1:4222", "http://nats1", "nats://", "nats://a:port", "nats://[::1"]
)
def test_what_names_no_servers_is_refused(servers):
    with pytest.raises(ConfigError, match="--cluster must name servers"):
        read_config({"cluster": servers}, {}, None)


def test_servers_may_have_passwords_that_are_shown_to_nobody():
    config = read_config({"cluster": "nats://me:hidden@a:4222, tls://b"}, {"TIMERD_CLUSTER_REPLICAS": "1"}, None)
    assert config.cluster_replicas == 1
    assert "hidden" not in repr(config)


@pytest.mark.parametrize(
    ("flags", "environment", "text", "said"),
    [
        ({"data": "d", "cluster": "nats://a"}, {}, "", r"--data \(the flag\).*--cluster \(the flag\)"),
        ({"data": "d"}, {"TIMERD_CLUSTER": "nats://a"}, "", r"--data \(the flag\).*--cluster \(TIMERD_CLUSTER\)"),
        ({"data": "d"}, {"TIMERD_DATA": "e", "TIMERD_CLUSTER": "nats://a"}, "", r"--data \(the flag\)"),
        ({}, {"TIMERD_CLUSTER": "nats://a"}, 'data = "d"', r"--data \(in .*timerd.toml\).*\(TIMERD_CLUSTER\)"),
        ({}, {}, 'data = "d"\ncluster = "nats://a"', r"--data \(in .*toml\).*--cluster \(in .*toml\)"),
        ({"cluster": "nats://a"}, {"TIMERD_DATA": "/var/lib/timerd"}, "", None),
        ({}, {"TIMERD_DATA": "/var/lib/timerd", "TIMERD_CLUSTER": "nats://a"}, "", None),
        ({"data": "d"}, {}, "", None),
    ],
)
def test_a_directory_and_a_cluster_are_not_asked_for_at_once(tmp_path, flags, environment, text, said):
    """But the environment of an image always names a directory."""
    file = tmp_path / "timerd.toml"
    file.write_text(text)
    if said is None:
        assert read_config(flags, environment, str(file)).data != Config().data
        return
    with pytest.raises(ConfigError, match=said):
        read_config(flags, environment, str(file))


@pytest.mark.parametrize("text", ["port = ", "nonsense = 1", 'port = "x"', "[types]\na = 1"])
def test_a_bad_file_is_refused(tmp_path, text):
    file = tmp_path / "timerd.toml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        read_config({}, {}, str(file))


def test_a_missing_file_is_refused():
    with pytest.raises(ConfigError, match="nowhere"):
        read_config({}, {}, "/nowhere.toml")
