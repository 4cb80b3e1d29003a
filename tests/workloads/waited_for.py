"""
Waits a known number of times for something that is behind a file descriptor.

    waited_for.py pipe|poll|epoll|unix|tcp WAITS
    waited_for.py remote WAITS ADDRESS PORT [UPLOADS]
    waited_for.py serve WAITS ADDRESS
    waited_for.py lock|fsync|read WAITS PATH
    waited_for.py many FILES FOLDER

Whoever ends a wait first looks whether it has begun. Prints one line of JSON: its pid, that of the
one who ends the waits, how long it waited in all, and when it was done. Then it stays as it is until
its standard input ends, or has a line.
"""

import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

WAIT_NS = 2_000_000


def wait_until_blocked(pid, times):
    """Return when a thread has left the CPU to wait, and had waited for a while."""
    while True:
        state, switches = look(pid)
        if state == b"S" and switches >= times:
            time.sleep(WAIT_NS / 1e9)
            if look(pid) == (state, switches):
                return switches + 1
        os.sched_yield()


def look(pid):
    status = Path(f"/proc/{pid}/status").read_bytes()
    fields = dict(line.split(b":", 1) for line in status.splitlines())
    return fields[b"State"].split()[0], int(fields[b"voluntary_ctxt_switches"])


def end_waits(pid, waits, end, switches=0):
    """End that many waits of a process, each when it has begun."""
    for _ in range(waits):
        switches = wait_until_blocked(pid, switches)
        end()


def fork(function):
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        # A pipe from whoever started this one must have no other reader.
        os.close(0)
        function(parent)
        while os.getppid() == parent:
            time.sleep(0.01)
        os._exit(0)
    return pid


def with_pipe(waits, wait):
    """Wait for bytes of a pipe, which another process writes one by one."""
    read, write = os.pipe()
    other = fork(lambda pid: end_waits(pid, waits, lambda: os.write(write, b"x")))
    os.close(write)
    begin_ns = time.monotonic_ns()
    for _ in range(waits):
        wait(read)
        os.read(read, 1)
    return other, time.monotonic_ns() - begin_ns


def with_socket(waits, own, other_end):
    other = fork(lambda pid: end_waits(pid, waits, lambda: other_end.send(b"x")))
    other_end.close()
    begin_ns = time.monotonic_ns()
    for _ in range(waits):
        own.recv(1)
    return other, time.monotonic_ns() - begin_ns


def poll(descriptor):
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    poller.poll(30_000)


def tcp(waits):
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    return with_socket(waits, own, accepted)


def remote(waits, address, port, uploads=0):
    """Ask another host for a byte, again and again: it answers when this one waits."""
    with socket.socket() as connection:
        # To connect is no wait here.
        connection.setblocking(False)
        while connection.connect_ex((address, int(port))) not in (0, errno.EISCONN):
            os.sched_yield()
        uploads = int(uploads)
        connection.setblocking(True)
        connection.send(os.getpid().to_bytes(4, "little"))
        begin_ns = time.monotonic_ns()
        for _ in range(waits - uploads):
            connection.recv(1)
        for _ in range(uploads):
            say({"ktime_ns": time.monotonic_ns()})
            sys.stdin.readline()
            connection.send(bytes(1000))
            connection.recv(1)
        return 0, time.monotonic_ns() - begin_ns


def serve(waits, address):
    """Wait for a client, and for bytes of it, which come one by one."""
    with socket.create_server((address, 0)) as server:
        say({"pid": os.getpid(), "port": server.getsockname()[1]})
        begin_ns = time.monotonic_ns()
        connection, _ = server.accept()
        for _ in range(waits):
            connection.recv(1)
        total_ns = time.monotonic_ns() - begin_ns
        # They stay open until all is known of them.
        server.detach()
        connection.detach()
        return 0, total_ns


def lock(waits, path):
    """Wait for a lock on a file, which another process has each time."""
    orders, replies = os.pipe(), os.pipe()

    def hold(pid):
        switches = 0
        with Path(path).open() as file:
            for _ in range(waits):
                os.read(orders[0], 1)
                fcntl.flock(file, fcntl.LOCK_EX)
                os.write(replies[1], b"x")
                switches = wait_until_blocked(pid, switches)
                fcntl.flock(file, fcntl.LOCK_UN)

    other = fork(hold)
    total_ns = 0
    with Path(path).open() as file:
        for _ in range(waits):
            os.write(orders[1], b"x")
            os.read(replies[0], 1)
            begin_ns = time.monotonic_ns()
            fcntl.flock(file, fcntl.LOCK_EX)
            total_ns += time.monotonic_ns() - begin_ns
            fcntl.flock(file, fcntl.LOCK_UN)
    return other, total_ns


def fsync(waits, path):
    total_ns = 0
    with Path(path).open("wb", buffering=0) as file:
        for _ in range(waits):
            file.write(os.urandom(4 << 20))
            begin_ns = time.monotonic_ns()
            os.fsync(file.fileno())
            total_ns += time.monotonic_ns() - begin_ns
    return 0, total_ns


def read(waits, path):
    with Path(path).open("rb", buffering=0) as file:
        begin_ns = time.monotonic_ns()
        for _ in range(waits):
            file.read(1)
        return 0, time.monotonic_ns() - begin_ns


def many(files, folder):
    """Wait for a lock on each of many files, once."""
    total_ns = 0
    other = 0
    for number in range(files):
        other, waited_ns = lock(1, Path(folder, str(number)))
        total_ns += waited_ns
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    return other, total_ns


def say(what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main():
    kind, waits, *place = sys.argv[1:]
    waits = int(waits)
    match kind:
        case "pipe":
            found = with_pipe(waits, lambda _: None)
        case "poll":
            found = with_pipe(waits, poll)
        case "epoll":
            with select.epoll() as poller:

                def wait(descriptor):
                    if not poller.closed and descriptor not in known:
                        known.add(descriptor)
                        poller.register(descriptor, select.EPOLLIN)
                    poller.poll(30)

                known = set()
                found = with_pipe(waits, wait)
        case "unix":
            found = with_socket(waits, *socket.socketpair())
        case _:
            found = globals()[kind](waits, *place)
    other, total_ns = found
    now_ns = time.monotonic_ns()
    say({"pid": os.getpid(), "other": other, "total_ns": total_ns, "ktime_ns": now_ns})
    sys.stdin.readline()


if __name__ == "__main__":
    main()
