"""``otel-gpu export`` of recordings, stores and captures of other tools."""

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from otel_gpu import cli
from tests.replay.make_recordings import recording_path
from tests.unit.importers.exports import Export
from tests.unit.importers.traces import call, host, kernel, step, trace, write
from tests.unit.report.render.chrome_trace import check

REAL = os.environ.get("OTEL_GPU_TEST_TORCH_DATA", "")
EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "demo.otelgpu"


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))


@pytest.fixture
def exported(tmp_path):
    """The events of a timeline, which are checked, and what is said of them."""

    def of(*arguments, name="trace.json"):
        path = tmp_path / name
        assert cli.main(["export", *map(str, arguments), "--perfetto", str(path)]) == 0
        content = path.read_bytes()
        document = json.loads(gzip.decompress(content) if name.endswith(".gz") else content)
        return check(document), document["otherData"]

    return of


def phases(events):
    return Counter(event["ph"] for event in events)


def names(events, phase="X"):
    return Counter(event["name"] for event in events if event["ph"] == phase)


def test_a_recording_becomes_a_timeline(exported, capsys):
    """Calls and waits on their threads, who kept them waiting, and what was wrong."""
    events, about = exported(recording_path("training"))

    drawn = names(events)
    assert drawn["cudaLaunchKernel"] == 2
    assert drawn["run queue"]
    assert any(name.startswith("blocked: ") for name in drawn)
    assert any(name.startswith("kept ") for name in drawn)
    arrows = phases(events)
    assert arrows["s"] == arrows["f"] > 0
    assert any(event["cat"] == "incident" for event in events if event["ph"] == "i")
    assert about["losses"]["ring_full"] == 3
    said = capsys.readouterr().err
    assert "ui.perfetto.dev" in said


def test_the_stack_of_a_call_is_shown(exported):
    """The line of Python is what one looks for."""
    events, _ = exported(recording_path("training"))

    (found,) = (
        event for event in events if event["name"] == "cudaMalloc" and event["cat"] == "cuda"
    )
    assert "fragmentation_pattern (/app/train.py:74)" in found["args"]["stack"]


def test_a_store_gives_the_same_calls(exported, tmp_path):
    """What was kept of a capture is drawn as the capture is."""
    store = tmp_path / "store.db"
    recording = recording_path("training")
    assert cli.main(["replay", str(recording), "--store", str(store)]) == 0

    kept, _ = exported("--store", store)
    opened, _ = exported(store)
    replayed, _ = exported(recording)

    def calls(events):
        return Counter(event["name"] for event in events if event.get("cat") == "cuda")

    assert calls(kept) == calls(replayed) == calls(opened)


def test_a_capture_of_minutes_has_counters(exported):
    """What was counted between two readings, per second."""
    events, _ = exported(EXAMPLE, name="trace.json.gz")

    counted = [event for event in events if event["name"] == "CUDA calls/s"]
    assert counted
    assert all(event["args"]["calls/s"] >= 0 for event in counted)
    assert max(event["args"]["calls/s"] for event in counted) > 0


def test_a_window_and_a_process_can_be_chosen(exported):
    """What is not asked for is not drawn."""
    all_of_it, _ = exported(recording_path("training"))
    none, _ = exported(recording_path("training"), "--pid", 1)

    assert phases(all_of_it)["X"] > 0
    assert phases(none)["X"] == 0
    late, _ = exported(recording_path("training"), "--from", "-1ms")
    assert phases(late)["X"] < phases(all_of_it)["X"]


def test_a_trace_of_torch_becomes_a_timeline(exported, tmp_path):
    """Threads and streams, with an arrow from the call to the work that it enqueued."""
    made = trace(
        [
            step(1, 0, 100),
            host("aten::mm", 5, 20),
            call("cudaLaunchKernel", 10, 5, 77),
            kernel(30, 40, 77, "sgemm"),
            kernel(60, 40, 78, "other", stream=9),
        ]
    )
    events, _ = exported(write(tmp_path / "trace_of_torch.json", made))

    assert names(events) == {
        "ProfilerStep#1": 1, "aten::mm": 1, "cudaLaunchKernel": 1, "sgemm": 1, "other": 1,
    }  # fmt: skip
    (source,) = (event for event in events if event["ph"] == "s")
    (target,) = (event for event in events if event["ph"] == "f")
    by_name = {event["name"]: event for event in events if event["ph"] == "X"}
    assert (source["pid"], source["tid"]) == (100, 100)
    assert source["ts"] == by_name["cudaLaunchKernel"]["ts"]
    assert target["ts"] == by_name["sgemm"]["ts"]
    assert by_name["sgemm"]["pid"] == by_name["other"]["pid"] != 100
    assert (by_name["sgemm"]["tid"], by_name["other"]["tid"]) == (7, 9)


def test_what_devices_do_together_is_told_apart(exported, tmp_path):
    """A kernel of NCCL waits for others, and computes nothing."""
    made = trace([kernel(30, 40, 77, "ncclDevKernel_AllReduce"), kernel(80, 5, 78, "gemm")])
    events, _ = exported(write(tmp_path / "together.json", made))

    found = {event["name"]: event["cat"] for event in events if event["ph"] == "X"}
    assert found == {"ncclDevKernel_AllReduce": "communication", "gemm": "kernel"}


def test_a_folder_of_ranks_keeps_them_apart(exported, tmp_path):
    """Pids of two hosts may be the same, and their devices are others."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(2):
        made = trace([call("cudaLaunchKernel", 10, 5, 77), kernel(30, 40, 77)])
        write(folder / f"rank{rank}.json", made)

    events, _ = exported(folder)

    assert len({event["pid"] for event in events if event["name"] == "gemm"}) == 2
    assert len({event["pid"] for event in events if event["name"] == "cudaLaunchKernel"}) == 2


def test_an_export_of_nsight_is_recognized(exported, tmp_path):
    """By its tables: nobody has to say what it is."""
    export = Export()
    export.call(10, 5, 1)
    export.kernel(30, 100, 1)

    events, _ = exported(export.write(tmp_path / "report.sqlite"))

    assert names(events) == {"cudaLaunchKernel": 1, "void gemm<float>(int)": 1}
    assert phases(events)["s"] == 1


def test_what_a_damaged_recording_still_holds_is_drawn(tmp_path, capsys):
    """It is whole JSON, and the error is said."""
    damaged, path = tmp_path / "damaged.otelgpu", tmp_path / "trace.json"
    damaged.write_bytes(EXAMPLE.read_bytes()[:-2_000])

    assert cli.main(["export", str(damaged), "--perfetto", str(path)]) == 1

    document = json.loads(path.read_text())
    assert phases(check(document))["X"] > 0
    assert any("damaged" in note for note in document["otherData"]["notes"])
    assert "error" in capsys.readouterr().err


def test_something_has_to_be_named(capsys):
    """A timeline is a file."""
    assert cli.main(["export", str(EXAMPLE)]) == 2
    assert "--perfetto" in capsys.readouterr().err
    assert cli.main(["export", "--perfetto", "x.json"]) == 2
    assert "name what to export" in capsys.readouterr().err


def test_the_same_recording_gives_the_same_bytes(tmp_path):
    """Also packed."""
    written = []
    for number in range(2):
        path = tmp_path / f"{number}.json.gz"
        assert cli.main(["export", str(EXAMPLE), "--perfetto", str(path)]) == 0
        written.append(path.read_bytes())
    assert written[0] == written[1]


@pytest.mark.skipif(not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real traces")
@pytest.mark.parametrize(
    "name",
    [
        "hta/nccl_data.json.gz",
        "nsys/mfu_2gpu_before.sqlite",
        "kineto/workers_0.1623143089861.pt.trace.json.gz",
    ],
)
def test_real_traces_are_drawn_whole(exported, name):
    """Every activity is there, and linked to its call."""
    events, about = exported(Path(REAL, name))

    assert not [note for note in about["notes"] if "left out" in note]
    assert phases(events)["s"] > 3_000


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "{0}", "--perfetto", "{0}"],
        ["report", "{0}", "--html", "{1}"],
        ["stacks", "{0}", "--flamegraph", "{0}"],
        ["compare", "{0}", "{0}", "--output", "{0}"],
    ],
)
def test_what_is_read_is_not_written_over(tmp_path, capsys, arguments):
    """Under another name neither; the file is as it was."""
    path, other = tmp_path / "demo.otelgpu", tmp_path / "link"
    path.write_bytes(EXAMPLE.read_bytes())
    other.symlink_to(path)

    assert cli.main([argument.format(path, other) for argument in arguments]) == 2
    assert "is both input and output" in capsys.readouterr().err
    assert path.read_bytes() == EXAMPLE.read_bytes()
