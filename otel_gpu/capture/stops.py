"""
Processes that the kernel side stopped, and that wait for the agent to let them go on.

Each is named by a record of the lifecycle ring. Whoever takes such a record out of the ring has to
let the process go on, whatever happens, also at the end.
"""

import contextlib
import os
import signal
from collections.abc import Iterable

from otel_gpu import wire
from otel_gpu.capture.headers import header_of

_LAYOUTS = {
    wire.RECORD_EXEC: wire.EXEC_RECORD,
    wire.RECORD_LIBRARY: wire.LIBRARY_RECORD,
    wire.RECORD_DOOR: wire.DOOR_RECORD,
}


def let_go_on(pid: int) -> None:
    """Let a process go on, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def let_all_go_on(records: Iterable[bytes]) -> None:
    """Let go on whatever some records of the lifecycle ring say was stopped."""
    for record in records:
        header = header_of(record)
        if header.kind in _LAYOUTS and _LAYOUTS[header.kind].named(record)["stopped"]:
            let_go_on(header.pid)
