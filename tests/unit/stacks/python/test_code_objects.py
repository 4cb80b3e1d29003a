"""Code objects of Python programs, as the kernel side told about them, and their frames."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.stacks.python.code_objects import CodeObjects
from otel_gpu.wire.frames import Frame

IMAGE = (1234, 77)
OTHER = (5678, 88)
UNKNOWN = Frame("cpython", "")
# For 3.11: one line on for eight bytes, then one more for two.
LINES = bytes([0x80 | 11 << 3 | 3, 0, 0, 0x80 | 11 << 3 | 0, 0, 0])
HEAD_BYTES = wire.CODE_RECORD.size - wire.LINE_TABLE_BYTES


def code_record(
    *,
    image=IMAGE,
    code=1,
    first_line=10,
    version=0x030B,
    file=(6, 1, b"a/b.py"),
    name=(9, 1, b"Some.name"),
    line_table=LINES,
    room=512,
    **fields,
):
    pid, program_ktime_ns = image
    values = {
        "kind": wire.RECORD_CODE,
        "flags": 0,
        "size": HEAD_BYTES + room,
        "ktime_ns": 5,
        "program_ktime_ns": program_ktime_ns,
        "pid": pid,
        "tid": pid,
        "code": code,
        "address": 0x7000,
        "first_line": first_line,
        "version": version,
        "line_table_bytes": len(line_table),
        "line_table_length": len(line_table),
        **dict(zip(("file.length", "file.character_bytes", "file.data"), file, strict=True)),
        "qualified_name.length": name[0],
        "qualified_name.character_bytes": name[1],
        "qualified_name.data": name[2],
        "line_table": line_table,
        **fields,
    }
    record = wire.CODE_RECORD.pack(*(values[field] for field in wire.CODE_RECORD.fields))
    return record[: HEAD_BYTES + room]


def learned(*records, **limits):
    code_objects = CodeObjects(**limits)
    for record in records:
        code_objects.learn(record)
    return code_objects


@pytest.mark.parametrize(
    ("offset", "line"), [(0, 11), (6, 11), (8, 12), (10, 0), (0xFFFFFFFE, 10), (-2, 10)]
)
def test_a_frame_has_the_name_file_and_current_line(offset, line):
    """Before the first instruction it is at the line that its code begins with."""
    code_objects = learned(code_record())

    expected = Frame("cpython", "Some.name", file="a/b.py", line=line)
    assert code_objects.frame(IMAGE, 1, offset) == expected
    assert code_objects.frame(IMAGE, 1, offset) is code_objects.frame(IMAGE, 1, offset)


def test_what_was_never_told_has_no_name():
    """Nor has code of another image, or another of this one."""
    code_objects = learned(code_record())

    assert code_objects.frame(IMAGE, 2, 0) == UNKNOWN
    assert code_objects.frame(OTHER, 1, 0) == UNKNOWN
    assert code_objects.frame((1234, 78), 1, 0) == UNKNOWN


def test_a_record_may_be_as_long_as_its_line_table():
    """What is behind the line table is not looked at."""
    whole = code_record(room=wire.LINE_TABLE_BYTES)
    code_objects = learned(whole[: HEAD_BYTES + len(LINES)] + b"\xff" * 9)

    assert code_objects.frame(IMAGE, 1, 8).line == 12
    assert code_objects.rejected == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ((5, 1, b"plain" + b"\xee" * 9), "plain"),
        ((6, 1, "Größe!".encode("latin-1")), "Größe!"),
        ((3, 2, "名前é".encode("utf-16-le")), "名前é"),
        ((2, 4, "a🂡".encode("utf-32-le")), "a🂡"),
        ((0, 1, b""), ""),
        # Python keeps bytes that are not UTF-8 as lone surrogates.
        ((3, 2, b"a\0\x80\xdcb\0"), "a\N{REPLACEMENT CHARACTER}b"),
        ((2, 4, b"a\0\0\0\0\0\x11\0"), "a\N{REPLACEMENT CHARACTER}"),
        ((4, 1, b"a\x1b\n\x9b"), "a" + 3 * "\N{REPLACEMENT CHARACTER}"),
        ((2, 2, "a\u202e".encode("utf-16-le")), "a\N{REPLACEMENT CHARACTER}"),
        ((600, 1, b"x" * 512), "x" * 512 + "…"),
        ((257, 2, "é".encode("utf-16-le") * 256), "é" * 256 + "…"),
        ((0xFFFFFFFF, 4, "é".encode("utf-32-le") * 128), "é" * 128 + "…"),
        ((5, 3, b"plain"), ""),
        ((5, 0, b"plain"), ""),
    ],
)
def test_texts_are_read_in_each_form_that_python_has(text, expected):
    """What is cut says so, and what cannot be shown is replaced."""
    code_objects = learned(code_record(name=text))

    assert code_objects.frame(IMAGE, 1, 0).function == expected


def test_a_code_object_that_is_told_again_is_the_newer_one():
    """Its name in the process is used again when its memory is."""
    code_objects = learned(code_record(), code_record(name=(3, 1, b"new"), first_line=20))

    assert code_objects.frame(IMAGE, 1, 0) == Frame("cpython", "new", file="a/b.py", line=21)
    assert len(code_objects._codes) == 1


def test_images_share_what_is_the_same_and_forget_their_own():
    """Two processes of one program have the very same frames; each goes by itself."""
    code_objects = learned(
        code_record(),
        code_record(image=OTHER, code=2),
        code_record(image=OTHER, code=3, line_table=LINES[:3]),
    )
    frame = code_objects.frame(IMAGE, 1, 0)

    assert code_objects.frame(OTHER, 2, 0) is frame
    assert code_objects.frame(OTHER, 3, 0) == frame
    assert code_objects.frame(OTHER, 3, 8).line == 0
    code_objects.forget(OTHER)
    code_objects.forget(OTHER)
    assert code_objects.frame(OTHER, 2, 0) == UNKNOWN
    assert code_objects.frame(IMAGE, 1, 0) is frame
    assert len(code_objects._codes) == 1


def test_what_was_not_used_for_longest_goes_first():
    """And is counted."""
    code_objects = learned(*(code_record(code=code) for code in (1, 2, 3)), limit=3)
    code_objects.frame(IMAGE, 1, 0)
    code_objects.learn(code_record(code=4))

    known = [code for code in (1, 2, 3, 4) if code_objects.frame(IMAGE, code, 0) != UNKNOWN]
    assert known == [1, 3, 4]
    assert code_objects.forgotten == 1


def test_memory_is_bounded_whatever_is_told():
    """Long texts and tables count for more, and so do many lines asked for."""
    text = (512, 1, b"x" * 512)
    records = [
        code_record(code=code, first_line=code, name=text, line_table=b"\xff" * 16384, room=16384)
        for code in range(1, 40)
    ]
    code_objects = learned(*records, limit_bytes=1_000_000)
    assert len(code_objects._codes) == 14
    assert code_objects.forgotten == 39 - 14

    for offset in range(50_000):
        code_objects.frame(IMAGE, 39, offset)
    assert code_objects.frame(IMAGE, 39, 0).function == "x" * 512
    assert len(code_objects._codes) == 1


def test_a_limit_below_one_code_object_keeps_the_newest():
    """There is always something to name a frame with."""
    code_objects = learned(code_record(code=1), code_record(code=2, first_line=3), limit_bytes=1)

    assert code_objects.frame(IMAGE, 1, 0) == UNKNOWN
    assert code_objects.frame(IMAGE, 2, 0).line == 4


@pytest.mark.parametrize(
    "record",
    [
        b"",
        code_record()[: HEAD_BYTES - 1],
        code_record(line_table_bytes=513),
        code_record(line_table_bytes=0xFFFFFFFF, room=wire.LINE_TABLE_BYTES),
        code_record(kind=wire.RECORD_SAMPLE),
    ],
    ids=["empty", "short", "table", "table beyond", "kind"],
)
def test_a_record_that_is_not_understood_is_counted(record):
    """And nothing is learned from it."""
    code_objects = learned(record)

    assert code_objects.rejected == 1
    assert len(code_objects._codes) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_whatever_comes_and_goes_nothing_is_left_over(steps):
    """After all images are gone, as many bytes are in use as in the beginning."""
    code_objects = CodeObjects(limit=5, limit_bytes=20_000)
    for learns, image, code in steps:
        if learns:
            code_objects.learn(code_record(image=(image, 7), code=code, first_line=code // 2))
            code_objects.frame((image, 7), code, 2 * image)
        else:
            code_objects.forget((image, 7))
    for image in range(4):
        code_objects.forget((image, 7))

    assert len(code_objects._codes) == 0
    assert code_objects._used_bytes == 0
    assert not code_objects._by_content
    assert not code_objects._by_program


@given(st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES + 700), st.integers(0, 0xFFFFFFFF))
def test_no_record_does_harm(body, offset):
    """Any bytes are learned or counted, and have frames or none."""
    record = code_record()[:2] + body[2:]
    code_objects = learned(record)
    fields = wire.CODE_RECORD.unpack(
        record.ljust(wire.CODE_RECORD.size, b"\0")[: wire.CODE_RECORD.size]
    )
    frame = code_objects.frame((fields[5], fields[4]), fields[7], offset)

    assert code_objects.rejected + len(code_objects._codes) == 1
    assert len(frame.function) <= 513
    assert len(frame.file) <= 513
    assert frame.line >= 0
