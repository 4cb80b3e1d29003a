"""Dumps that somebody damaged or made up: one clear error, or what is left; bounded, nothing executed."""

import json
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu.config import Config
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.errors import RecordingError
from otel_gpu.importers import open_capture
from otel_gpu.importers.flight_recorder import dump as dumps
from tests.unit.importers.flight_dumps import FRAMES, as_json, as_torch, dump, entry, run

SMALL = run(3, done=2)


def take(path):
    """Import a file to the end; what is said of one that cannot be."""
    try:
        with open_capture("nccl-flight-recorder", path, Config()) as capture:
            return list(Enricher().enrich(capture.events()))
    except RecordingError as error:
        return str(error)


def written(folder, data):
    path = folder / "nccl_trace_rank_0"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("form", [as_torch, as_json])
def test_a_dump_that_is_cut_anywhere_is_refused(tmp_path, form):
    """At every byte: a rank whose calls are cut off would look as if it had not made them."""
    whole = form(SMALL)

    for size in range(len(whole)):
        said = take(written(tmp_path, whole[:size]))
        assert isinstance(said, str)
        assert "not a readable dump of a Flight Recorder" in said


@given(at=st.integers(0, 2_000), data=st.binary(max_size=12), is_json=st.booleans())
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_the_bytes_are_they_are_read_or_refused(tmp_path, at, data, is_json):
    """Nothing but a RecordingError leaves."""
    whole = (as_json if is_json else as_torch)(SMALL)
    at %= len(whole)
    for tried in (whole[:at] + data + whole[at:], whole[:at] + data + whole[at + len(data) :]):
        take(written(tmp_path, tried))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats()
    | st.sampled_from(["", "0", "-1", "completed", "nccl:send 1->9", "[0, 1, x]", "9" * 30]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from([*entry(1), "0", "name", "ranks"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    changes=st.dictionaries(st.sampled_from(sorted(entry(1))), VALUES, max_size=4),
    body=st.dictionaries(
        st.sampled_from(["version", "pg_config", "pg_status", "entries", "comm_lib_version"]),
        VALUES,
        max_size=2,
    ),
)
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_the_values_are_they_are_read_or_refused(tmp_path, changes, body):
    """Any value in the place of any other."""
    made = dump([entry(1), entry(2) | changes, entry(3)]) | body
    take(written(tmp_path, pickle.dumps(made, protocol=4)))


def test_nothing_is_executed(tmp_path):
    """A dump that would write a file does not."""
    path = tmp_path / "was here"

    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch '{path}'",)

    for protocol in (2, 3, 4, 5):
        said = take(written(tmp_path, pickle.dumps(dump([Hostile()]), protocol=protocol)))
        assert "only plain containers" in said
    assert not path.exists()


def _cyclic():
    made = dump([entry(1)])
    made["entries"].append(made["entries"])
    made["entries"].append(made)
    made["entries"][0]["frames"] = made["entries"]
    made["pg_config"]["0"]["desc"] = made
    return pickle.dumps(made, protocol=4)


def test_what_contains_itself_is_rejected(tmp_path):
    """No walk goes round."""
    activities = take(written(tmp_path, _cyclic()))

    kinds = ["CaptureActivity", "CommunicatorActivity", "AggregatesActivity"]
    assert [type(one).__name__ for one in activities] == kinds
    assert activities[1].communicator.called == 0


@pytest.mark.parametrize(
    ("message", "data"),
    [
        ("neither a pickle nor JSON", b""),
        ("neither a pickle nor JSON", b"[]"),
        ("neither a pickle nor JSON", b"PK\x03\x04"),
        ("no entries and no groups", b"{}"),
        ("no entries and no groups", pickle.dumps([1, 2])),
        ("cut, or not JSON", b'{"entries": [' + b"9" * 5_000 + b"]}"),
        ("entries: expected a list", b'{"entries": {}}'),
        ("groups: expected a dictionary", b'{"entries": [], "pg_config": []}'),
        (
            "more than 4,096 groups",
            json.dumps(
                {"entries": [entry(1, process_group=[str(n), ""]) for n in range(4_097)]}
            ).encode(),
        ),
    ],
)
def test_what_is_no_dump_is_one_clear_error(tmp_path, message, data):
    """It says what is wrong and what to do."""
    assert message in take(written(tmp_path, data))


def test_a_device_is_not_opened():
    """It would never end."""
    assert "it is not a regular file" in take(Path("/dev/zero"))


def _shared_stacks():
    """Few bytes that refer to one long stack from many entries."""
    made = entry(1) | {"frames": FRAMES * 20_000}
    return pickle.dumps(dump([made] * 200_000), protocol=4)


def _long_ranks():
    made = dump([])
    made["pg_config"] = {
        str(number): {"name": "", "desc": "", "ranks": "[" + "0, " * 20_000 + "]"}
        for number in range(1_000)
    }
    return pickle.dumps(made, protocol=4)


# Made when they are thrown.
BOMBS = {
    "one stack of many entries": _shared_stacks,
    "ranks": _long_ranks,
    "many entries": lambda: pickle.dumps(dump([entry(1)] * (dumps.MAX_ENTRIES + 1))),
    "a list in itself": lambda: b"\x80\x02}(X\x07\0\0\0entries]q\0(h\0h\0eu.",
    "depth": lambda: b'{"entries": ' + b"[" * 900_000,
    "many lists": lambda: b'{"entries": [' + b"[]," * 9_000_000 + b"[]]}",
    "many numbers": lambda: b'{"entries": [' + b"1," * 9_000_000 + b"1]}",
    "a long number": lambda: b'{"entries": [' + b"9" * 30_000_000 + b"]}",
    "a large file": lambda: b"{" + b" " * dumps.MAX_FILE_BYTES,
    "many empty lists": lambda: b"\x80\x02(" + b"]" * 9_000_000 + b"l.",
}
REFUSED = {
    "one stack of many entries": "stacks have more than 2,097,152 frames",
    "many entries": "entries: expected a list of at most 262,144",
    "depth": "cut, or not JSON",
    "many lists": "too many values",
    "many numbers": "too many values",
    "a long number": "cut, or not JSON",
    "a large file": "more than 67,108,864 bytes",
    "many empty lists": "too large",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_little_memory_and_time(name, tmp_path):
    """In a process of its own, which may have 600 MiB of address space and 60 s of CPU."""
    path = written(tmp_path, BOMBS[name]())
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from otel_gpu.importers.flight_recorder.dump import read_dump\n"
        "from otel_gpu.importers.plain_pickle import UnreadableError\n"
        "try: read_dump(Path(sys.argv[1]))\n"
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
