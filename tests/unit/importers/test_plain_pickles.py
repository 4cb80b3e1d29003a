"""The reader of pickles: plain containers as they were, all else refused, nothing executed."""

import ast
import io
import os
import pickle
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu import importers
from otel_gpu.importers import plain_pickle
from otel_gpu.importers.plain_pickle import UnreadableError, read_plain

FOLDER = Path(importers.__file__).parent
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
)
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=8), inner, max_size=5)
        | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=30,
)
BIG = b"\x80\x04"


class Nothing:
    """Takes no dictionary."""

    def maker(self, keys):
        return None

    def bind(self, replace):
        pass


def read(data):
    return read_plain(io.BytesIO(data), Nothing())


def refused(data):
    with pytest.raises(UnreadableError) as caught:
        read(data)
    return str(caught.value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@given(value=PLAIN)
@settings(max_examples=60, deadline=None)
def test_plain_containers_are_read_as_they_were_written(protocol, value):
    """The same as Python's own reader says, of every protocol that PyTorch writes."""
    # Protocol 2 has no bytes: it makes them by a call.
    value = [value] if protocol == 2 else [value, b"bytes", b"more bytes" * 30]

    assert read(pickle.dumps(value, protocol=protocol)) == value


def test_a_file_larger_than_what_is_read_at_once_is_read_across_the_edges():
    """Opcodes and texts that lie on the edge of two reads are whole."""
    value = [
        {"key": f"text {number}" * (number % 7), "n": number << 20} for number in range(30_000)
    ]
    data = pickle.dumps(value, protocol=4)

    assert len(data) > 3 * plain_pickle._READ_BYTES
    assert read(data) == value


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("GLOBAL", BIG + b"cos\nsystem\nq\0."),
        ("STACK_GLOBAL", BIG + b"\x8c\x02os\x8c\x06system\x93."),
        ("INST", BIG + b"(ios\nsystem\n."),
        ("REDUCE", BIG + b"))R."),
        ("OBJ", BIG + b"(o."),
        ("NEWOBJ", BIG + b"))\x81."),
        ("NEWOBJ_EX", BIG + b")))\x92."),
        ("BUILD", BIG + b"}}b."),
        ("EXT1", BIG + b"\x82\x01."),
        ("BINPERSID", BIG + b"NQ."),
        ("PERSID", BIG + b"Pabc\n."),
        ("NEXT_BUFFER", b"\x80\x05\x97."),
        ("BYTEARRAY8", b"\x80\x05\x96\0\0\0\0\0\0\0\0."),
        ("DUP", BIG + b"N2."),
        ("INT", BIG + b"I5\n."),
    ],
)
def test_everything_that_names_or_calls_is_refused(what, data):
    """By its name, so that who wrote the file knows what is in it."""
    assert f"opcode {what}:" in refused(data)


def test_nothing_is_executed(tmp_path):
    """A pickle that would write a file does not."""
    path = tmp_path / "was here"

    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch '{path}'",)

    for protocol in (2, 3, 4, 5):
        assert "only plain containers" in refused(pickle.dumps([Hostile()], protocol=protocol))
    assert not path.exists()


def test_the_room_never_imports_pickle():
    """Not even its tools: there is nothing to be called by mistake."""
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_import = isinstance(node, ast.Import | ast.ImportFrom)
            names = [alias.name for alias in node.names] if is_import else []
            names.append(getattr(node, "module", None) or "")
            assert not {"pickle", "_pickle", "pickletools", "cPickle"} & set(names)


@pytest.mark.parametrize(
    ("message", "data"),
    [
        ("is not a pickle", b""),
        ("is not a pickle", b"PK\x03\x04"),
        ("protocol 9", b"\x80\x09N."),
        ("protocol 0", b"\x80\x00N."),
        ("cut", BIG),
        ("cut", BIG + b"]"),
        ("cut", BIG + b"\x8a"),
        ("cut", BIG + b"X\x05\0\0\0abc"),
        ("refers to a missing object", BIG + b"h\x05."),
        ("refers to a missing object", BIG + b"e."),
        ("out of order", BIG + b"]r\xff\xff\xff\x05."),
        ("out of order", b"\x80\x02Nq\0q\0."),
        ("number of 9 bytes", BIG + b"\x8a\x09" + bytes(9) + b"."),
        ("number of 2,000,000,000 bytes", BIG + b"\x8b\x00\x94\x35\x77."),
        ("text of 4,294,967,295 bytes", BIG + b"X\xff\xff\xff\xff."),
        ("text of 18,446,744,073,709,551,615", BIG + b"\x8d" + b"\xff" * 8 + b"."),
        ("not UTF-8", BIG + b"\x8c\x01\xff."),
        ("key that is not text", BIG + b"}]Ns."),
        ("key without a value", BIG + b"}(\x8c\x01au."),
        ("incomplete dictionary", BIG + b"]\x8c\x01aNs."),
        ("incomplete list", BIG + b"}Na."),
        ("more than one object", BIG + b"NN."),
        ("more than one object", BIG + b"N(."),
    ],
)
def test_what_is_broken_is_one_clear_error(message, data):
    """Truncation, wild references, huge numbers and wrong types."""
    assert message in refused(data)


def _bomb_of_references():
    data = BIG + b"(]\x94"
    for number in range(200):
        data += b"](" + (b"h" + bytes([number])) * 2 + b"e\x94"
    return data + b"l."


def _bomb_of_tuples():
    """A key whose hash would visit 2^200 leaves."""
    data = BIG + b"(N\x94"
    for number in range(200):
        data += (b"h" + bytes([number])) * 2 + b"\x86\x94"
    return data + b"l}h\xc8Ns\x86."


def _bomb_of_keys():
    long = b"X" + (60_000).to_bytes(4, "little") + b"k" * 60_000 + b"\x94"
    return (
        BIG
        + b"](}("
        + long
        + b"N"
        + b"h\0N" * 30
        + b"u"
        + (b"}(" + b"h\0N" * 31 + b"u") * 20_000
        + b"e."
    )


def _bomb_of_blocks():
    block = b"}(h\0K\x01h\1h\2u"
    keys = b"\x8c\4size\x94\x8c\5state\x94\x8c\x08inactive\x94"
    return BIG + b"(" + keys + block * 540_000 + b"l."


# Made when they are thrown: some hundred megabytes.
BOMBS = {
    "a memo entry of its own choosing": lambda: b"\x80\x02]r\xff\xff\xff\x05.",
    "references to references": _bomb_of_references,
    "a hash of tuples of tuples": _bomb_of_tuples,
    "long keys again and again": _bomb_of_keys,
    "a list in itself": lambda: BIG + b"]\x94(h\0e.",
    "depth": lambda: BIG + b"](" * 500_000,
    "many empty lists": lambda: BIG + b"(" + b"]" * 9_000_000 + b"l.",
    "many empty dictionaries": lambda: BIG + b"(" + b"}" * 9_000_000 + b"l.",
    "many short texts": lambda: BIG + b"]" + (b"(" + b"\x8c\x02ab" * 1_000 + b"e") * 9_000 + b".",
    "blocks": _bomb_of_blocks,
    "long texts": lambda: BIG + b"(" + (b"X\0\xff\0\0" + b"x" * 0xFF00) * 4_200 + b"l.",
}


REFUSED = {
    "a memo entry of its own choosing": "out of order",
    "a hash of tuples of tuples": "a key that is not text",
    "depth": "cut",
    "blocks": "more than 524,288 segments, blocks",
    "long texts": "what it holds is too large",
    "many empty lists": "too large",
    "many empty dictionaries": "too large",
    "many short texts": "what it holds is too large",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_little_memory_and_time(name, tmp_path):
    """In a process of its own, which may have 600 MiB of address space and 60 s of CPU."""
    path = tmp_path / "bomb.pickle"
    path.write_bytes(BOMBS[name]())
    script = (
        "import sys\n"
        "from otel_gpu.importers.plain_pickle import UnreadableError, read_plain\n"
        "from otel_gpu.importers.torch_memory.dictionaries import Shapes\n"
        "try:\n"
        "    with open(sys.argv[1], 'rb') as stream: read_plain(stream, Shapes())\n"
        "except UnreadableError as error: sys.stdout.write(str(error))\n"
    )

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert REFUSED.get(name, "") in done.stdout


@given(data=st.binary(max_size=200), at=st.integers(0, 300), seed=PLAIN)
@settings(max_examples=300, deadline=None)
def test_whatever_the_bytes_are_they_are_read_or_refused(data, at, seed):
    """Random bytes, alone and in the middle of a pickle; nothing else is raised."""
    whole = pickle.dumps(seed, protocol=4)
    for tried in (BIG + data, whole[:at] + data + whole[at:], whole[:at]):
        with suppress(UnreadableError):
            read(tried)


@given(ops=st.lists(st.sampled_from([bytes([code]) for code in range(256)]), max_size=80))
@settings(max_examples=300, deadline=None)
def test_whatever_the_opcodes_are_they_are_read_or_refused(ops):
    """Programs of opcodes in any order."""
    with suppress(UnreadableError):
        read(BIG + b"".join(ops))
