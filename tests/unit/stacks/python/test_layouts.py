"""Where each version of CPython keeps its frames and code objects."""

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.stacks.python.layouts import InterpreterLayout, layout_of
from tests.pythons.interpreters import NAMES, interpreter

PRINTS_LAYOUT = Path(__file__).resolve().parents[4] / "tools" / "python_layouts.c"
FINAL = 0xF0
# Words of the table of offsets, numbered from its third field on.
NUMBERED = struct.pack("<8sQQ96Q", b"xdebugpy", 0x030D00F0, 0, *range(96))


def test_a_layout_is_what_the_kernel_side_is_told():
    """Its fields are those of struct interpreter behind the addresses."""
    assert wire.INTERPRETER.fields[:3] == ("program_ktime_ns", "start", "end")
    assert wire.INTERPRETER.fields[3:] == InterpreterLayout._fields


@pytest.mark.parametrize("kind", ["-DNDEBUG", "-DPy_DEBUG"], ids=["release", "debug"])
@pytest.mark.parametrize("name", NAMES)
def test_the_table_is_what_the_headers_say(name, kind, tmp_path):
    """
    Compiled with the headers of an interpreter, the offsets of its version (since 3.13, their
    places in its own table) are the same, for a release as for a build for debugging.
    """
    python = interpreter(name)
    include = subprocess.run(
        [*python.command, "-c", "import sysconfig; print(sysconfig.get_path('include'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    if shutil.which("gcc") is None or not Path(include, "internal", "pycore_frame.h").exists():
        pytest.skip("there is no gcc, or no headers of this interpreter")
    program = tmp_path / "layout"
    subprocess.run(["gcc", kind, "-I", include, "-o", program, PRINTS_LAYOUT], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    said = dict(line.split() for line in printed.splitlines())

    assert said.pop("version").startswith("{}.{}.".format(*python.minor))
    # Of 3.13 and later, which word of the interpreter's own table says it.
    version_hex = python.minor[0] << 24 | python.minor[1] << 16 | FINAL
    table = struct.pack("<8sQQ96Q", b"xdebugpy", version_hex, 0, *range(96))
    layout = layout_of(version_hex, table)._asdict()
    assert {field: layout[field] for field in said} == {
        field: int(offset) for field, offset in said.items()
    }
    assert len(said) >= 19


def test_before_3_13_the_layout_comes_from_the_version_alone():
    """That of 3.11, written out."""
    assert layout_of(0x030B0000 | FINAL, b"") == InterpreterLayout(
        version=0x030B,
        runtime_interpreters=40,
        interpreter_next=0,
        interpreter_threads=16,
        thread_next=8,
        thread_id=152,
        thread_frame=56,
        c_frame_frame=8,
        frame_code=32,
        frame_previous=48,
        frame_instruction=56,
        frame_owner=68,
        frame_bytes=76,
        shim_owner=255,
        code_first_line=72,
        code_file=112,
        code_name=128,
        code_line_table=136,
        code_instructions=184,
        code_bytes=144,
        text_length=16,
        text_state=32,
        text_ascii=48,
        text_compact=72,
        bytes_length=16,
        bytes_data=32,
    )


def test_since_3_13_the_interpreter_says_where_things_are():
    """Each offset is taken from its place in the table that _PyRuntime begins with."""
    assert layout_of(0x030D00F0, NUMBERED) == InterpreterLayout(
        version=0x030D,
        runtime_interpreters=2,
        interpreter_next=5,
        interpreter_threads=6,
        thread_next=18,
        thread_id=21,
        thread_frame=20,
        c_frame_frame=0,
        frame_code=27,
        frame_previous=26,
        frame_instruction=28,
        frame_owner=30,
        frame_bytes=38,
        shim_owner=3,
        code_first_line=36,
        code_file=32,
        code_name=34,
        code_line_table=35,
        code_instructions=40,
        code_bytes=44,
        text_length=66,
        text_state=65,
        text_ascii=67,
        text_compact=83,
        bytes_length=62,
        bytes_data=63,
    )


@pytest.mark.parametrize(
    ("version_hex", "runtime", "reason"),
    [
        (0x030900F0, b"", "Python 3.9 is not one of 3.10 to 3.14"),
        (0x030F00F0, NUMBERED, "Python 3.15 is not one of 3.10 to 3.14"),
        (0x030C00B1, b"", "this Python 3.12 is older than its first release candidate"),
        (0x030D00F0, NUMBERED[:500], "the runtime state of this Python 3.13 cannot be read"),
        (
            0x030D01F0,
            NUMBERED,
            "the runtime state of this Python 3.13 has no table of offsets",
        ),
        (
            0x030D00F0,
            b"y" + NUMBERED[1:],
            "the runtime state of this Python 3.13 has no table of offsets",
        ),
        (
            0x030D00F0,
            NUMBERED[:16] + b"\1" + NUMBERED[17:],
            "this Python 3.13 is free-threaded",
        ),
        (
            0x030D00F0,
            NUMBERED.replace(struct.pack("<Q", 26), struct.pack("<Q", 257)),
            "the interpreter states impossible offsets",
        ),
    ],
)
def test_an_interpreter_of_an_unknown_kind_has_no_layout(version_hex, runtime, reason):
    """It is refused, and the reason says why."""
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        layout_of(version_hex, runtime)


def test_a_release_candidate_is_laid_out_as_the_release():
    """The first candidate of a version is the last that may change anything."""
    assert layout_of(0x030C00C1, b"") == layout_of(0x030C04F0, b"")


@given(st.integers(0x0309, 0x0310), st.integers(0, 0xFFFF), st.binary(max_size=1200))
def test_whatever_an_interpreter_states_gives_a_layout_that_can_be_used(version, rest, runtime):
    """Sizes stay within what the kernel side has room for, or there is no layout."""
    version_hex = version << 16 | rest
    header = struct.pack("<8sQQ", b"xdebugpy", version_hex, 0)
    try:
        layout = layout_of(version_hex, header + runtime)
    except ValueError:
        return
    assert layout.frame_bytes <= 256
    assert layout.code_bytes <= 512
