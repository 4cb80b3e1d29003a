"""C headers: each includes what it uses, and none include each other in a circle."""

import re
import shlex
import subprocess
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADERS = {folder: sorted(ROOT.glob(f"{folder}/**/*.h")) for folder in ("bpf", "preload")}
SOURCES = sorted([*ROOT.glob("bpf/**/*.[ch]"), *ROOT.glob("preload/**/*.[ch]")])
# Each architecture and each kind of kernel once.
VARIANTS = (
    ("-D__TARGET_ARCH_x86",),
    ("-D__TARGET_ARCH_arm64", "-DOTEL_GPU_NO_BTF"),
)


def name_of(path):
    return str(path.relative_to(ROOT))


def unit_of(path):
    """A header and the source file of the same name are one unit."""
    return re.sub(r"(\.bpf)?\.[ch]$", "", name_of(path))


@cache
def compiler(folder):
    """Return how the sources of a folder are compiled."""
    printed = subprocess.run(
        ["make", "-s", "--no-print-directory", "-C", ROOT / folder, "compiler"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    # No source file uses all of a header.
    return (*shlex.split(printed), "-Wno-unused-function", "-fsyntax-only", "-x", "c", "-")


def problems_of(folder, header, *defines):
    """Return what the compiler says of a file that includes one header."""
    return subprocess.run(
        [*compiler(folder), *defines],
        input=f'#include "{header}"\n',
        cwd=ROOT / folder,
        check=False,
        stderr=subprocess.PIPE,
        text=True,
    ).stderr


@pytest.mark.parametrize("header", HEADERS["bpf"], ids=name_of)
def test_each_header_of_bpf_programs_compiles_alone(header):
    """So its includes can stand in any order, and it can be read without the others."""
    assert [problems_of("bpf", header, *defines) for defines in VARIANTS] == [""] * len(VARIANTS)


@pytest.mark.parametrize("header", HEADERS["preload"], ids=name_of)
def test_each_header_of_the_preload_library_compiles_alone(header):
    """As those of BPF programs."""
    assert problems_of("preload", header) == ""


def test_a_header_that_uses_what_it_does_not_include_is_found(tmp_path):
    """The compiler's words are a failure of its own test."""
    header = tmp_path / "lone.h"
    header.write_text("static inline struct row *first_row(void) { return rows; }\n")

    assert "undeclared" in problems_of("preload", header)


def included_by(path):
    """Return the files of the project that one includes."""
    texts = re.findall(r'^#include "(.+)"$', path.read_text(encoding="utf-8"), re.MULTILINE)
    # By the folder of the file, or from that of all BPF programs.
    found = [
        next(
            (place / text).resolve()
            for place in (path.parent, ROOT / "bpf")
            if (place / text).exists()
        )
        for text in texts
    ]
    assert set(found) <= set(SOURCES)
    return found


def circle_in(graph):
    """Return one circle of a graph, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_files_include_each_other_in_a_circle():
    """What a file needs is below it."""
    graph = {}
    for path in SOURCES:
        below = {unit_of(included) for included in included_by(path)} - {unit_of(path)}
        graph.setdefault(unit_of(path), set()).update(below)

    assert len(graph) > 50
    assert circle_in(graph) == []


def test_a_circle_is_found():
    """By its members."""
    assert set(circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}


@pytest.mark.parametrize("header", [*HEADERS["bpf"], *HEADERS["preload"]], ids=name_of)
def test_guards_are_named_by_paths(header):
    """A header that was moved, or copied, has no other one's guard."""
    guard = f"OTEL_GPU_{unit_of(header).replace('/', '_').upper()}_H"

    lines = [line for line in header.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]

    assert lines[:2] == [f"#ifndef {guard}", f"#define {guard}"]
    assert lines[-1] == "#endif"
