"""What must hold of the compiled objects on kernels that the tests do not run on."""

import json
import os
import platform
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from elftools.elf.elffile import ELFFile

from otel_gpu.capture.bpf.bcc.kernel_types import STRUCTURES
from otel_gpu.capture.bpf.objects import OBJECT_FOLDER

OBJECTS = sorted(OBJECT_FOLDER.glob("*.bpf.o"))
WITHOUT_BTF = [path for path in OBJECTS if ".nobtf." in path.name]

# From the kernel: MAX_BPF_STACK, MAX_CALL_FRAMES; up to Linux 6.8, frames take multiples of 32.
STACK_BYTES, CALL_FRAMES, FRAME_ROUNDING = 512, 8, 32
INSTRUCTION = struct.Struct("<BBhi")
STACK = 10  # the frame pointer's register
CALL, LOAD_64, MOVE_64, ADD_64 = 0x85, 0x18, 0xBF, 0x07
LOAD_CLASS, STORE_IMMEDIATE_CLASS, STORE_CLASS = 1, 2, 3
OF_FUNCTION = 1  # src_reg of a call of our own function
# bpf_get_task_stack, bpf_get_current_task_btf, bpf_task_pt_regs
NEED_BTF = {141, 158, 175}


class Function(NamedTuple):
    """One function: what it takes of the stack, and what it calls."""

    stack_bytes: int
    callees: frozenset[tuple[int, int]]
    helpers: frozenset[int]


def functions_of(path: Path) -> dict[tuple[int, int], tuple[str, Function]]:
    """Return functions by (section, offset), with their names."""
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        symbols = list(elf.get_section_by_name(".symtab").iter_symbols())
        relocated: dict[int, dict[int, tuple[int, int, bool]]] = {}
        for section in elf.iter_sections():
            if section["sh_type"] == "SHT_REL":
                relocated[section["sh_info"]] = {
                    entry["r_offset"]: (
                        symbols[entry["r_info_sym"]]["st_shndx"],
                        symbols[entry["r_info_sym"]]["st_value"],
                        symbols[entry["r_info_sym"]]["st_info"]["type"] == "STT_SECTION",
                    )
                    for entry in section.iter_relocations()
                }
        found = {}
        for symbol in symbols:
            if symbol["st_info"]["type"] == "STT_FUNC":
                index, start = symbol["st_shndx"], symbol["st_value"]
                code = elf.get_section(index).data()[start : start + symbol["st_size"]]
                function = read_function(code, index, start, relocated.get(index, {}))
                found[index, start] = (symbol.name, function)
        return found


def read_function(
    code: bytes, section: int, start: int, relocated: dict[int, tuple[int, int, bool]]
) -> Function:
    lowest, copies = 0, set()
    callees, helpers = set(), set()
    for offset in range(0, len(code), INSTRUCTION.size):
        operation, registers, displacement, immediate = INSTRUCTION.unpack_from(code, offset)
        to, of = registers & 15, registers >> 4
        kind = operation & 7
        if (kind in (STORE_CLASS, STORE_IMMEDIATE_CLASS) and to == STACK) or (
            kind == LOAD_CLASS and of == STACK
        ):
            lowest = min(lowest, displacement)
        if operation == MOVE_64 and of == STACK:
            copies.add(to)
        elif operation == ADD_64 and to in copies:
            lowest = min(lowest, immediate)
            copies.discard(to)
        elif kind not in (STORE_CLASS, STORE_IMMEDIATE_CLASS):
            copies.discard(to)
        target = relocated.get(start + offset)
        if operation == CALL and of == OF_FUNCTION:
            base = target[:2] if target else (section, start + offset)
            at = base[1] + (immediate + 1) * INSTRUCTION.size
            callees.add((base[0], at))
        elif operation == CALL:
            helpers.add(immediate)
        elif operation == LOAD_64 and of in (0, 4) and target:  # perhaps of a callback
            callees.add((target[0], target[1] + (immediate if target[2] else 0)))
    return Function(-lowest, frozenset(callees), frozenset(helpers))


def deepest(path: Path) -> tuple[int, list[str]]:
    """Return the stack that the deepest chain of calls takes, and the chain."""
    functions = functions_of(path)

    def descend(at: tuple[int, int]) -> tuple[int, list[str]]:
        name, function = functions[at]
        own = -(-max(function.stack_bytes, 1) // FRAME_ROUNDING) * FRAME_ROUNDING
        below = [descend(callee) for callee in function.callees if callee in functions]
        depth, chain = max(below, default=(0, []))
        return own + depth, [f"{name} {own}", *chain]

    return max(descend(at) for at in functions)


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_the_deepest_chain_of_calls_fits_on_the_stack(path):
    """Kernels before 6.13 have 512 bytes for all frames of a chain, and eight of them."""
    bytes_taken, chain = deepest(path)

    # The longest chains are known: the sample of a wait, down to a name in its Python code, the end
    # of a wait, down to an entry without details, to its share, or to that of a ring, and a
    # communicator that finds no room.
    last, _ = chain[-1].split()
    assert last in {"read_text", "find_folded", "take_share", "admit_to", "count_many"}
    assert len(chain) <= CALL_FRAMES
    assert bytes_taken <= STACK_BYTES, chain


@pytest.mark.parametrize("path", WITHOUT_BTF, ids=lambda path: path.name)
def test_programs_for_kernels_without_btf_need_none(path):
    """Neither a helper that deals in typed pointers, nor a tracepoint with typed arguments."""
    functions = functions_of(path)
    with path.open("rb") as stream:
        sections = {section.name for section in ELFFile(stream).iter_sections()}

    assert not NEED_BTF & {number for _, f in functions.values() for number in f.helpers}
    assert not [name for name in sections if name.startswith("tp_btf")]
    assert "raw_tp/sched_switch" in sections


def test_there_are_objects_of_both_kinds():
    """For each architecture one for kernels with BTF, and one for those without."""
    assert len(OBJECTS) == 2 * len(WITHOUT_BTF) == 4


def relocated_fields(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (structure, path of the field) of all that libbpf fits to the kernel."""
    dump = subprocess.run(
        ["bpftool", "--json", "btf", "dump", "file", str(path)],
        env=os.environ | {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
        capture_output=True,
        check=True,
    )
    types = {entry["id"]: entry for entry in json.loads(dump.stdout)["types"]}
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        btf = elf.get_section_by_name(".BTF").data()
        ext = elf.get_section_by_name(".BTF.ext").data()
    header, text_start = struct.unpack_from("<I", btf, 4)[0], struct.unpack_from("<I", btf, 16)[0]
    texts = btf[header + text_start :]
    ext_header, start, length = (struct.unpack_from("<I", ext, at)[0] for at in (4, 24, 28))
    at, end = ext_header + start + 4, ext_header + start + length
    while at < end:
        (count,) = struct.unpack_from("<I", ext, at + 4)
        at += 8
        for _ in range(count):
            _, type_id, access, _ = struct.unpack_from("<IIII", ext, at)
            at += 16
            steps = texts[access : texts.index(b"\0", access)].decode().split(":")[1:]
            yield from walk(types, types[type_id], [int(step) for step in steps])


def walk(types, entry, steps):
    outer, names = entry["name"].partition("___")[0], []
    for step in steps:
        if entry["kind"] == "ARRAY":
            entry = strip(types, entry["type_id"])
            outer, names = entry["name"], []
            continue
        if entry["kind"] != "STRUCT":
            return
        member = entry["members"][step]
        names.append(member["name"])
        yield outer, ".".join(names)
        entry = strip(types, member["type_id"])
        if entry["kind"] == "STRUCT" and entry["name"] != "(anon)":
            outer, names = entry["name"], []


def strip(types, type_id):
    while types[type_id]["kind"] in {"TYPEDEF", "CONST", "VOLATILE"}:
        type_id = types[type_id]["type_id"]
    return types[type_id]


def declared_fields(fields, prefix=""):
    for name, kind in fields.items():
        yield prefix + name
        if not isinstance(kind, str):
            yield from declared_fields(kind, f"{prefix}{name}.")


def test_the_table_of_types_has_what_the_programs_read():
    """All fields that libbpf will look for, and none that nobody reads."""
    path = OBJECT_FOLDER / f"otel_gpu.{platform.machine()}.nobtf.bpf.o"

    read = set(relocated_fields(path))

    declared = {(s, field) for s, fields in STRUCTURES.items() for field in declared_fields(fields)}
    assert read == declared
