"""
Which way the programs get to know the kernel that runs.

There are two, behind one interface, the ``BpfObject``. Both are libbpf's loading of an
object that was compiled with the project:

- ``libbpf``: the kernel describes its types itself, by BTF.
- ``bcc``: it does not, so BCC reads them from the kernel's headers, and the object is the one
  whose programs need nothing of the kernel's BTF.
"""

import ctypes
import functools
import logging
import struct
import threading
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from otel_gpu.capture.bpf.bcc.kernel_headers import ask_headers
from otel_gpu.capture.bpf.libbpf import TestRunOptions
from otel_gpu.capture.bpf.objects import BpfObject, object_path
from otel_gpu.errors import HostError
from otel_gpu.procfs.proc_files import stat_fields

KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")

_CHECK = "check_layout"
_EXPECTED = struct.Struct("<QQQQ")
# What is checked, in the order of the numbers that ``check_layout`` returns, from 1.
_CHECKS = (
    *("task_struct.pid", "task_struct.comm", "task_struct.group_leader"),
    *("task_struct.thread_pid", "mm_struct.start_stack", "signal_struct.live"),
    *("task_struct.start_boottime", "sched_entity.sum_exec_runtime", "task_struct.thread"),
    *("task_struct.stack", "thread_info.cpu", "task_struct.state"),
)
# Among the fields of "stat" behind the name.
_STAT_THREADS, _STAT_START_STACK = 17, 25
_TRIES = 3  # a thread may come or go meanwhile

_logger = logging.getLogger(__name__)


def choose_loader(wanted: str, btf: Path = KERNEL_BTF) -> str:
    """Return ``libbpf`` or ``bcc``: what is wanted, and if ``auto``, by whether there is BTF."""
    found = "libbpf" if btf.exists() else "bcc"
    return found if wanted == "auto" else wanted


class KernelFunction(StrEnum):
    """A function that not every kernel has, by its name in the kernel's BTF."""

    READS_IN_PLACE = "bpf_rdonly_cast"
    # Since Linux 6.1, programs can take memory wherever they run; see bpf/core/maps.bpf.h.
    ALLOCATES = "bpf_mem_alloc_init"
    READS_OTHERS = "bpf_copy_from_user_task"
    RETRANSMITS = "btf_trace_tcp_retransmit_skb"


def has_kernel_function(function: KernelFunction, btf: Path = KERNEL_BTF) -> bool:
    """Return whether the kernel's BTF names a function, as it does those that programs may call."""
    return function in _functions(btf)


# Megabytes are read, and a kernel that runs stays the same.
@functools.cache
def _functions(btf: Path) -> frozenset[KernelFunction]:
    try:
        text = btf.read_bytes()
    except OSError:
        return frozenset()
    return frozenset(one for one in KernelFunction if f"\0{one}\0".encode() in text)


def open_object(wanted: str, uprobes: Sequence[str], *, multi: bool) -> BpfObject:
    """
    Open the object that suits this kernel; it is not loaded yet.

    Raises:
        HostError: What this way needs is missing; the hint says what to install.
    """
    if choose_loader(wanted) == "bcc":
        path, types = object_path(has_btf=False), ask_headers()
        return _HeadersObject(path, uprobes, multi=multi, kernel_types=types)
    if not KERNEL_BTF.exists():
        raise HostError(
            f"this kernel has no BTF ({KERNEL_BTF} is missing)",
            hint="set capture.loader to auto or bcc, which reads the kernel's headers instead",
        )
    return BpfObject(object_path(), uprobes, multi=multi)


class _HeadersObject(BpfObject):
    """An object that was fitted to headers, which may be of another build than the kernel."""

    def load(self) -> None:
        """
        Load, and check that the kernel's types are where the headers say.

        Raises:
            HostError: They are not.
        """
        super().load()
        for _ in range(_TRIES):
            if not (failed := self._check()):
                break
        else:
            what = _CHECKS[failed - 1] if failed <= len(_CHECKS) else f"check {failed}"
            raise HostError(
                "the kernel headers do not match the running kernel, although their version does: "
                f"{what} is at another place",
                hint="install the headers that were built with this kernel",
            )
        _logger.info("the kernel's types were checked against its headers")

    def _check(self) -> int:
        # The number of the first check that fails; 0: all is well.
        stat = stat_fields("/proc/thread-self")
        expected = _EXPECTED.pack(
            int(stat[_STAT_START_STACK]),
            threading.get_ident(),  # at the thread register, or before it
            time.thread_time_ns(),
            int(stat[_STAT_THREADS]),
        )
        context = ctypes.create_string_buffer(expected, len(expected))
        options = TestRunOptions(
            ctypes.sizeof(TestRunOptions),
            ctx_in=ctypes.addressof(context),
            ctx_size_in=len(expected),
        )
        fd, what = self.program_fd(_CHECK), "the kernel's types are not checked"
        self.libbpf.call("bpf_prog_test_run_opts", fd, options, what=what)
        return int(options.retval)
