"""``otel-gpu stacks`` of device memory, from memory snapshots."""

import gzip
import json

import pytest

from otel_gpu import cli
from otel_gpu.report.render.pprof import _message
from otel_gpu.report.stacks.top_stacks import MEMORY
from tests.schemas import STACKS
from tests.torch_allocator import ACTIVATIONS, CACHE, EXAMPLES, GRADIENTS, LOSSES, WEIGHTS, leak
from tests.unit.importers.snapshots import MIB, write

SNAPSHOT = EXAMPLES / "leak.pickle"


def output_of(capsys, *arguments):
    assert cli.main(["stacks", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def by_line(lines):
    """What folded stacks weigh, by the line of the program."""
    found = {}
    for line in lines:
        path, _, weight = line.rpartition(" ")
        number = path.partition("step (/app/train.py:")[2].partition(")")[0] or path.split(";")[-1]
        found[number] = found.get(number, 0) + int(weight)
    return found


@pytest.fixture(scope="module")
def made():
    return leak()


def test_a_snapshot_is_a_graph_of_what_the_model_holds(made, capsys):
    """To the byte, by line: at the peak, and of all that was allocated."""
    peak = by_line(output_of(capsys, SNAPSHOT, "--by", "peak", "--folded").splitlines())
    in_use = by_line(output_of(capsys, SNAPSHOT, "--by", "in-use", "--folded").splitlines())

    assert peak == {str(line): size for line, size in made.at_peak.items() if size}
    assert in_use == {str(line): -(-size // 512) * 512 for line, size in made.live.items() if size}


def test_what_is_free_again_was_allocated_too(capsys):
    """Each step allocates 700 MiB, and 48 that stay."""
    allocated = by_line(output_of(capsys, SNAPSHOT, "--by", "allocated", "--folded").splitlines())

    steps = allocated[str(LOSSES)] // 4_000
    assert steps > 10
    assert allocated[str(WEIGHTS)] == 512 * MIB
    assert steps * 700 * MIB <= allocated[str(ACTIVATIONS)] <= (steps + 1) * 700 * MIB
    assert steps * 48 * MIB <= allocated[str(CACHE)] <= (steps + 1) * 48 * MIB
    assert str(GRADIENTS) not in allocated


@pytest.mark.parametrize("by", MEMORY)
def test_every_form_weighs_the_same(capsys, tmp_path, by):
    """Folded, JSON, speedscope, pprof and a page."""
    scope, profile, page = tmp_path / "scope.json", tmp_path / "p.pb.gz", tmp_path / "f.html"
    written = ("--speedscope", scope, "--pprof", profile, "--flamegraph", page)

    lines = output_of(capsys, SNAPSHOT, "--by", by, "--folded", *written).splitlines()
    document = json.loads(output_of(capsys, SNAPSHOT, "--by", by, "--json", "--limit", 100))

    weight = sum(int(line.rpartition(" ")[2]) for line in lines)
    STACKS.validate(document)
    assert sum(one["bytes"] for one in document["stacks"]) == weight > 0
    assert {one["device"] for one in document["stacks"]} == {0}
    (shown,) = json.loads(scope.read_text())["profiles"]
    assert (shown["unit"], shown["endValue"]) == ("bytes", weight)
    read = _message("Profile").FromString(gzip.decompress(profile.read_bytes()))
    names = [read.string_table[one.type] for one in read.sample_type]
    assert names[1].endswith("_space")
    assert sum(sample.value[1] for sample in read.sample) == weight
    assert 'aria-label="Flame graph by bytes"' in page.read_text()


def test_two_snapshots_are_compared(capsys, tmp_path):
    """Which line holds more of the whole than before."""
    after = write(tmp_path / "after.pickle", leak().snapshot())
    before = EXAMPLES / "fragmentation.pickle"
    text = output_of(capsys, "--diff", before, after, "--by", "in-use")

    assert "Share of device memory in use in the end through each frame, in A and B:" in text
    assert "step (/app/train.py:61)" in text


@pytest.mark.parametrize("more", [["--api", "cudaMalloc"], ["--thread", "7"], ["--waits"]])
def test_what_memory_has_not_is_no_choice(capsys, more):
    """It says what to leave out."""
    assert cli.main(["stacks", str(SNAPSHOT), "--by", "peak", *more]) == 2
    assert "leave out" in capsys.readouterr().err


def test_a_snapshot_is_explained_as_a_recording_is(capsys):
    """The verbs that read a recording read it too."""
    assert cli.main(["explain", str(SNAPSHOT)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "A request for 41.9 MB failed in train.py:80 backward: leak." in said
    assert "1.81 GB in 36 blocks, some from every phase, was never freed." in said


def test_a_pickle_that_is_no_snapshot_is_an_error(capsys, tmp_path):
    """It says how to make one."""
    path = tmp_path / "other.pickle"
    path.write_bytes(b"\x80\x04N.")

    assert cli.main(["stacks", str(path), "--by", "peak"]) == 1
    assert "_dump_snapshot" in capsys.readouterr().err
