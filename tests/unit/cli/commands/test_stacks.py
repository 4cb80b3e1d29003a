"""``otel-gpu stacks`` of recordings and stores; tests/kernel has it live."""

import json
import os

import pytest

from otel_gpu import cli
from otel_gpu.demo.scenarios import SCENARIOS
from tests.replay.make_recordings import recording_path
from tests.schemas import STACKS

MS = 1_000_000


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))


@pytest.fixture
def recording():
    return recording_path("training")


@pytest.fixture
def store(recording, tmp_path):
    path = tmp_path / "store.db"
    assert cli.main(["replay", str(recording), "--store", str(path)]) == 0
    return path


def output_of(capsys, *arguments):
    assert cli.main(["stacks", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def document_of(capsys, *arguments):
    document = json.loads(output_of(capsys, *arguments, "--json"))
    STACKS.validate(document)
    return document


def test_the_line_of_python_is_found(recording, capsys):
    """From the CUDA call through C++ to the line, and what was allocated there."""
    text = output_of(capsys, recording, "--by", "bytes")

    assert text.splitlines()[3:9] == [
        "1. cudaMalloc of train.py (4242): 1 call, 2 ms, 1.07 GB (100 %)",
        "     cudaMalloc (libcudart.so.12)",
        "     at::native::empty_cuda(c10::ArrayRef<long>) (libtorch_cuda.so)",
        "     fragmentation_pattern (/app/train.py:74)",
        "     Trainer.step (/app/train.py:40)",
        "     <module> (/app/train.py:102)",
    ]


def test_the_document_holds_the_same(recording, capsys):
    """With the counts that the text has, and ids that lead to spans."""
    document = document_of(capsys, recording, "--by", "calls")

    assert document["coverage"] == {
        "with_stack": 4,
        "without_stack": 0,
        "stand_for": 1003,
        "counted": 1004,
    }
    assert [(s["name"], s["seen"], s["stand_for"]) for s in document["stacks"]] == [
        ("cudaLaunchKernel", 2, 1001),
        ("cudaMalloc", 1, 1),
        ("cudaMemcpy", 1, 1),
    ]
    assert document["stacks"][1]["id"] == "0000000000000051"
    assert document["losses"] == {"no_entry": 1, "python": 1, "ring_full": 3, "sample": 1}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--api", "cudaMalloc"], ["cudaMalloc"]),
        (["--api", "cudaMalloc", "--api", "cuMemAlloc"], ["cudaMalloc", "cuMemAlloc"]),
        (["--pid", "4242", "--limit", "1"], ["cudaLaunchKernel"]),
        (["--pid", "1"], []),
        (["--waits"], ["queue"]),
    ],
)
def test_what_is_listed_can_be_chosen(recording, capsys, arguments, names):
    """By API, also one inside another, by process, by number; and waits in the place of calls."""
    document = document_of(capsys, recording, *arguments)

    assert [stack["name"] for stack in document["stacks"]] == names


def test_folded_stacks_are_all_that_is_printed(recording, capsys):
    """Standard output is for a pipe."""
    lines = output_of(capsys, recording, "--folded", "--by", "calls").splitlines()

    assert lines[0] == (
        "train.py (4242);<module> (/app/train.py:102);Trainer.step (/app/train.py:40);"
        "cudaLaunchKernel (libcudart.so.12) 1001"
    )
    assert len(lines) == 3


def test_pictures_are_written_beside_the_list(recording, capsys, tmp_path):
    """A profile for speedscope and a page with a flame graph, of the same stacks."""
    scope, page = tmp_path / "scope.json", tmp_path / "flames.html"

    text = output_of(capsys, recording, "--speedscope", scope, "--flamegraph", page)

    assert "cudaMalloc of train.py" in text
    first, *_ = json.loads(scope.read_text())["profiles"]
    assert (first["name"], first["endValue"]) == ("train.py (4242), by time", 16_750_000)
    assert "fragmentation_pattern (/app/train.py:74)" in page.read_text()
    assert f"<h1>{recording}: calls by time</h1>" in page.read_text()


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--folded"]])
def test_the_list_can_go_to_a_file(recording, capsys, tmp_path, arguments):
    """What would have been printed is in the file, and nothing is printed."""
    printed = output_of(capsys, recording, *arguments)
    path = tmp_path / "stacks"

    assert output_of(capsys, recording, *arguments, "--output", path) == ""
    assert path.read_text(encoding="utf-8") == printed


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--by", "bytes"],
        ["--by", "calls", "--api", "cuMemAlloc"],
        ["--waits"],
        ["--pid", "4242"],
        ["--from", "+0.1s"],
        ["--since", "1s", "--waits"],
    ],
)
def test_a_store_has_the_stacks_of_its_recording(recording, store, capsys, arguments):
    """Whatever is asked for, and whatever part of it."""
    capsys.readouterr()
    from_recording = document_of(capsys, recording, *arguments)

    from_store = document_of(capsys, "--store", store, *arguments)

    assert from_store.pop("source") == str(store)
    assert from_recording.pop("source") == str(recording)
    assert from_store == from_recording


def test_without_anything_named_the_flight_recorder_is_looked_at(store, capsys, tmp_path):
    """As for explain."""
    default = tmp_path / "state" / "store.db"
    default.parent.mkdir()
    store.rename(default)

    assert document_of(capsys)["source"] == str(default)


def test_a_window_holds_what_touches_it(capsys):
    """
    What was before is read too, since names come from there, and is not added up. Counters are
    read now and then: those of a window reach a little beyond it.
    """
    path = SCENARIOS["preemption"].recording
    whole = document_of(capsys, path)
    begin, end = whole["window"]["start_unix_ns"], whole["window"]["end_unix_ns"]
    middle = (begin + end) // 2
    moment = f"{middle // 10**9}.{middle % 10**9:09}"

    early = document_of(capsys, path, "--to", moment)
    late = document_of(capsys, path, "--from", moment)

    counts = [part["coverage"]["with_stack"] for part in (early, late)]
    # The call that was being made then touches both.
    assert sum(counts) in (120, 121)
    assert min(counts) > 10
    counted = [part["coverage"]["counted"] for part in (whole, early, late)]
    assert counted[0] == 120
    assert counts[0] <= counted[1] < 120
    assert counts[1] <= counted[2] <= 120
    assert early["window"] == {"start_unix_ns": begin, "end_unix_ns": middle}
    assert late["window"] == {"start_unix_ns": middle, "end_unix_ns": end}


def test_a_window_without_calls_is_empty(recording, capsys):
    """And no error: it is an answer."""
    document = document_of(capsys, recording, "--to", "2020-01-01")

    assert (document["stacks"], document["coverage"]["with_stack"]) == ([], 0)


def test_without_a_stack_there_is_no_picture(capsys, tmp_path):
    """The list is still printed, and says why; an empty picture is an error."""
    path = tmp_path / "flames.html"

    code = cli.main(["stacks", str(recording_path("neighbours")), "--flamegraph", str(path)])

    captured = capsys.readouterr()
    assert code == 1
    assert "0 with a stack, 3 without." in captured.out
    assert "error: all stacks have 0 time" in captured.err
    assert not path.exists()


def test_a_damaged_recording_is_read_as_far_as_it_goes(recording, capsys, tmp_path):
    """What is whole is listed, and the exit code is 1."""
    path = tmp_path / "cut.otelgpu"
    path.write_bytes(recording.read_bytes()[:-1])

    assert cli.main(["stacks", str(path), "--json"]) == 1

    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert len(document["stacks"]) == 3
    assert document["notes"][-1].startswith("The recording is damaged")
    assert "ends early" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name what to watch"),
        (["REC", "--all"], "a recording is looked at as it is"),
        (["REC", "--", "true"], "a recording is looked at as it is"),
        (["--store", "STORE", "--all"], "a store is looked at as it is"),
        (["REC", "--store", "STORE"], "name a recording or a store, not both"),
        (["--all", "--since", "5m"], "--from and --to are for recordings and stores"),
        (["REC", "--from", "+2s", "--to", "+1s"], "the window ends before it begins"),
        (["REC", "--limit", "0"], "--limit must be at least 1"),
        (["REC", "--waits", "--by", "bytes"], "waits have no API"),
        (["REC", "--waits", "--api", "cudaMalloc"], "waits have no API"),
        (["REC", "--json", "--folded"], "not allowed with argument"),
        (["REC", "--by", "weight"], "invalid choice"),
    ],
)
def test_what_makes_no_sense_is_refused(recording, store, capsys, arguments, message):
    """With exit code 2, and a line that says what is wrong."""
    places = {"REC": str(recording), "STORE": str(store)}
    given = [places.get(argument, argument) for argument in arguments]

    assert cli.main(["stacks", *given]) == 2
    assert message in capsys.readouterr().err


def test_stacks_that_are_off_are_not_waited_for(monkeypatch, capsys):
    """A live capture without stacks would list nothing in the end."""
    monkeypatch.setenv("OTEL_GPU_STACKS_ENABLED", "false")

    assert cli.main(["stacks", "--pid", str(os.getpid())]) == 2
    assert "stacks.enabled is false" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(recording, capsys, tmp_path):
    """A mistyped folder gives a line, not a traceback."""
    path = tmp_path / "no" / "flames.html"

    assert cli.main(["stacks", str(recording), "--flamegraph", str(path)]) == 1
    assert f"error: {path}: cannot be written" in capsys.readouterr().err
