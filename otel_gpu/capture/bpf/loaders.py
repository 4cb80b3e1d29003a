"""
Loaders: where the BPF programs get the layout of the kernel's types from.

Both load an object that was compiled with the project, by libbpf, as a ``BpfObject``:

- ``libbpf``: the kernel describes its types by BTF.
- ``bcc``: the kernel has no BTF. BCC reads the types from the kernel's headers, and the object is the
  variant that needs no kernel BTF.
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
from otel_gpu.options import Loader
from otel_gpu.procfs.proc_files import stat_fields

KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")

_CHECK = "check_layout"
_EXPECTED = struct.Struct("<QQQQ")
# In the order of the numbers that ``check_layout`` returns, from 1.
_CHECKS = (
    *("task_struct.pid", "task_struct.comm", "task_struct.group_leader"),
    *("task_struct.thread_pid", "mm_struct.start_stack", "signal_struct.live"),
    *("task_struct.start_boottime", "sched_entity.sum_exec_runtime", "task_struct.thread"),
    *("task_struct.stack", "thread_info.cpu", "task_struct.state"),
)
# Fields of /proc/PID/stat, counted from behind the name.
_STAT_THREADS, _STAT_START_STACK = 17, 25
_TRIES = 3  # threads that start or end in between change the count

_logger = logging.getLogger(__name__)


def choose_loader(wanted: Loader, btf: Path = KERNEL_BTF) -> Loader:
    """Return a loader: that for this kernel if any is wanted."""
    found = Loader.LIBBPF if btf.exists() else Loader.BCC
    return found if wanted == Loader.AUTO else wanted


class KernelFunction(StrEnum):
    """Kernel functions that some kernels lack, by their names in BTF."""

    READS_IN_PLACE = "bpf_rdonly_cast"
    # Since Linux 6.1, programs can allocate memory in every context; see bpf/core/maps.bpf.h.
    ALLOCATES = "bpf_mem_alloc_init"
    READS_OTHERS = "bpf_copy_from_user_task"
    RETRANSMITS = "btf_trace_tcp_retransmit_skb"
    # Not a function: what a program's run has where many uprobes are attached at once, since Linux 6.6.
    ATTACHES_MANY = "bpf_uprobe_multi_run_ctx"


def has_kernel_function(function: KernelFunction, btf: Path = KERNEL_BTF) -> bool:
    """Return whether the kernel's BTF contains a function."""
    return function in _functions(btf)


# Cached: it reads megabytes, and the running kernel does not change.
@functools.cache
def _functions(btf: Path) -> frozenset[KernelFunction]:
    try:
        text = btf.read_bytes()
    except OSError:
        return frozenset()
    return frozenset(one for one in KernelFunction if f"\0{one}\0".encode() in text)


def open_object(wanted: Loader, uprobes: Sequence[str], *, multi: bool) -> BpfObject:
    """
    Open the object for this kernel, without loading it.

    Raises:
        HostError: BTF, BCC or the headers are missing; the hint names the package to install.
    """
    if choose_loader(wanted) == Loader.BCC:
        path, types = object_path(has_btf=False), ask_headers()
        return _HeadersObject(path, uprobes, multi=multi, kernel_types=types)
    if not KERNEL_BTF.exists():
        raise HostError(
            f"this kernel has no BTF ({KERNEL_BTF} is missing)",
            hint="set capture.loader to auto or bcc, which reads the kernel's headers instead",
        )
    return BpfObject(object_path(), uprobes, multi=multi)


class _HeadersObject(BpfObject):
    # An object fitted to headers, which can come from another build than the kernel.

    def load(self) -> None:
        # Raises HostError where the kernel's types differ from those in the headers.
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
        # The number of the first check that fails; 0: none.
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
