"""
Generate ``otel_gpu/wire.py`` from ``bpf/events.h``.

The types come from the BTF of the compiled object, so Python sees exactly what
the kernel side was compiled to; the constants come from the header's ``#define``
lines. ``--check`` compares instead of writing, and fails on any difference.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "bpf" / "events.h"
TARGET = ROOT / "otel_gpu" / "wire.py"

PREAMBLE = '''"""
GENERATED from bpf/events.h by tools/generate_wire.py. Do not edit.

Enumerators are plain integers. Each struct is a ``struct.Struct`` with the names
of the values that it unpacks to; a nested header comes first, arrays of numbers
give one value per element, arrays of structs come as bytes.
"""

import struct
'''

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

    def members(self, entry: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
        """Yield (format, name) per value; an empty name is padding."""
        end = 0
        for member in entry["members"]:
            if member["bits_offset"] != end * 8:
                sys.exit(f"{entry['name']}.{member['name']}: implicit padding before it")
            end += self.size(member["type_id"])
            yield from self._value(member["type_id"], prefix + member["name"])
        if end != entry["size"]:
            sys.exit(f"{entry['name']}: implicit padding at its end")

    def _value(self, type_id: int, name: str) -> Iterator[tuple[str, str]]:
        entry = self.strip(type_id)
        if name.rsplit(".", maxsplit=1)[-1] == "padding":
            yield f"{self.size(type_id)}x", ""
        elif entry["kind"] == "STRUCT":
            yield from self.members(entry, "" if name == "header" else name + ".")
        elif entry["kind"] == "ARRAY":
            element = self.strip(entry["type_id"])
            if element["kind"] == "STRUCT" or element["size"] == 1:
                yield f"{self.size(type_id)}s", name
            else:
                code = _code(element)
                yield f"{entry['nr_elems']}{code}", ""
                for index in range(entry["nr_elems"]):
                    yield "", f"{name}_{index}"
        else:
            yield _code(entry), name


def _code(entry: dict[str, Any]) -> str:
    signed = entry.get("encoding") == "SIGNED"
    return _SIGNED[entry["size"]] if signed else _INTEGERS[entry["size"], False]


def _constants(text: str) -> Iterator[str]:
    for name, value in re.findall(r"^#define (\w+)\s+(\d+)\b", text, re.MULTILINE):
        yield f"{name} = {value}"


def generate(entries: list[dict[str, Any]], header: str) -> str:
    """Return the text of wire.py."""
    types = Types(entries)
    declared = re.findall(r"^(enum|struct) (\w+) \{", header, re.MULTILINE)
    by_name = {(e["kind"].lower().removesuffix("64"), e["name"]): e for e in types.entries}
    lines = [PREAMBLE, *_constants(header), ""]
    for kind, name in declared:
        entry = by_name.get((kind, name))
        if entry is None:
            sys.exit(f"{kind} {name} is not in BTF: add it to bpf/anchors.bpf.c")
        upper = name.upper()
        if kind == "enum":
            lines += [f"# enum {name}"]
            lines += [f"{value['name']} = {value['val']}" for value in entry["values"]]
            names = ",\n".join(f'    {v["val"]}: "{v["name"].lower()}"' for v in entry["values"])
            lines += [f"{upper}_NAMES = {{\n{names},\n}}", ""]
        else:
            values = list(types.members(entry))
            fields = ",\n".join(f'    "{field}"' for _, field in values if field)
            lines += [f"# struct {name}: {entry['size']} bytes"]
            lines += [f'{upper} = struct.Struct("<{"".join(code for code, _ in values)}")']
            lines += [f"{upper}_FIELDS = (\n{fields},\n)", ""]
    return "\n".join(lines)


def main() -> None:
    """Write wire.py, or check that it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("object", type=Path, help="a compiled BPF object with the anchors")
    parser.add_argument("--bpftool", default="bpftool", help="the bpftool to run")
    parser.add_argument("--check", action="store_true", help="fail when wire.py differs")
    args = parser.parse_args()
    dump = subprocess.run(
        [args.bpftool, "-j", "btf", "dump", "file", args.object],
        check=True,
        capture_output=True,
    )
    text = generate(json.loads(dump.stdout)["types"], HEADER.read_text())
    if not args.check:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        sys.exit("otel_gpu/wire.py differs from bpf/events.h: run `make wire`")


if __name__ == "__main__":
    main()
