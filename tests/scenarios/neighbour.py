"""
A program beside the watched one: it hogs a CPU, is a client of it, or is a server on another network.

A capture watches a program with all descendants, so this one is started before the capture. The scenario
tells it when to begin; it ends with the scenario's connection.

Run as ``neighbour.py SOCKET``, a listening Unix socket's file descriptor.
"""

import contextlib
import ctypes
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

# Alone, this file is a program: it is not to depend on the package.
VARIABLE = "OTEL_GPU_DEMO_NEIGHBOUR"
MESSAGE = struct.Struct("=16sQ")
CGROUP = f"otel-gpu-neighbour-{os.getpid()}.service"
_CLONE_NEWNET = 0x40000000
# A network for benchmarks; see RFC 2544.
_OUR_ADDRESS, ITS_ADDRESS = "198.18.77.1", "198.18.77.2"
_BURST_S = 0.005
_REQUEST_EVERY_S = 0.15


class Neighbour:
    """The scenario's end of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.address = ITS_ADDRESS

    def ask(self, what: str, value: int) -> int:
        """Have it prepare something; a number that is needed to use that."""
        self._connection.sendall(MESSAGE.pack(what.encode(), value))
        failed, number = MESSAGE.unpack(self._connection.recv(MESSAGE.size))
        if any(failed):
            raise OSError(number, f"the neighbour cannot be a {what}: {os.strerror(number)}")
        return int(number)

    def begin(self) -> None:
        """Have it begin."""
        self._connection.sendall(MESSAGE.pack(b"begin", 0))


def connect() -> Neighbour:
    """Return the neighbour that was started before."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"\0{os.environ[VARIABLE]}")
    return Neighbour(connection)


@contextlib.contextmanager
def started() -> Iterator[dict[str, str]]:
    """Have a neighbour; the environment by which a scenario finds it."""
    with socket.socket(socket.AF_UNIX) as listener:
        name = f"otel-gpu-demo-{os.getpid()}-{time.monotonic_ns()}"
        listener.bind(f"\0{name}")
        listener.listen()
        descriptor = listener.fileno()
        command = (sys.executable, "-E", __file__, str(descriptor))
        # Where sessions are scheduled as groups, it is to be in a group of its own.
        with subprocess.Popen(command, pass_fds=[descriptor], start_new_session=True) as process:
            try:
                yield {VARIABLE: name}
            finally:
                process.terminate()


def main(descriptor: str) -> None:
    """Serve one scenario."""
    listener = socket.socket(fileno=int(descriptor))
    connection, _ = listener.accept()
    what, value = MESSAGE.unpack(connection.recv(MESSAGE.size))
    try:
        prepared = iter(_WAYS[what.rstrip(b"\0")](value))
        number = next(prepared)
    except OSError as error:
        connection.sendall(MESSAGE.pack(b"failed", error.errno or 0))
        return
    connection.sendall(MESSAGE.pack(b"", number))
    connection.recv(MESSAGE.size)
    # The end of the scenario ends it, whatever it waits for.
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    for _ in prepared:
        pass


def _end_with(connection: socket.socket) -> None:
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _hog(cpu: int) -> Iterator[int]:
    """Have a CPU half of the time, in a cgroup of its own."""
    _name("neighbour")
    _join_cgroup()
    os.sched_setaffinity(0, {cpu})
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        Path("/proc/self/autogroup").write_text("-20")
    yield os.getpid()
    while True:
        end_s = time.monotonic() + _BURST_S
        while time.monotonic() < end_s:
            pass
        time.sleep(_BURST_S)
        yield 0


def _join_cgroup() -> None:
    root = Path("/sys/fs/cgroup")
    parent = root / "systemd" if (root / "systemd").is_dir() else root
    folder = parent / "system.slice" / CGROUP
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("0")

    def leave(*_: object) -> None:
        (parent / "cgroup.procs").write_text("0")
        folder.rmdir()
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)


def _client(port: int) -> Iterator[int]:
    """Ask a server now and then."""
    _name("client")
    with socket.create_connection(("127.0.0.1", port)) as server:
        yield 0
        while True:
            time.sleep(_REQUEST_EVERY_S)
            server.sendall(bytes(MESSAGE.size))
            if not server.recv(MESSAGE.size):
                return
            yield 0


def _server(delay_ns: int) -> Iterator[int]:
    """Answer requests after a while, from a network of its own."""
    _name("server")
    _leave_network()
    with socket.create_server((ITS_ADDRESS, 0)) as listener:
        yield listener.getsockname()[1]
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while connection.recv(MESSAGE.size):
            time.sleep(delay_ns / 1e9)
            connection.sendall(bytes(MESSAGE.size))


def _leave_network() -> None:
    """Move to another network namespace, with a cable to the one before."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    host, ours, its = os.getppid(), f"ogd{os.getpid()}a", f"ogd{os.getpid()}b"
    there = f"nsenter --net --target {host}"
    for command in (
        f"ip link add {its} type veth peer name {ours} netns {host}",
        f"ip address add {ITS_ADDRESS}/30 dev {its}",
        f"ip link set {its} up",
        f"{there} ip address add {_OUR_ADDRESS}/30 dev {ours}",
        f"{there} ip link set {ours} up",
    ):
        # FileNotFoundError, an OSError, says that there is no such program.
        if subprocess.run(command.split(), check=False).returncode:
            raise OSError(errno.EPERM, command)


def _name(comm: str) -> None:
    Path("/proc/self/comm").write_text(comm)


_WAYS = {b"hog": _hog, b"client": _client, b"server": _server}

if __name__ == "__main__":
    main(sys.argv[1])
