"""XIDs that NVIDIA's driver writes into the kernel's log, with the process whose work failed."""

# Forged lines
# ------------
#
# Processes that can write to /dev/kmsg can add lines, but not with facility 0, the kernel's own: the
# kernel changes that to the facility of user programs. One record is one line: control characters are
# escaped, so a line feed in a program's name cannot start a line (Documentation/ABI/testing/dev-kmsg).
# The kernel puts names of programs, at most 15 characters long, in front of some messages. That is too
# short to match here.

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

PATH: Final = "/dev/kmsg"

MAX_TEXT: Final = 256
"""Characters that are kept of a message, and of a name."""

_RECORD_BYTES = 8192
_MAX_READS = 1024
_KERNEL = 0
_PRIORITY_BITS = 3
_MARK = b"NVRM: Xid "
_LINE = re.compile(
    r"NVRM: Xid \(PCI:(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?"
    r"(?: GPU-I:[0-9a-f]+)?\): (?P<xid>[0-9]{1,9})(?:, (?P<rest>.*))?",
    re.IGNORECASE | re.ASCII,
)
# The program chooses its name, so only text is read behind it.
_WHO = re.compile(
    r"pid='?(?P<pid>[0-9]{1,9}|<unknown>)'?(?:, name=(?P<name>[^,]*))?(?:, (?P<message>.*))?",
    re.ASCII,
)


class Xid(NamedTuple):
    """
    An error of a GPU, as its driver reports it.

    Attributes:
        xid: NVIDIA's number of the kind of error.
        bus_id: PCI domain, bus and device.
        pid: The process whose work failed, in the initial pid namespace; 0: unknown.
        name: The process's name, which it chose itself.
        message: The rest of the message.
    """

    xid: int
    bus_id: str
    pid: int = 0
    name: str = ""
    message: str = ""


class KernelLog:
    """
    Reads XIDs that are written from now on.

    Args:
        path: The kernel's log; empty: do not read it.

    Attributes:
        overrun: Lines that were overwritten before they were read.
    """

    def __init__(self, path: str = PATH) -> None:
        self.overrun = 0
        self._next: int | None = None
        self._fd: int | None = None
        if path:
            with contextlib.suppress(OSError):
                self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.lseek(self._fd, 0, os.SEEK_END)

    @property
    def is_open(self) -> bool:
        """Whether the log can be read."""
        return self._fd is not None

    def close(self) -> None:
        """Stop reading."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def read(self) -> Iterator[Xid]:
        """Yield the XIDs since the previous call, without waiting."""
        for _ in range(_MAX_READS if self._fd is not None else 0):
            try:
                data = os.read(self._fd or 0, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                # Lines were overwritten; the next line's number shows how many.
                continue
            except OSError as error:
                # EINVAL: a line that is too long for the buffer, which is skipped.
                if error.errno != errno.EINVAL:
                    self.close()
                    return
                continue
            if not data:
                return
            for line in data.split(b"\n"):
                if (found := self._take(line)) is not None:
                    yield found

    def _take(self, line: bytes) -> Xid | None:
        # "PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT"; lines that begin with a space continue the previous one.
        head, separator, text = line.partition(b";")
        fields = head.split(b",")[:2]
        if not separator or list(map(bytes.isdigit, fields)) != [True, True]:
            return None
        priority, number = map(int, fields)
        if self._next is not None:
            self.overrun += max(0, number - self._next)
        self._next = number + 1
        if priority >> _PRIORITY_BITS != _KERNEL or not text.startswith(_MARK):
            return None
        return parse_xid(text.decode("utf-8", "replace"))


def parse_xid(text: str) -> Xid | None:
    """Parse a line of the driver; None if it is about something else."""
    found = _LINE.fullmatch(text)
    if found is None:
        return None
    rest = found["rest"] or ""
    xid, bus_id = int(found["xid"]), format_bus_id(found["bus"])
    if (who := _WHO.fullmatch(rest)) is None:
        return Xid(xid, bus_id, message=rest[:MAX_TEXT])
    pid = int(who["pid"]) if who["pid"].isdigit() else 0
    name = "" if who["name"] in (None, "<unknown>") else who["name"]
    return Xid(
        xid, bus_id, pid=pid, name=name[:MAX_TEXT], message=(who["message"] or "")[:MAX_TEXT]
    )


def format_bus_id(text: str) -> str:
    """Return a PCI address in the driver's form; NVML's has a longer domain and a function."""
    domain, _, rest = text.partition(":")
    return f"{domain.lstrip('0').zfill(4)}:{rest.partition('.')[0]}".lower()
