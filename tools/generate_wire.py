"""
Generate ``otel_gpu/wire/__init__.py`` from ``bpf/events.h`` and ``preload/layout.h``.

The types come from the BTF of the compiled object, so Python sees exactly what
the kernel side was compiled to; the constants come from the headers' ``#define``
lines. ``--check`` compares instead of writing, and fails on any difference.
"""

import argparse
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HEADERS = (ROOT / "bpf" / "events.h", ROOT / "preload" / "layout.h")
TARGET = ROOT / "otel_gpu" / "wire" / "__init__.py"

PREAMBLE = '''"""
GENERATED from bpf/events.h and preload/layout.h by tools/generate_wire.py. Do not edit.

Enumerators are plain integers; names of some, by number, are at the end. Structures stand in
the headers' order; arrays of numbers give one value per element, arrays of structs come as bytes.
"""

from otel_gpu.wire.c_struct import CStruct
'''

NAMES = """
_CONSTANTS = {name: value for name, value in globals().items() if isinstance(value, int)}


def _names(first: str, last: str) -> dict[int, str]:
    # The enumerators of one enumeration stand one after the other.
    order = list(_CONSTANTS)
    return {
        _CONSTANTS[name]: name.lower() for name in order[order.index(first) : order.index(last) + 1]
    }

"""

# Enumerations whose numbers are shown, or stored, with their names.
NAMED = {
    *(
        "record_kind",
        "counter",
        "api_family",
        "api_layer",
        "copy_kind",
        "choice",
        "metric",
        "switch_type",
    ),
    *("thread_state", "call_context", "stall_flag"),
    *("step_source", "step_kind"),
    "range_kind",
}

_LINE_CHARACTERS = 100
_INTEGERS = {(1, False): "B", (2, False): "H", (4, False): "I", (8, False): "Q"}
_SIGNED = {1: "b", 2: "h", 4: "i", 8: "q"}


class Types:
    """The types of one BTF section, by id."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self._by_id = {entry["id"]: entry for entry in entries}
        self.entries = entries

    def strip(self, type_id: int) -> dict[str, Any]:
        """Follow typedefs and qualifiers to the type itself."""
        entry = self._by_id[type_id]
        while entry["kind"] in {"TYPEDEF", "CONST", "VOLATILE"}:
            entry = self._by_id[entry["type_id"]]
        return entry

    def size(self, type_id: int) -> int:
        """Size in bytes."""
        entry = self.strip(type_id)
        if entry["kind"] == "ARRAY":
            return int(entry["nr_elems"]) * self.size(entry["type_id"])
        return int(entry["size"])

    def fields(self, entry: dict[str, Any], prefix: str = "") -> Iterator[str]:
        """Yield the fields of a struct as CStruct takes them, without those of its header."""
        end = 0
        for member in entry["members"]:
            if member["bits_offset"] != end * 8:
                sys.exit(f"{entry['name']}.{member['name']}: implicit padding before it")
            end += self.size(member["type_id"])
            if member["name"] != "header":
                yield from self._field(member["type_id"], prefix + member["name"])
        if end != entry["size"]:
            sys.exit(f"{entry['name']}: implicit padding at its end")

    def _field(self, type_id: int, name: str) -> Iterator[str]:
        entry = self.strip(type_id)
        if name.rsplit(".", maxsplit=1)[-1] == "padding":
            yield f"{self.size(type_id)}x"
        elif entry["kind"] == "STRUCT":
            yield from self.fields(entry, name + ".")
        elif entry["kind"] == "ARRAY":
            element = self.strip(entry["type_id"])
            if element["kind"] == "STRUCT" or element["size"] == 1:
                yield f"{name}:{self.size(type_id)}s"
            else:
                yield f"{name}:{entry['nr_elems']}{_code(element)}"
        else:
            yield f"{name}:{_code(entry)}"


def _code(entry: dict[str, Any]) -> str:
    signed = entry.get("encoding") == "SIGNED"
    return _SIGNED[entry["size"]] if signed else _INTEGERS[entry["size"], False]


def _constants(text: str) -> Iterator[str]:
    for name, value in re.findall(r"^#define (\w+)\s+(\d+)\b", text, re.MULTILINE):
        yield f"{name} = {value}"


def _struct(types: Types, entry: dict[str, Any]) -> Iterator[str]:
    name, fields = entry["name"].upper(), " ".join(types.fields(entry))
    has_header = entry["members"][0]["name"] == "header"
    line = f'{name} = CStruct("{fields}"{", RECORD_HEADER" if has_header else ""})'
    if len(line) <= _LINE_CHARACTERS:
        yield line
    else:
        # Each line ends with the space before the next, but for the last.
        *first, last = textwrap.wrap(fields, _LINE_CHARACTERS - 8, break_long_words=False)
        yield f"{name} = CStruct("
        yield from (f'    "{part} "' for part in first)
        yield from [f'    "{last}",', "    RECORD_HEADER,"] if has_header else [f'    "{last}"']
        yield ")"


def generate(entries: list[dict[str, Any]], header: str) -> str:
    """Return the text of wire/__init__.py."""
    types = Types(entries)
    declared = re.findall(r"^(enum|struct) (\w+) \{", header, re.MULTILINE)
    by_name = {(e["kind"].lower().removesuffix("64"), e["name"]): e for e in types.entries}
    lines = [PREAMBLE, *_constants(header), ""]
    structs: list[str] = []
    names = []
    for kind, name in declared:
        entry = by_name.get((kind, name))
        if entry is None:
            sys.exit(f"{kind} {name} is not in BTF: add it to bpf/core/anchors.bpf.c")
        if kind == "struct":
            structs += _struct(types, entry)
        else:
            values = entry["values"]
            lines += [f"# enum {name}", *(f"{value['name']} = {value['val']}" for value in values)]
            lines += [""]
            first, last = values[0]["name"], values[-1]["name"]
            if name in NAMED:
                names.append(f'{name.upper()}_NAMES = _names("{first}", "{last}")')
    return "\n".join([*lines, *structs, NAMES, *names, ""])


def main() -> None:
    """Write wire/__init__.py, or check that it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("object", type=Path, help="a compiled BPF object with the anchors")
    parser.add_argument("--bpftool", default="bpftool", help="the bpftool to run")
    parser.add_argument("--check", action="store_true", help="fail when wire/__init__.py differs")
    args = parser.parse_args()
    dump = subprocess.run(
        [args.bpftool, "-j", "btf", "dump", "file", args.object],
        check=True,
        capture_output=True,
    )
    header = "".join(path.read_text() for path in HEADERS)
    text = generate(json.loads(dump.stdout)["types"], header)
    if not args.check:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        sys.exit("otel_gpu/wire/__init__.py differs from its headers: run `make wire`")


if __name__ == "__main__":
    main()
