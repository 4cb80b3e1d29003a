"""``otel-gpu stacks`` of the time of threads, and what differs between two captures."""

import gzip
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from jsonschema import Draft7Validator

from otel_gpu import cli
from otel_gpu.report.stacks.top_stacks import GRAPHS, StackMeasure
from tests.replay.make_recordings import recording_path
from tests.scenarios.all_scenarios import SCENARIOS
from tests.schemas import STACKS, STACKS_DIFF
from tests.unit.cli.commands import busy

SCHEMA = Path(__file__).parents[2] / "report" / "render" / "speedscope" / "file-format-schema.json"
SPEEDSCOPE = Draft7Validator(json.loads(SCHEMA.read_text("utf-8")))
MS = 1_000_000
TIMES_MS = {
    "cpu": busy.SLOW_MS + busy.FAST_MS + busy.SPIN_MS,
    "off-cpu": busy.WAIT_MS,
    "wall": busy.SLOW_MS + busy.FAST_MS + busy.SPIN_MS + busy.WAIT_MS,
}
TRAIN = "train.py (4242);<module> (/app/train.py:102);Trainer.step (/app/train.py:40)"
FOLDED = {
    f"{TRAIN};slow_augment (/app/pictures.py:88) 910000000",
    f"{TRAIN};crop (/app/pictures.py:20) 90000000",
    f"{TRAIN};cudaStreamSynchronize (libcudart.so.12) 200000000",
    f"{TRAIN};slow_augment (/app/pictures.py:88);vfs_read (kernel);anon_pipe_read (kernel);[ipc] 700000000",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))


@pytest.fixture
def recording(tmp_path):
    return busy.write(tmp_path / "busy.otelgpu")


@pytest.fixture
def store(recording, tmp_path, capsys):
    path = tmp_path / "store.db"
    assert cli.main(["replay", str(recording), "--store", str(path)]) == 0
    capsys.readouterr()
    return path


def output_of(capsys, *arguments):
    assert cli.main(["stacks", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def document_of(capsys, *arguments):
    schema = STACKS_DIFF if "--diff" in arguments else STACKS
    document = json.loads(output_of(capsys, *arguments, "--json"))
    schema.validate(document)
    return document


def test_one_graph_has_code_calls_and_waits(recording, capsys):
    """From the process to the CUDA call, the kernel, and what was waited for."""
    lines = output_of(capsys, recording, "--by", "wall", "--folded").splitlines()

    assert set(lines) == FOLDED


@pytest.mark.parametrize("by", GRAPHS)
def test_every_form_has_all_of_the_time(recording, capsys, tmp_path, by):
    """Folded, speedscope and pprof weigh the same, to the nanosecond."""
    scope, profile, page = tmp_path / "scope.json", tmp_path / "p.pb.gz", tmp_path / "f.html"

    lines = output_of(
        capsys, recording, "--by", by, "--folded", "--speedscope", scope, "--pprof", profile,
        "--flamegraph", page,
    ).splitlines()  # fmt: skip

    weight = TIMES_MS[by] * MS
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == weight
    (shown,) = json.loads(scope.read_text())["profiles"]
    assert (shown["unit"], shown["endValue"]) == ("nanoseconds", weight)
    assert gzip.decompress(profile.read_bytes())
    assert "slow_augment (/app/pictures.py:88)" in page.read_text()
    waits, samples = (
        "Waits that became spans: 1." in page.read_text(),
        "120 samples" in page.read_text(),
    )
    assert (waits, samples) == (by != "cpu", by != "off-cpu")


@pytest.mark.parametrize(
    ("scenario", "mode"),
    [
        *(("allocator-churn", ("--by", measure)) for measure in StackMeasure),
        *(("busy-loader", ("--by", graph)) for graph in GRAPHS),
        *(("busy-loader", ("--by", graph, "--thread", "*")) for graph in GRAPHS),
        ("busy-loader", ("--waits",)),
    ],
)
def test_a_speedscope_file_is_as_its_schema_wants_it(capsys, tmp_path, scenario, mode):
    """Of what was captured, in all modes; and all that is referred to is there."""
    path = tmp_path / "scope.json"
    output_of(capsys, SCENARIOS[scenario].recording, *mode, "--speedscope", path)

    document = json.loads(path.read_text("utf-8"))
    SPEEDSCOPE.validate(document)
    frames = range(len(document["shared"]["frames"]))
    assert document["profiles"]
    for profile in document["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"]) > 0
        assert all(number in frames for sample in profile["samples"] for number in sample)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--by", "cpu"],
        ["--by", "off-cpu"],
        ["--by", "wall"],
        ["--by", "wall", "--from", "+1.2s", "--to", "+1.5s"],
        ["--by", "cpu", "--thread", "4250"],
        ["--by", "wall", "--thread", "*", "--pid", "4242"],
    ],
)
def test_a_store_has_the_graph_of_its_recording(recording, store, capsys, arguments):
    """Whatever is asked for, and whatever part of it."""
    from_recording = document_of(capsys, recording, *arguments)

    from_store = document_of(capsys, "--store", store, *arguments)

    assert from_recording["stacks"]
    assert from_store.pop("source") == str(store)
    assert from_recording.pop("source") == str(recording)
    assert from_store == from_recording


def test_a_thread_has_a_graph_of_its_own(recording, capsys):
    """By its name, which a frame says."""
    document = document_of(capsys, recording, "--by", "cpu", "--thread", "pt_data_*")

    assert [(s["time_ns"] // MS, s["frames"][0]["function"]) for s in document["stacks"]] == [
        (910, "slow_augment"),
        (90, "crop"),
    ]
    assert document["stacks"][0]["thread"] == {"tid": 4250, "name": "pt_data_worker"}


def test_the_kernel_counts_what_samples_estimate(recording, capsys):
    """So that who reads shares knows of how much they are."""
    text = output_of(capsys, recording, "--by", "cpu")

    assert text.splitlines()[1] == (
        "120 samples of threads on CPUs, which stand for 1.2 s; counted: 1.21 s. Shares are estimates."
    )
    assert "1. on_cpu of train.py (4242): 91 samples, 910 ms (76 %)" in text


def test_samples_can_be_asked_for_in_sql(store):
    """With names, and with what each stands for."""
    with closing(sqlite3.connect(store)) as connection:
        rows = connection.execute(
            "SELECT thread, place, in_call, sum(weight_ms) FROM v_samples GROUP BY 1, 2, 3 ORDER BY 4"
        ).fetchall()

    assert rows == [
        ("pt_data_worker", "pictures.py:20 crop", "", 90.0),
        ("python3", "train.py:40 Trainer.step", "cudaStreamSynchronize", 200.0),
        ("pt_data_worker", "pictures.py:88 slow_augment", "", 910.0),
    ]


def test_two_captures_are_compared(recording, store, capsys, tmp_path):
    """A recording and a store alike; the page and the lines have the same."""
    faster, page = busy.write(tmp_path / "faster.otelgpu", slow_ms=500), tmp_path / "diff.html"
    asked = ["--by", "cpu", "--thread", "pt_data_worker"]

    text = output_of(capsys, "--diff", store, faster, *asked, "--flamegraph", page)

    assert "   91.0% →  50.0% (-41.0)  slow_augment (/app/pictures.py:88)" in text
    assert "    9.0% →  50.0% (+41.0)  crop (/app/pictures.py:20)" in text
    drawn = page.read_text()
    assert "91.0% →  50.0% (-41.0)" in drawn
    assert f"A: {store}. 100 samples" in drawn
    lines = output_of(capsys, "--diff", recording, faster, *asked, "--folded").splitlines()
    assert {tuple(line.rsplit(" ", 2)[1:]) for line in lines} == {
        ("910000000", "500000000"),
        ("90000000", "500000000"),
    }


def test_two_windows_are_compared(recording, capsys):
    """Of one recording: what the loader did before, and what the main thread did after."""
    document = document_of(
        capsys, recording, "--by", "cpu", "--diff", "..+1.095s", "+1.095s..", "--limit", "1"
    )

    assert document["frames"][0]["frame"] == "cudaStreamSynchronize (libcudart.so.12)"
    assert document["frames"][0]["change"] == 1
    assert document["before"]["source"] == f"{recording} ..+1.095s"
    assert document["after"]["total"] == busy.SPIN_MS * MS


@pytest.mark.parametrize("by", [*GRAPHS, "time", "calls"])
def test_nothing_differs_from_itself(store, capsys, by):
    """Of threads and of calls."""
    document = document_of(capsys, "--diff", store, store, "--by", by)

    assert {one["change"] for one in document["frames"]} <= {0}
    assert {one["change"] for one in document["stacks"]} <= {0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["REC", "--waits", "--by", "cpu"], "waits have no API"),
        (["--diff", "REC", "nothing"], "nothing: neither a file nor a window"),
        (["--diff", "-2s..-1s", "-1s.."], "no recording or store for this window"),
        (["REC", "--from", "+1s", "--diff", "..+1s", "+1s.."], "--from and --to are given twice"),
        (["REC", "--diff", "..x", "+1s.."], "'x' is not a point in time"),
        (["--diff", "REC", "REC", "--pprof", "x"], "--diff reads two recordings"),
        (["--diff", "REC", "REC", "--", "true"], "--diff reads two recordings"),
        (["--diff", "REC"], "expected 2 arguments"),
    ],
)
def test_what_makes_no_sense_is_refused(recording, capsys, arguments, message):
    """With exit code 2, and a line that says what is wrong."""
    given = [str(recording) if argument == "REC" else argument for argument in arguments]

    assert cli.main(["stacks", *given]) == 2
    assert message in capsys.readouterr().err


def test_a_capture_without_samples_has_no_graph_of_cpus(capsys, tmp_path):
    """The list is printed, and says why; an empty profile is an error."""
    path = tmp_path / "p.pb.gz"
    old = str(recording_path("neighbours"))

    assert cli.main(["stacks", old, "--by", "cpu", "--pprof", str(path)]) == 1

    captured = capsys.readouterr()
    assert "0 samples of threads on CPUs, which stand for 0 ns" in captured.out
    assert "error: all stacks have 0 cpu" in captured.err
    assert not path.exists()
