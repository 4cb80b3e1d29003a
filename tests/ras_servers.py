"""Services that speak as NCCL's RAS does, or do not."""

import json
import socket
import threading
from contextlib import contextmanager

HEALTHY = {"unresponsive": False, "considered_dead": False}


def rank(number, *, host="10.0.0.1", calls=100, async_error=0, **more):
    """A rank that answers."""
    return {
        "rank": number,
        "host": host,
        "pid": 4000 + number,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": {
            "init_state": 0,
            "async_error": async_error,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
        },
        "collective_counts": {"Broadcast": 0, "AllReduce": calls},
    } | more


def absent(number, **status):
    """A rank that does not."""
    said = {"unresponsive": False, "considered_dead": False} | status
    return {"rank": number, "host": "10.0.0.2", "pid": 5000 + number, "status": said}


def communicator(ranks, missing=(), *, name="0xae94423cfbb2ef4a"):
    """A communicator."""
    return {
        "hash": name,
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(ranks) + len(missing),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": list(ranks),
        "missing_ranks": list(missing),
    }


def status(*communicators, timeouts=0):
    """What the service answers, in JSON."""
    return json.dumps(
        {
            "nccl_version": "2.29.1",
            "cuda_runtime_version": 13000,
            "cuda_driver_version": 13000,
            "timestamp": "2025-12-19 13:06:53",
            "communicators_count": len(communicators),
            "communicators": list(communicators),
            "ras": {"collection_time_sec": 0.25, "timeouts_count": timeouts},
        }
    ).encode()


class Service:
    """
    Answers each connection by a function, which gets it and a reader of its lines.

    Attributes:
        address: Where it listens.
        commands: What was asked, over all connections.
    """

    def __init__(self, answer):
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.commands = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                try:
                    self._answer(connection, self._listen(lines))
                except OSError:
                    continue

    def _listen(self, lines):
        for line in lines:
            self.commands.append(line.decode().strip())
            yield self.commands[-1]

    def close(self):
        # A thread in accept(2) holds the socket open.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


@contextmanager
def serving(answer):
    """Run a service."""
    service = Service(answer)
    try:
        yield service
    finally:
        service.close()


def speaks(json_status=None, text_status=b""):
    """Return what a service does that has JSON, or none."""

    def answer(connection, commands):
        is_json = False
        for command in commands:
            if command.startswith("CLIENT PROTOCOL "):
                connection.sendall(b"SERVER PROTOCOL 2\n")
            elif command == "SET FORMAT json":
                is_json = json_status is not None
                connection.sendall(
                    b"OK\n" if is_json else b"ERROR: Unknown command set format json\n"
                )
            elif command.endswith("STATUS"):
                connection.sendall(json_status if is_json else text_status)
                return

    return answer
