"""Sockets of this host: who has them open, and which ports are listened on."""

import os
import socket

import pytest

from otel_gpu.procfs import sockets
from otel_gpu.procfs.sockets import (
    Endpoint,
    SocketHolders,
    address_text,
    find_inode,
    listening_ports,
)


def inode_of(file):
    return os.fstat(file.fileno()).st_ino


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_both_ends_of_a_connection_are_found(family, address):
    """Each by the other's addresses; what listens is known by its port."""
    with socket.socket(family) as server:
        server.bind((address, 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection((address, port)) as client, server.accept()[0] as accepted:
            here = Endpoint(address, client.getsockname()[1])
            there = Endpoint(address, port)

            assert find_inode(os.getpid(), here, there) == inode_of(client)
            assert find_inode(os.getpid(), there, here) == inode_of(accepted)
            assert find_inode(os.getpid(), there, Endpoint(address, 1)) == 0
            assert port in listening_ports(os.getpid())
            assert here.port not in listening_ports(os.getpid())


def test_a_process_that_is_gone_has_no_sockets():
    """Nothing is raised about it."""
    assert listening_ports(1 << 22) == set()
    assert find_inode(1 << 22, Endpoint("::1", 1), Endpoint("::1", 2)) == 0


@pytest.mark.parametrize(
    "address", ["0:1F90", "-0100007:1F90", "0100007F:-1", "0100007F", "ÿ:1F90"]
)
def test_a_line_that_makes_no_sense_is_left_out(address, monkeypatch):
    """The others count."""
    line = f"0: {address} 00000000:0000 0A 0:0 0:0 0 0 0 77 1 0\n"
    good = line.replace(address, "0100007F:1F91")
    monkeypatch.setattr(sockets, "read_file", lambda *_: f"head\n{line}{good}".encode())

    assert 0x1F91 in listening_ports(1)


def test_who_holds_a_pipe_is_looked_up_again_after_a_while():
    """Looking costs a system call for each descriptor, so not for each question."""
    now_s = 0.0
    pids = [os.getpid(), 1 << 22]
    holders = SocketHolders(lambda: pids, lambda: now_s)
    read, write = os.pipe()
    inode = os.fstat(read).st_ino
    try:
        assert holders.of(inode) == (os.getpid(),)
        os.close(write)
        os.close(read)
        assert holders.of(inode) == (os.getpid(),)
        now_s = 0.2
        assert holders.of(inode) == ()
        read, write = os.pipe()
    finally:
        os.close(read)
        os.close(write)


def test_addresses_are_written_as_people_do():
    """IPv4 in IPv6 is IPv4; an address of IPv6 is in brackets before a port."""
    assert address_text(bytes([10, 0, 0, 7])) == "10.0.0.7"
    assert address_text(bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 7])) == "10.0.0.7"
    assert str(Endpoint(address_text(bytes(15) + b"\1"), 80)) == "[::1]:80"
    assert str(Endpoint("10.0.0.7", 80)) == "10.0.0.7:80"
