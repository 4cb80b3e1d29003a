"""
libbpf's functions with their signatures.

A negative result or a null pointer becomes a ``BpfError`` with the output of libbpf and of the
kernel's verifier.
"""

import ctypes
import errno
import mmap
import os
import platform
from collections import deque
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_long, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from otel_gpu.capture.bpf.libbpf_file import open_libbpf
from otel_gpu.errors import BpfError

_LOG_LINES = 400
_LEVEL_DEBUG = 2
_VERIFIER_LOG_BYTES = 1 << 20


_TYPES = {
    "Q": c_uint64,
    "I": c_uint32,
    "?": ctypes.c_bool,
    "s": c_char_p,
    "P": c_void_p,
    "*": POINTER(c_uint64),
}


def _fields(text: str) -> list[tuple[str, Any]]:
    # As ``name:code``, as in ``CStruct``; P: any pointer, *: an array of Q. Sizes are Q.
    pairs = (field.split(":") for field in text.split())
    return [(name, _TYPES[code]) for name, code in pairs]


class UprobeOptions(ctypes.Structure):
    """``struct bpf_uprobe_opts``; ``sz`` states our version of it."""

    _fields_ = _fields("sz:Q ref_ctr_offset:Q bpf_cookie:Q retprobe:? func_name:s")


class ObjectOpenOptions(ctypes.Structure):
    """``struct bpf_object_open_opts`` up to the fields that libbpf 1.0 has."""

    _fields_ = _fields(
        "sz:Q object_name:s relaxed_maps:? pin_root_path:s padding:I kconfig:s btf_custom_path:s "
        "kernel_log_buf:P kernel_log_size:Q kernel_log_level:I"
    )


class UprobeMultiAttributes(ctypes.Structure):
    """``union bpf_attr`` of BPF_LINK_CREATE for many uprobes at once (Linux 6.6)."""

    _fields_ = _fields(
        "prog_fd:I target_fd:I attach_type:I link_flags:I path:s offsets:* ref_ctr_offsets:P "
        "cookies:* count:I flags:I pid:I padding:I"
    )


class PerfEventAttributes(ctypes.Structure):
    """``struct perf_event_attr`` up to the fields of its first version."""

    _fields_ = _fields(
        "type:I size:I config:Q sample_period:Q sample_type:Q read_format:Q flags:Q "
        "wakeup_events:I bp_type:I bp_addr:Q"
    )


class TestRunOptions(ctypes.Structure):
    """``struct bpf_test_run_opts``."""

    _fields_ = _fields(
        "sz:Q data_in:P data_out:P data_size_in:I data_size_out:I ctx_in:P ctx_out:P "
        "ctx_size_in:I ctx_size_out:I retval:I repeat:I duration:I flags:I cpu:I batch_size:I"
    )


class BatchOptions(ctypes.Structure):
    """``struct bpf_map_batch_opts``."""

    _fields_ = _fields("sz:Q elem_flags:Q flags:Q")


BPF_F_NO_PREALLOC = 1
BPF_TRACE_UPROBE_MULTI = 48
_BPF_LINK_CREATE = 28
_BPF_F_UPROBE_MULTI_RETURN = 1
_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_PERF_TYPE_SOFTWARE = 1
_PERF_COUNT_SW_CPU_CLOCK = 0
_PERF_DISABLED, _PERF_EXCLUDE_IDLE = 1, 1 << 7
_PERF_FLAG_FD_CLOEXEC = 8

_PRINT = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)

_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "libbpf_major_version": (c_uint32, []),
    "libbpf_minor_version": (c_uint32, []),
    "libbpf_set_print": (c_void_p, [_PRINT]),
    "libbpf_num_possible_cpus": (c_int, []),
    "bpf_object__open_file": (c_void_p, [c_char_p, POINTER(ObjectOpenOptions)]),
    "bpf_object__load": (c_int, [c_void_p]),
    "bpf_object__close": (None, [c_void_p]),
    "bpf_object__find_map_by_name": (c_void_p, [c_void_p, c_char_p]),
    "bpf_object__find_program_by_name": (c_void_p, [c_void_p, c_char_p]),
    "bpf_object__next_map": (c_void_p, [c_void_p, c_void_p]),
    "bpf_map__name": (c_char_p, [c_void_p]),
    "bpf_map__fd": (c_int, [c_void_p]),
    "bpf_map__reuse_fd": (c_int, [c_void_p, c_int]),
    "bpf_map__key_size": (c_uint32, [c_void_p]),
    "bpf_map__value_size": (c_uint32, [c_void_p]),
    "bpf_map__max_entries": (c_uint32, [c_void_p]),
    "bpf_map__set_max_entries": (c_int, [c_void_p, c_uint32]),
    "bpf_map__set_map_flags": (c_int, [c_void_p, c_uint32]),
    "bpf_map__set_initial_value": (c_int, [c_void_p, c_char_p, c_size_t]),
    "bpf_object__next_program": (c_void_p, [c_void_p, c_void_p]),
    "bpf_program__name": (c_char_p, [c_void_p]),
    "bpf_program__set_expected_attach_type": (c_int, [c_void_p, c_int]),
    "bpf_program__set_autoload": (c_int, [c_void_p, ctypes.c_bool]),
    "bpf_program__fd": (c_int, [c_void_p]),
    "bpf_program__attach": (c_void_p, [c_void_p]),
    "bpf_program__attach_uprobe_opts": (
        c_void_p,
        [c_void_p, c_int, c_char_p, c_size_t, POINTER(UprobeOptions)],
    ),
    "bpf_program__attach_perf_event": (c_void_p, [c_void_p, c_int]),
    "bpf_link__destroy": (c_int, [c_void_p]),
    "bpf_link__fd": (c_int, [c_void_p]),
    "bpf_iter_create": (c_int, [c_int]),
    "bpf_prog_test_run_opts": (c_int, [c_int, POINTER(TestRunOptions)]),
    "btf__new_empty": (c_void_p, []),
    "btf__free": (None, [c_void_p]),
    "btf__add_int": (c_int, [c_void_p, c_char_p, c_size_t, c_int]),
    "btf__add_ptr": (c_int, [c_void_p, c_int]),
    "btf__add_array": (c_int, [c_void_p, c_int, c_int, c_uint32]),
    "btf__add_struct": (c_int, [c_void_p, c_char_p, c_uint32]),
    "btf__add_field": (c_int, [c_void_p, c_char_p, c_int, c_uint32, c_uint32]),
    "btf__add_enum": (c_int, [c_void_p, c_char_p, c_uint32]),
    "btf__add_enum_value": (c_int, [c_void_p, c_char_p, c_int64]),
    "btf__raw_data": (c_void_p, [c_void_p, POINTER(c_uint32)]),
    "libbpf_probe_bpf_helper": (c_int, [c_int, c_int, c_void_p]),
    "bpf_map_lookup_elem": (c_int, [c_int, c_char_p, c_void_p]),
    "bpf_map_update_elem": (c_int, [c_int, c_char_p, c_char_p, c_uint64]),
    "bpf_map_delete_elem": (c_int, [c_int, c_char_p]),
    "bpf_map_lookup_batch": (
        c_int,
        [c_int, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_uint32), POINTER(BatchOptions)],
    ),
}


class Libbpf:
    """
    The loaded library. Calls go through ``call``, ``pointer`` or ``raw``.

    Raises:
        HostError: libbpf is missing or too old, and this installation contains none.
    """

    def __init__(self) -> None:
        library, self.version, *_ = open_libbpf()
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
        self.raw = library
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._format = ctypes.CDLL(None).vsnprintf
        self._format.argtypes = [c_void_p, c_size_t, c_char_p, c_void_p]
        # Kept alive: libbpf calls it for as long as it is loaded.
        self._print = _PRINT(self._remember)
        library.libbpf_set_print(self._print)
        # libbpf writes the verifier's log here when the kernel refuses a program. Until then a mapping
        # takes no memory.
        log_bytes = ctypes.c_char * _VERIFIER_LOG_BYTES
        self.verifier_log = log_bytes.from_buffer(mmap.mmap(-1, _VERIFIER_LOG_BYTES))

    def _remember(self, level: int, template: bytes, arguments: int) -> int:
        if level >= _LEVEL_DEBUG:
            return 0
        line = ctypes.create_string_buffer(4096)
        self._format(line, len(line), template, arguments)
        self._log.append(line.value.decode(errors="replace").rstrip("\n"))
        return 0

    def error(self, what: str, code: int) -> BpfError:
        """Return a failure as an exception with the log so far, and clear the log."""
        reason = os.strerror(code) if code else "unknown error"
        log = "\n".join([*self._log, self.verifier_log.value.decode(errors="replace")])
        self._log.clear()
        hint = "run `otel-gpu doctor` to see what this host lacks"
        if code == errno.EPERM:
            hint = "run as root, or grant CAP_BPF and CAP_PERFMON; `otel-gpu doctor` says which"
        return BpfError(f"{what}: {reason}", hint=hint, log=log)

    def call(self, name: str, *arguments: object, what: str = "") -> int:
        """Call a function that returns a negative error number on failure."""
        result = int(getattr(self.raw, name)(*arguments))
        if result < 0:
            raise self.error(what or name, -result if result != -1 else ctypes.get_errno())
        return result

    def pointer(self, name: str, *arguments: object, what: str = "") -> int:
        """Call a function that returns a null pointer and sets errno on failure."""
        ctypes.set_errno(0)
        result = getattr(self.raw, name)(*arguments)
        if not result:
            raise self.error(what or name, ctypes.get_errno())
        return int(result)

    def btf_data(self, btf: int) -> bytes:
        """Return the bytes of BTF under construction."""
        size_bytes = c_uint32()
        data = self.pointer("btf__raw_data", btf, ctypes.byref(size_bytes), what="BTF is not made")
        return ctypes.string_at(data, size_bytes.value)

    def create_uprobe_multi(
        self, program_fd: int, path: bytes, probes: Sequence[tuple[int, int]], *, on_return: bool
    ) -> int:
        """
        Attach a program to many (file offset, cookie) pairs, which libbpf 1.1 cannot do.

        Returns:
            The file descriptor of the link, or a negative error number.
        """
        numbers = c_uint64 * len(probes)
        attributes = UprobeMultiAttributes(
            prog_fd=program_fd,
            attach_type=BPF_TRACE_UPROBE_MULTI,
            path=path,
            offsets=numbers(*(offset for offset, _ in probes)),
            cookies=numbers(*(cookie for _, cookie in probes)),
            count=len(probes),
            flags=_BPF_F_UPROBE_MULTI_RETURN if on_return else 0,
        )
        command = (c_long(_SYS_BPF[platform.machine()]), c_long(_BPF_LINK_CREATE))
        size = c_long(ctypes.sizeof(attributes))
        result = self._syscall(*command, ctypes.byref(attributes), size)
        return int(result) if result >= 0 else -ctypes.get_errno()

    def open_cpu_clock(self, cpu: int, period_ns: int) -> int:
        """
        Open a clock of one CPU that ticks while the CPU is not idle; it does not run yet.

        Returns:
            A file descriptor, or a negative error number.
        """
        attributes = PerfEventAttributes(
            type=_PERF_TYPE_SOFTWARE,
            size=ctypes.sizeof(PerfEventAttributes),
            config=_PERF_COUNT_SW_CPU_CLOCK,
            sample_period=period_ns,
            flags=_PERF_DISABLED | _PERF_EXCLUDE_IDLE,
        )
        number = c_long(_SYS_PERF_EVENT_OPEN[platform.machine()])
        scope = (c_long(-1), c_long(cpu), c_long(-1))  # every process, this CPU, no group
        flags = c_long(_PERF_FLAG_FD_CLOEXEC)
        result = self._syscall(number, ctypes.byref(attributes), *scope, flags)
        return int(result) if result >= 0 else -ctypes.get_errno()
