"""Addresses as people write them."""

import pytest

from otel_gpu.mcp.http import Address, HttpError, parse_address

DEFAULT = Address("127.0.0.1", 8977)


@pytest.mark.parametrize(
    ("text", "address", "is_loopback"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80), True),
        ("localhost", ("localhost", 8977), True),
        (":9000", ("127.0.0.1", 9000), True),
        ("9000", ("127.0.0.1", 9000), True),
        ("0", ("127.0.0.1", 0), True),
        ("127.9.9.9", ("127.9.9.9", 8977), True),
        ("[::1]:80", ("::1", 80), True),
        ("[::1]", ("::1", 8977), True),
        ("0.0.0.0:80", ("0.0.0.0", 80), False),
        ("[::]:80", ("::", 80), False),
        ("gpu-node-7:80", ("gpu-node-7", 80), False),
        ("localhost.evil.example:80", ("localhost.evil.example", 80), False),
    ],
)
def test_an_address_is_read(text, address, is_loopback):
    """What is not said is as by default; only this host's own addresses need no chosen token."""
    found = parse_address(text, DEFAULT)

    assert found == address
    assert found.is_loopback is is_loopback


@pytest.mark.parametrize(
    ("host", "is_any"),
    [("0.0.0.0", True), ("::", True), ("0::0", True), ("127.0.0.1", False), ("gpu-node-7", False)],
)
def test_what_stands_for_all_addresses_is_known(host, is_any):
    """In each of its spellings: which names are ours cannot be told there."""
    assert Address(host, 80).is_any is is_any


@pytest.mark.parametrize("text", ["host:port", "host:70000", "host:-1", "host:٣"])
def test_what_is_no_port_is_refused(text):
    """Before it is listened on."""
    with pytest.raises(HttpError, match="is not an address"):
        parse_address(text, DEFAULT)
