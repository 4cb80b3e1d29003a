"""Recordings in, OTLP out, byte for byte: the regression wall."""

import json

import pytest

from otel_gpu import cli
from otel_gpu.capture.recording import read_recording
from tests.replay.make_recordings import HERE, STORIES, parse, recording_path, replay

UPDATE = "python -m tests.replay.make_recordings --update"
RECORDINGS = sorted(HERE.glob("*.otelgpu"))


def spans_in(otlp):
    for line in otlp.splitlines():
        for resource in json.loads(line).get("resourceSpans", []):
            for scope in resource["scopeSpans"]:
                yield from scope["spans"]


def attributes_of(item):
    return {
        attribute["key"]: next(iter(attribute["value"].values()))
        for attribute in item["attributes"]
    }


@pytest.mark.parametrize("name", STORIES)
def test_the_recording_of_a_story_is_that_story(name):
    """A recording in the tree holds the records that the script tells."""
    records = [record for batch in read_recording(recording_path(name)) for record in batch]

    assert records == list(STORIES[name]()), f"run {UPDATE}"


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_a_replay_sends_what_it_always_sent(recording):
    """Decoding, naming and exporting a recording gives the committed OTLP, byte for byte."""
    assert replay(recording) == recording.with_suffix(".jsonl").read_bytes(), f"see {UPDATE}"


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_a_replay_can_be_repeated(recording):
    """The same recording twice gives the same bytes: no clock, no chance, no order of a set."""
    assert replay(recording) == replay(recording)


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_reads_as_it_always_read(recording):
    """The text of a recording is stable, so that scripts may rely on it."""
    assert parse(recording) == recording.with_suffix(".txt").read_bytes(), f"see {UPDATE}"


def test_the_training_story_comes_out_with_its_meaning():
    """What the committed bytes say, for a reader: spans, parents, failure, stall parts."""
    spans = list(spans_in(recording_path("training").with_suffix(".jsonl").read_bytes()))
    names = {span["spanId"]: span["name"] for span in spans}

    # Sorted: in a request, spans are grouped by scope. What is under a chain is its own story.
    measured = [span for span in spans if not span["name"].startswith(("gpu.caus", "gpu.incident"))]
    pairs = [(span["name"], names.get(span.get("parentSpanId"), "")) for span in measured]
    assert sorted(pair for pair in pairs if not pair[1].startswith("gpu.caus")) == [
        ("cuMemAlloc", "cudaMalloc"),
        ("cudaLaunchKernel", ""),
        ("cudaLaunchKernel", ""),
        ("cudaMalloc", ""),
        ("cudaMemcpy", ""),
        ("gpu.cuda.call.open", ""),
        ("gpu.launch_gap", ""),
        ("process.fork", ""),
        ("sched.blocked", "cudaLaunchKernel"),
        ("sched.blocked", "gpu.launch_gap"),
        ("sched.run_queue_wait", ""),
        ("sched.run_queue_wait", "cudaLaunchKernel"),
        ("sched.run_queue_wait", "cudaLaunchKernel"),
        ("sched.run_queue_wait", "gpu.launch_gap"),
    ]
    reasons = {
        names[span["parentSpanId"]]: attribute["value"]["stringValue"]
        for span in measured
        for attribute in span["attributes"]
        if attribute["key"] == "otel_gpu.stall.reason"
    }
    assert reasons["cudaLaunchKernel"] == "lock"
    # A pipe to the kernel, and the data loader's to the program.
    assert reasons["gpu.launch_gap"] == "queue"
    places = {
        span["name"]: (
            attributes_of(span).get("code.file.path"),
            attributes_of(span).get("code.line.number"),
        )
        for span in measured
    }
    assert places["cudaMalloc"] == places["cuMemAlloc"] == ("/app/train.py", "74")
    assert places["gpu.cuda.call.open"] == ("/app/train.py", "40")
    [malloc] = [span for span in spans if span["name"] == "cudaMalloc"]
    [event] = malloc["events"]
    assert attributes_of(event)["code.stacktrace"].splitlines() == [
        "cudaMalloc (libcudart.so.12)",
        "at::native::empty_cuda(c10::ArrayRef<long>) (libtorch_cuda.so)",
        "fragmentation_pattern (/app/train.py:74)",
        "Trainer.step (/app/train.py:40)",
        "<module> (/app/train.py:102)",
    ]
    [failed] = [span for span in spans if span.get("status", {}).get("code") == 2]
    assert failed["name"] == "cudaMemcpy"
    assert failed["startTimeUnixNano"] == "1760000000070000000"
    assert failed["endTimeUnixNano"] == "1760000000070500000"


def test_a_recording_that_ends_early_is_replayed_as_far_as_it_goes(tmp_path, capsys):
    """Without its end mark a recording gives all its spans, and then an error."""
    whole = recording_path("training").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-12])

    code = cli.main(["replay", str(tmp_path / "cut"), "--otlp-file", str(tmp_path / "out")])

    assert code == 1
    assert (tmp_path / "out").read_bytes() == (HERE / "training.jsonl").read_bytes()
    assert capsys.readouterr().err == (
        f"otel-gpu: error: {tmp_path}/cut: ends early; everything before that was read\n"
        "hint: the agent that wrote it was killed, or the copy is incomplete\n"
    )


def test_what_is_no_recording_starts_no_output(tmp_path, capsys):
    """An existing output survives a mistyped input."""
    (tmp_path / "out").write_text("earlier")
    (tmp_path / "in").write_text("not a recording at all")

    code = cli.main(["replay", str(tmp_path / "in"), "--otlp-file", str(tmp_path / "out")])

    assert code == 1
    assert (tmp_path / "out").read_text() == "earlier"
    assert capsys.readouterr().err == (
        f"otel-gpu: error: {tmp_path}/in: is not a recording of otel-gpu\n"
    )


def test_records_that_were_not_understood_are_counted(tmp_path, capsys):
    """A replay says how many records it left out, and why; the rest is exported."""
    path = recording_path("strangers")

    code = cli.main(["replay", str(path), "--otlp-file", str(tmp_path / "out")])

    assert code == 0
    assert capsys.readouterr().err == (
        "otel-gpu: records that could not be decoded: "
        "bad_body 1, bad_json 1, short 1, size_mismatch 1, unknown_kind 1\n"
    )
    assert [span["name"] for span in spans_in((tmp_path / "out").read_bytes())] == [
        "unknown_api_9999",
        "cudaMalloc",
    ]


def test_an_empty_recording_is_replayed_to_nothing(tmp_path):
    """A capture that saw nothing has a recording like any other."""
    whole = recording_path("training").read_bytes()
    (tmp_path / "empty").write_bytes(whole[:16] + whole[-12:])

    assert replay(tmp_path / "empty") == b""
