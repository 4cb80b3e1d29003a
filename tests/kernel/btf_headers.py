"""
Headers of the running kernel, made from its BTF.

The tests' kernel has no package of headers. What BCC reads instead has the structures at
their true offsets, and is laid out on disk as a kernel's headers are.
"""

import functools
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from otel_gpu.capture.bpf.bcc.kernel_types import SOURCE, STRUCTURES

_BTF = "/sys/kernel/btf/vmlinux"
_EMPTY = (
    "asm/page.h",
    "linux/log2.h",
    "uapi/linux/bpf.h",
    "uapi/linux/if_packet.h",
)
_TYPES = """
#include <linux/int_types.h>
typedef __s8 s8; typedef __u8 u8; typedef __s16 s16; typedef __u16 u16;
typedef __s32 s32; typedef __u32 u32; typedef __s64 s64; typedef __u64 u64;
typedef _Bool bool; typedef __kernel_size_t size_t; typedef unsigned long uintptr_t;
"""
_THREAD_SIZE = 16384  # x86-64 and arm64, without KASAN
_MACHINE_HEADERS = f"{platform.machine()}-linux-gnu/asm"
_USER_HEADERS = {
    "linux/int_types.h": "linux/types.h",
    "linux/posix_types.h": "linux/posix_types.h",
    "linux/stddef.h": "linux/stddef.h",
    "linux/bpf_common.h": "linux/bpf_common.h",
    "asm-generic": "asm-generic",
    "asm/types.h": f"{_MACHINE_HEADERS}/types.h",
    "asm/posix_types.h": f"{_MACHINE_HEADERS}/posix_types.h",
    "asm/posix_types_64.h": f"{_MACHINE_HEADERS}/posix_types_64.h",
    "asm/bitsperlong.h": f"{_MACHINE_HEADERS}/bitsperlong.h",
}


def make_headers(folder: Path, release: str | None = None) -> Path:
    """
    Write headers for BCC_KERNEL_SOURCE.

    Args:
        folder: Where; it is made.
        release: What they say that they belong to; the running kernel by default.
    """
    include = folder / "include"
    texts = {
        **dict.fromkeys(re.findall(r"<(.+)>", SOURCE), "#include <generated/types.h>\n"),
        **dict.fromkeys(_EMPTY, ""),
        "generated/types.h": _types(),
        "generated/utsrelease.h": f'#define UTS_RELEASE "{release or os.uname().release}"\n',
        "asm/thread_info.h": f"#define THREAD_SIZE {_THREAD_SIZE}\n",
        "linux/kconfig.h": "#define CONFIG_BPF_SYSCALL 1\n",
        "linux/version.h": "#define KERNEL_VERSION(a, b, c) 0\n#define LINUX_VERSION_CODE 0\n",
        "linux/types.h": _TYPES,
    }
    for name, text in texts.items():
        path = include / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # BCC's own headers want the integer types, which user space's headers have as well.
    for name, target in _USER_HEADERS.items():
        path = include / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(Path("/usr/include") / target)
    return folder


def kernel_btf() -> dict[int, dict[str, Any]]:
    """Return the running kernel's types by id, as bpftool describes them."""
    dump = subprocess.run(
        ["bpftool", "--json", "btf", "dump", "file", _BTF],
        env=os.environ | {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
        capture_output=True,
        check=True,
    )
    return {entry["id"]: entry for entry in json.loads(dump.stdout)["types"]}


@functools.cache
def _types() -> str:
    """Return the header that has all of them; to read the BTF takes a second."""
    return "\n".join(["#pragma once", *_structures(), ""])


def _structures() -> Iterator[str]:
    btf = kernel_btf()
    named = {entry["name"]: entry for entry in btf.values() if entry["kind"] == "STRUCT"}
    for name in STRUCTURES:
        yield f"struct {name};"
    for name in (*STRUCTURES, "pt_regs"):
        yield _declaration(btf, named[name], f"struct {name}") + ";"


def _declaration(btf: dict[int, dict[str, Any]], entry: dict[str, Any], head: str) -> str:
    """Declare a structure, with bytes in place of what nobody asks for."""
    wanted = STRUCTURES.get(entry["name"])
    lines, end = [], 0
    members = sorted(_members(btf, entry), key=lambda member: int(member[1]))
    for member, offset, type_id in members:
        if wanted is not None and member not in wanted:
            continue
        if offset < end:  # another name of the same place
            continue
        if offset > end:
            lines.append(f"char gap_{end}[{offset - end}];")
        text, size = _field(btf, type_id, member)
        lines.append(text)
        end = offset + size
    if entry["size"] > end:
        lines.append(f"char gap_{end}[{entry['size'] - end}];")
    return f"{head} {{ {' '.join(lines)} }} __attribute__((packed))"


def _members(
    btf: dict[int, dict[str, Any]], entry: dict[str, Any], base: int = 0
) -> Iterator[tuple[str, int, int]]:
    for member in entry["members"]:
        offset = base + member["bits_offset"] // 8
        if member["name"] == "(anon)":
            yield from _members(btf, btf[member["type_id"]], offset)
        elif not member.get("bitfield_size"):
            yield member["name"], offset, member["type_id"]


def _field(btf: dict[int, dict[str, Any]], type_id: int, name: str) -> tuple[str, int]:
    """Return a declaration and its size in bytes."""
    entry, count = btf[type_id], None
    while entry["kind"] in {"TYPEDEF", "CONST", "VOLATILE", "ARRAY"}:
        if entry["kind"] == "ARRAY":
            count = entry["nr_elems"]
        entry = btf[entry["type_id"]]
    if entry["kind"] == "PTR":
        kind, size = "void *", 8
    elif entry["kind"] == "STRUCT" and entry["name"] in STRUCTURES:
        kind, size = f"struct {entry['name']} ", entry["size"]
    elif entry["kind"] == "STRUCT" and entry["name"] == "(anon)":
        kind, size = _declaration(btf, entry, "struct") + " ", entry["size"]
    elif entry["kind"] in {"INT", "ENUM"} and entry["size"] in _INTEGERS:
        kind, size = f"{_INTEGERS[entry['size']]} ", entry["size"]
    else:
        kind, size, count = "char ", 1, entry["size"] * (1 if count is None else count)
    return f"{kind}{name}{'' if count is None else f'[{count}]'};", size * (
        1 if count is None else count
    )


_INTEGERS = {1: "char", 2: "short", 4: "int", 8: "long"}
