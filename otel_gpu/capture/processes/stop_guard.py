"""
The guard: continues stopped processes if the agent is killed.

While a process is stopped for probes in a new library, only the agent would continue it. The guard is a
small process that outlives the agent. It holds the map of watched processes. If the agent's end of a socket
closes without a message, it continues all of these that are stopped.
"""

import contextlib
import os
import signal
import socket
import struct
import sys
import time

from otel_gpu import wire
from otel_gpu.capture.bpf.bpf_map import BpfMap
from otel_gpu.capture.bpf.libbpf import Libbpf
from otel_gpu.capture.privileges import (
    CAPTURE_CAPABILITIES,
    COMMAND_CAPABILITIES,
    give_up_privileges,
)
from otel_gpu.capture.processes.inherited import let_go_in_child, name_child
from otel_gpu.errors import OtelGpuError
from otel_gpu.procfs.proc_files import stat_fields

_DISMISSED = b"d"
_WATCHED = b"w"
# How long BPF programs of a dead agent can still stop a process.
_VIGIL_S = 2.0
_POLL_S = 0.02
_PID = struct.Struct("<I")


class StopGuard:
    """
    The agent's side of the guard.

    Create it before the agent has threads or much memory, because it forks.

    Args:
        drops_privileges: Let the guard drop the capabilities that it does not need.
    """

    def __init__(self, *, drops_privileges: bool) -> None:
        self._socket, theirs = socket.socketpair()
        self._pid = os.fork()
        if not self._pid:
            self._socket.close()
            _stand_guard(theirs, drops_privileges=drops_privileges)
        theirs.close()

    def watch(self, processes_fd: int) -> None:
        """Pass the map of watched processes to the guard."""
        socket.send_fds(self._socket, [_WATCHED], [processes_fd])

    def let_go_on(self) -> None:
        """Let the guard continue all stopped processes now, and end."""
        self._end()

    def dismiss(self) -> None:
        """End the guard, when no process is stopped any more; a second call does nothing."""
        with contextlib.suppress(OSError):
            self._socket.send(_DISMISSED)
        self._end()

    def _end(self) -> None:
        self._socket.close()
        if self._pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = 0


def _stand_guard(agent: socket.socket, *, drops_privileges: bool) -> None:
    # In the child: never return into the agent's code.
    try:
        let_go_in_child()
        if drops_privileges:
            give_up_privileges(CAPTURE_CAPABILITIES | COMMAND_CAPABILITIES)
        name_child("otel-gpu-guard")
        processes_fd = None
        while True:
            word, fds, _, _ = socket.recv_fds(agent, 1, 1)
            if word != _WATCHED:
                break
            (processes_fd,) = fds
        if not word and processes_fd is not None:
            _let_all_go_on(processes_fd)
    except (OSError, OtelGpuError):
        os._exit(1)
    finally:
        sys.stdout = sys.stderr = None  # buffers that are the agent's
        os._exit(0)


def _let_all_go_on(processes_fd: int) -> None:
    processes = BpfMap(
        libbpf=Libbpf(),
        name="processes",
        fd=processes_fd,
        key_bytes=_PID.size,
        value_bytes=wire.PROCESS.size,
        max_entries=1 << 20,
    )
    deadline_s = time.monotonic() + _VIGIL_S
    while time.monotonic() < deadline_s:
        for _, keys, _ in processes.read_batches():
            for (pid,) in _PID.iter_unpack(keys):
                if stat_fields(f"/proc/{pid}")[:1] == [b"T"]:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGCONT)
        time.sleep(_POLL_S)
