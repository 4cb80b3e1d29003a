"""Processes at the other end of a pipe or a socket of this host, and listening ports."""

# A line of /proc/PID/net/tcp, of the process's network namespace:
#
#   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
#    0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4180048
#
# Addresses are words of 32 bits in host byte order, ports are hexadecimal; state 0A is listening.
# Listening sockets come first.

import ipaddress
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from otel_gpu.procfs.proc_files import read_file

_MAX_BYTES = 1 << 20
_MAX_LISTENING_BYTES = 1 << 16
_LISTEN = b"0A"
_FIELDS = 10
_DESCRIPTOR = re.compile(r"(?:pipe|socket):\[(\d+)\]")
_MAX_DESCRIPTORS = 16_384
_REFRESH_S = 0.2
_MAX_HOLDERS = 8


class Endpoint(NamedTuple):
    """An IP address and a port."""

    address: str
    port: int

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )


def listening_ports(pid: int) -> set[int]:
    """Return the listening TCP ports in the network namespace of a process."""
    return {
        local.port for local, _, state, _ in _sockets(pid, _MAX_LISTENING_BYTES) if state == _LISTEN
    }


def find_inode(pid: int, local: Endpoint, remote: Endpoint) -> int:
    """Return the inode of a TCP socket by its ends, in the network namespace of a process; 0: none."""
    for own, other, _, inode in _sockets(pid, _MAX_BYTES):
        if own == local and other == remote:
            return inode
    return 0


class SocketHolders:
    """
    The processes that have a pipe or a socket open; read at most five times a second.

    Args:
        pids: Returns the processes to read.
        clock: A monotonic clock in seconds.
    """

    def __init__(
        self, pids: Callable[[], Iterable[int]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pids = pids
        self._clock = clock
        self._by_inode: dict[int, list[int]] = {}
        self._read_s: float | None = None

    def of(self, inode: int) -> tuple[int, ...]:
        """Return the processes, at most a few, that had an inode open at the last read."""
        now_s = self._clock()
        if self._read_s is None or now_s - self._read_s >= _REFRESH_S:
            self._read_s = now_s
            self._read()
        return tuple(self._by_inode.get(inode, ()))

    def _read(self) -> None:
        self._by_inode = {}
        left = _MAX_DESCRIPTORS
        for pid in self._pids():
            for target in _descriptors(pid):
                left -= 1
                match = _DESCRIPTOR.fullmatch(target)
                if match is not None:
                    holders = self._by_inode.setdefault(int(match[1]), [])
                    if pid not in holders and len(holders) < _MAX_HOLDERS:
                        holders.append(pid)
                if not left:
                    return


def _descriptors(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    yield os.readlink(entry.path)  # noqa: PTH115 -- many of them
                except OSError:  # closed since it was listed
                    continue
    except OSError:
        return


def _sockets(pid: int, limit_bytes: int) -> Iterator[tuple[Endpoint, Endpoint, bytes, int]]:
    for name in ("tcp", "tcp6"):
        for line in read_file(f"/proc/{pid}/net/{name}", limit_bytes).splitlines()[1:]:
            fields = line.split()
            if len(fields) < _FIELDS:  # cut
                continue
            try:
                yield _endpoint(fields[1]), _endpoint(fields[2]), fields[3], int(fields[9])
            except (ValueError, struct.error):
                continue


def _endpoint(text: bytes) -> Endpoint:
    words, _, port = text.decode("ascii").partition(":")
    numbers = [int(words[at : at + 8], 16) for at in range(0, len(words), 8)]
    return Endpoint(address_text(struct.pack(f"={len(numbers)}I", *numbers)), int(port, 16))


def address_text(raw: bytes) -> str:
    """
    Return the text of an address of 4 or 16 bytes in network byte order; IPv4 in IPv6 as IPv4.

    Raises:
        ValueError: It has another size.
    """
    address = ipaddress.ip_address(raw)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(address)
