"""Makes functions of the agent fail on demand."""

import errno
import functools
import importlib
import sqlite3
import threading
from collections import Counter

from otel_gpu.errors import BpfError

# Errors that no code expects: each must be counted, under a place of the function.
UNEXPECTED = {
    "runtime": lambda: RuntimeError("injected"),
    "key": lambda: KeyError("injected"),
    "memory": lambda: MemoryError("injected"),
    "type": lambda: TypeError("injected"),
    "bpf": lambda: BpfError("injected", hint="none"),
}

# There a lack of memory is what SQLite says of a damaged file: rows are lost, with a reason.
_IN_SQLITE = (
    "otel_gpu.recorder.journal:Journal._transact",
    "otel_gpu.recorder.journal:Journal._keep_books",
    "otel_gpu.recorder.eviction:Eviction.free",
)


def _sqlite(code, message):
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return error


# What some of them expect: disks, processes that are gone, endpoints.
EXPECTED = {
    "gone": lambda: FileNotFoundError(errno.ENOENT, "injected"),
    "ended": lambda: ProcessLookupError(errno.ESRCH, "injected"),
    "forbidden": lambda: PermissionError(errno.EACCES, "injected"),
    "disk_full": lambda: OSError(errno.ENOSPC, "injected"),
    "files": lambda: OSError(errno.EMFILE, "injected"),
    "refused": lambda: ConnectionRefusedError(errno.ECONNREFUSED, "injected"),
    "sqlite_full": lambda: _sqlite(sqlite3.SQLITE_FULL, "database or disk is full"),
    "sqlite_locked": lambda: _sqlite(sqlite3.SQLITE_BUSY, "database is locked"),
    "sqlite_io": lambda: _sqlite(sqlite3.SQLITE_IOERR, "disk I/O error"),
}
ERRORS = UNEXPECTED | EXPECTED


class Injection:
    """
    Functions that can be made to fail.

    Args:
        functions: As ``module:Class.method`` or ``module:function``.

    Attributes:
        fired: How often one of the ``UNEXPECTED`` was raised, by function; all kinds: ``raised``.
    """

    def __init__(self, functions):
        self.fired = Counter()
        self.raised = Counter()
        self._armed = {}
        self._lock = threading.Lock()
        self._undo = []
        for name in functions:
            self._wrap(name)

    def arm(self, name, error, calls):
        """Have the next calls of a function fail."""
        with self._lock:
            self._armed[name] = (error, calls)

    def disarm(self):
        """Let everything work again."""
        with self._lock:
            self._armed.clear()

    def undo(self):
        """Put the functions back."""
        for owner, last, original in reversed(self._undo):
            setattr(owner, last, original)

    def _wrap(self, name):
        module, _, path = name.partition(":")
        owner = importlib.import_module(module)
        *parents, last = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        original = getattr(owner, last)

        @functools.wraps(original)
        def wrapped(*args, **kwargs):
            with self._lock:
                error, left = self._armed.get(name, (None, 0))
                if left:
                    self._armed[name] = (error, left - 1)
                    self.raised[name] += 1
                    is_expected = error == "memory" and name in _IN_SQLITE
                    self.fired[name] += error in UNEXPECTED and not is_expected
            if left:
                raised = ERRORS[error]()
                raise raised
            return original(*args, **kwargs)

        self._undo.append((owner, last, original))
        setattr(owner, last, wrapped)
