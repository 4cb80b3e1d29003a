"""
The kernel's types that the programs read, for kernels without BTF.

A compiler computes each size and offset from the kernel's headers. From these we make BTF with just
these types, and libbpf relocates the programs by it as by the kernel's own.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from otel_gpu.capture.bpf.libbpf import Libbpf
from otel_gpu.errors import HostError

# Types of fields. Any other text is the name of a structure, with brackets an array of it. A mapping
# is an anonymous structure.
_NUMBER = "number"
_POINTER = "pointer"
_TEXT = "text"
_Fields = Mapping[str, "str | _Fields"]

_THREAD_STRUCT: Mapping[str, _Fields] = {
    "x86_64": {"fsbase": _NUMBER},
    "aarch64": {"uw": {"tp_value": _NUMBER}},
}

# Members come before the structures that contain them. Sizes come from the headers.
STRUCTURES: Mapping[str, _Fields] = {
    "ns_common": {"inum": _NUMBER},
    "pid_namespace": {"ns": "ns_common"},
    "upid": {"nr": _NUMBER, "ns": _POINTER},
    "pid": {"level": _NUMBER, "numbers": "upid[]"},
    "thread_info": {"cpu": _NUMBER},
    "sched_entity": {"sum_exec_runtime": _NUMBER, "prev_sum_exec_runtime": _NUMBER},
    "signal_struct": {
        "live": {"counter": _NUMBER},
        "pids": f"{_POINTER}[]",
        "flags": _NUMBER,
        "leader": _NUMBER,
        "tty": _POINTER,
    },
    "uprobes_state": {"xol_area": _POINTER},
    "mm_struct": {"start_stack": _NUMBER, "uprobes_state": "uprobes_state"},
    "return_instance": {"stack": _NUMBER, "orig_ret_vaddr": _NUMBER, "next": _POINTER},
    "uprobe_task": {"return_instances": _POINTER},
    "thread_struct": _THREAD_STRUCT.get(platform.machine(), {}),
    "task_struct": {
        "thread_info": "thread_info",
        "stack": _POINTER,
        "mm": _POINTER,
        "se": "sched_entity",
        "pid": _NUMBER,
        "tgid": _NUMBER,
        "exit_code": _NUMBER,
        "ptrace": _NUMBER,
        "real_parent": _POINTER,
        "start_boottime": _NUMBER,
        "comm": _TEXT,
        "group_leader": _POINTER,
        "thread_pid": _POINTER,
        "signal": _POINTER,
        "utask": _POINTER,
        "thread": "thread_struct",
        "__state": _NUMBER,
        "state": _NUMBER,
        "cpu": _NUMBER,
        "throttled": _NUMBER,
    },
    "super_block": {"s_dev": _NUMBER},
    "inode": {"i_ino": _NUMBER, "i_sb": _POINTER},
    "qstr": {"len": _NUMBER, "name": _POINTER},
    "dentry": {"d_parent": _POINTER, "d_name": "qstr"},
    "vfsmount": {"mnt_root": _POINTER},
    "path": {"mnt": _POINTER, "dentry": _POINTER},
    "file": {"f_inode": _POINTER, "f_path": "path"},
    "linux_binprm": {"file": _POINTER, "filename": _POINTER},
}

# Fields that not every kernel has; see bpf/core/core_fixes.bpf.h.
_OPTIONAL = frozenset(
    {("task_struct", "__state"), ("task_struct", "state"), ("task_struct", "cpu")}
    | {("task_struct", "throttled"), ("task_struct", "utask"), ("thread_info", "cpu")}
)

_LAYOUT_ENUM = "kernel_layout"
_REGISTERS = "KERNEL_LAYOUT_REGISTERS"
_PROGRAM_TYPE = 2  # BPF_PROG_TYPE_KPROBE, which uprobes are of
_HELPERS = {"BPF_FUNC_loop": 181}

_RELEASE_BYTES = 64
_RELEASE_STEP = 4  # characters in one number
_POINTER_BYTES = 8

SOURCE = """
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/task_stack.h>
#include <linux/mm_types.h>
#include <linux/uprobes.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/fs.h>
#include <linux/dcache.h>
#include <linux/mount.h>
#include <linux/path.h>
#include <linux/binfmts.h>
#include <asm/processor.h>
#include <asm/ptrace.h>
#include <asm/thread_info.h>
#include <generated/utsrelease.h>

#ifndef TOP_OF_KERNEL_STACK_PADDING
#define TOP_OF_KERNEL_STACK_PADDING 0
#endif
#define REGISTERS (THREAD_SIZE - TOP_OF_KERNEL_STACK_PADDING - sizeof(struct pt_regs))
#define OFFSET(type, field) __builtin_offsetof(struct type, field)
#define SIZE(type, field) sizeof(((struct type *)0)->field)
#define LETTER(at) \\
	(unsigned int)(at < sizeof(UTS_RELEASE) ? UTS_RELEASE[at % sizeof(UTS_RELEASE)] : 0)
#define LETTERS(at) \\
	(LETTER(at) | LETTER(at + 1) << 8 | LETTER(at + 2) << 16 | LETTER(at + 3) << 24)
"""
"""C includes and macros that the expressions need."""


@dataclass(frozen=True, slots=True)
class KernelTypes:
    """
    The layout of one kernel's types; ``release`` as in ``uname -r``.

    ``values`` are sizes and offsets in bytes by expression; expressions that do not compile are missing.
    """

    release: str
    values: Mapping[str, int]

    def to_btf(self, libbpf: Libbpf) -> bytes:
        """
        Return these types as BTF.

        Raises:
            HostError: The headers lack a type or field that the programs read.
        """
        for structure, fields in STRUCTURES.items():
            for path, _ in _leaves(fields):
                known = _offset(structure, path) in self.values
                if not known and (structure, path) not in _OPTIONAL:
                    raise HostError(
                        f"the headers of kernel {self.release} have no struct {structure} "
                        f"with a {path}, which the BPF programs read",
                        hint="see which kernels are supported; `otel-gpu replay` needs none",
                    )
        return _Writer(libbpf, self).write()


def expressions() -> list[str]:
    """Return the constant C expressions to evaluate after ``SOURCE``."""
    asked = ["REGISTERS"]
    asked += [f"LETTERS({at})" for at in range(0, _RELEASE_BYTES, _RELEASE_STEP)]
    for structure, fields in STRUCTURES.items():
        asked.append(_size(structure))
        for path, kind in _leaves(fields):
            asked.append(_offset(structure, path))
            if kind in {_NUMBER, _TEXT}:
                asked.append(_size(structure, path))
    return asked


def read_types(values: Mapping[str, int | None]) -> KernelTypes:
    """
    Return the types by the values of ``expressions()``; None: that one does not compile.

    Raises:
        HostError: The kernel's version is missing.
    """
    known = {expression: value for expression, value in values.items() if value is not None}
    letters = [known.get(f"LETTERS({at})", 0) for at in range(0, _RELEASE_BYTES, _RELEASE_STEP)]
    raw = b"".join((number & 0xFFFFFFFF).to_bytes(_RELEASE_STEP, "little") for number in letters)
    release = raw.rstrip(b"\0").decode("ascii", "replace")
    if not release or "REGISTERS" not in known:
        raise HostError(
            "the kernel headers do not contain the kernel's version",
            hint="reinstall the headers of this kernel",
        )
    return KernelTypes(release, known)


def _size(structure: str, path: str = "") -> str:
    return f"SIZE({structure}, {path})" if path else f"sizeof(struct {structure})"


def _offset(structure: str, path: str) -> str:
    return f"OFFSET({structure}, {path})"


def _leaves(fields: _Fields, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, kind in fields.items():
        if isinstance(kind, str):
            yield prefix + name, kind
        else:
            yield from _leaves(kind, f"{prefix}{name}.")


class _Writer:
    # Writes BTF with libbpf; each method returns the id of a type.

    def __init__(self, libbpf: Libbpf, types: KernelTypes) -> None:
        self._libbpf = libbpf
        self._values = types.values
        self._btf = libbpf.pointer("btf__new_empty", what="BTF is not made")
        self._ids: dict[str, int] = {}

    def write(self) -> bytes:
        try:
            self._ids[_POINTER] = self._add("btf__add_ptr", 0)
            for structure, fields in STRUCTURES.items():
                self._ids[structure] = self._structure(structure, fields)
            self._enumeration(_LAYOUT_ENUM, {_REGISTERS: self._values["REGISTERS"]})
            self._enumeration("bpf_func_id", self._helpers())
            return self._libbpf.btf_data(self._btf)
        finally:
            self._libbpf.raw.btf__free(self._btf)

    def _add(self, function: str, *arguments: object) -> int:
        return self._libbpf.call(function, self._btf, *arguments, what="BTF is not made")

    def _helpers(self) -> Mapping[str, int]:
        probe = self._libbpf.raw.libbpf_probe_bpf_helper
        return {
            name: number
            for name, number in _HELPERS.items()
            if probe(_PROGRAM_TYPE, number, None) == 1
        }

    def _structure(self, structure: str, fields: _Fields) -> int:
        # Types of fields first: libbpf adds fields to the latest structure.
        members = [
            (name, 8 * self._values[_offset(structure, path)], self._type(structure, name, kind))
            for name, kind in fields.items()
            # An anonymous structure is placed by the offset of its first field.
            for path, _ in [next(_leaves({name: kind}))]
            if _offset(structure, path) in self._values
        ]
        return self._composite(structure.encode(), self._values[_size(structure)], members)

    def _type(self, structure: str, path: str, kind: "str | _Fields") -> int:
        if not isinstance(kind, str):
            ((name, inner),) = kind.items()
            member = (name, 0, self._type(structure, f"{path}.{name}", inner))
            return self._composite(None, _POINTER_BYTES, [member])
        if kind == _TEXT:
            return self._array(self._number(1), self._values[_size(structure, path)])
        if kind == _NUMBER:
            return self._number(self._values[_size(structure, path)])
        return self._array(self._ids[kind[:-2]], 1) if kind.endswith("[]") else self._ids[kind]

    def _composite(
        self, name: bytes | None, size: int, members: Iterable[tuple[str, int, int]]
    ) -> int:
        type_id = self._add("btf__add_struct", name, size)
        for member, offset_bits, member_type in members:
            self._add("btf__add_field", member.encode(), member_type, offset_bits, 0)
        return type_id

    def _number(self, size: int) -> int:
        name = f"number of {size} bytes"
        if name not in self._ids:
            self._ids[name] = self._add("btf__add_int", name.encode(), size, 0)
        return self._ids[name]

    def _array(self, element: int, count: int) -> int:
        return self._add("btf__add_array", self._number(4), element, count)

    def _enumeration(self, name: str, values: Mapping[str, int]) -> None:
        self._add("btf__add_enum", name.encode(), 4)
        for value_name, value in values.items():
            self._add("btf__add_enum_value", value_name.encode(), value)
