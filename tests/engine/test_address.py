"""Which addresses callbacks may go to, and how they are read."""

from ipaddress import ip_address

import pytest

from timerd.engine.address import Targets, is_canonical, literal, parse_network, within

PUBLIC = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]
REFUSED = [
    *("0.0.0.0", "0.1.2.3", "10.255.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254"),
    *("169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1"),
    *("192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1"),
    *("240.0.0.1", "255.255.255.255", "100.100.100.200", "168.63.129.16"),
    *("::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::127.0.0.1"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "fe80::1", "fec0::1", "fd00:ec2::254", "fc00::1", "ff02::1"),
    *("2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:2::1", "2001:10::1", "2001:db8::1", "2002:7f00:1::"),
    *("2002:808:808::", "3fff::1", "4000::1", "100::1", "5f00::1"),
]


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_may_be_reached(text: str) -> None:
    assert Targets().refusal(ip_address(text)) is None


@pytest.mark.parametrize("text", REFUSED)
def test_special_addresses_may_not(text: str) -> None:
    assert "callbacks may not go there without --callback-allow" in (Targets().refusal(ip_address(text)) or "")


def test_what_is_allowed_is_the_network_named_and_what_carries_it() -> None:
    targets = Targets([parse_network("10.1.0.0/16"), parse_network("::1")])
    for text in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "::1"):
        assert targets.refusal(ip_address(text)) is None
    for text in ("10.2.0.1", "::ffff:10.2.0.1", "127.0.0.1", "::"):
        assert targets.refusal(ip_address(text))
    assert Targets([parse_network("0.0.0.0/0")]).refusal(ip_address("::1"))


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("127.0.1", "127.0.0.1"),
        ("10.0x10.8", "10.16.0.8"),
        ("0177.0.0.01", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0x7F000001", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("0", "0.0.0.0"),
        ("[::1]", "::1"),
        ("fe80::1%25eth0", "fe80::1"),
        ("example.com", None),
        ("1.2.3.4.5", None),
        ("256.1.1.1", None),
        ("4294967296", None),
        ("1.2.3.256", None),
        ("09.1.1.1", None),
        ("a.1", None),
        ("", None),
        ("1..2", None),
    ],
)
def test_literals_are_read_as_systems_read_them(host: str, address: str | None) -> None:
    assert literal(host) == (None if address is None else ip_address(address))


def test_only_the_plain_form_is_canonical() -> None:
    assert [is_canonical(host) for host in ("1.2.3.4", "[::1]", "1.2.772", "0x1.2.3.4", "01.2.3.4")] == [
        *(True, True, False, False, False)
    ]


def test_what_an_address_carries() -> None:
    carried = {text: str(within(ip_address(text))) for text in ("::ffff:1.2.3.4", "64:ff9b::1.2.3.4", "2002:102:304::")}
    assert set(carried.values()) == {"1.2.3.4"}
    assert str(within(ip_address("2001:0:4136:e378:8000:63bf:3fff:fdd2"))) == "192.0.2.45"
    assert within(ip_address("2606::1")) is None
