"""Stacks of programs: where calls were made and threads waited, for recordings and stores."""

import itertools
import json

import pytest

from otel_gpu import wire
from otel_gpu.capture.recording import RecordingWriter
from otel_gpu.mcp.answers import MAX_BYTES, to_json
from otel_gpu.mcp.code_locations import MAX_FUNCTION, code_of, describe_stack
from otel_gpu.mcp.server import answer
from otel_gpu.wire.agent_records import json_record
from otel_gpu.wire.frames import Frame, FrameType
from tests.activities import call_stack
from tests.synthetic import call_record
from tests.unit.cli.commands import busy, starved
from tests.unit.mcp import served

# What the made-up training tells; see tests/replay/make_recordings.py.
MALLOC, MALLOC_INSIDE, LAUNCH, COPY, NEXT_BATCH, HUNG = (f"{n:016x}" for n in range(0x51, 0x57))
TRAIN = [
    ["cpython", "Trainer.step", "/app/train.py", 40],
    ["cpython", "<module>", "/app/train.py", 102],
]
ALLOCATES = {"function": "fragmentation_pattern", "file": "/app/train.py", "line": 74}
DATALOADER = "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
LOADS = {
    "function": "_MultiProcessingDataLoaderIter._try_get_data",
    "file": DATALOADER,
    "line": 1133,
}


@pytest.fixture(scope="module", params=["recording", "store"])
def training(request, tmp_path_factory):
    if request.param == "recording":
        return served.capture_of(served.TRAINING)
    store = tmp_path_factory.mktemp("stacks") / "store.db"
    return served.capture_of(None, served.store_of(served.TRAINING, store))


def ids(found):
    return [row["stack_id"] for row in found["stacks"]["rows"]]


def test_calls_are_added_up_by_where_they_were_made(training):
    """A sampled call stands for a thousand, and takes and counts as much as they."""
    found = served.ask(training, "get_stacks")

    assert (found["of"], found["by"]) == ("calls", "time")
    # Calls inside others are parts of those: three that were chosen, one of a thousand.
    assert found["coverage"] == {
        "with_stack": 4,
        "without_stack": 0,
        "stand_for": 3 + 1_000,
        "counted": 1_000 + 1 + 3,
    }
    assert ids(found) == [LAUNCH, MALLOC, COPY]
    launch, malloc, copy = found["stacks"]["rows"]
    assert (launch["api"], launch["calls"], launch["seen"]) == ("cudaLaunchKernel", 1_001, 2)
    assert launch["time_us"] == 10_250 + 1_000 * 4
    assert launch["share"] == pytest.approx(14_250 / (14_250 + 2_000 + 500), abs=5e-5)
    assert malloc == {
        "pid": 4242,
        "service": "train.py",
        "api": "cudaMalloc",
        "calls": 1,
        "seen": 1,
        "time_us": 2_000,
        "share": pytest.approx(2_000 / 16_750, abs=5e-5),
        "bytes": 1 << 30,
        "code": ALLOCATES,
        "stack_id": MALLOC,
        "complete": True,
        "native": "eh_frame",
        "python": "ok",
        "frames": [
            ["cuda", "cudaMalloc", "libcudart.so.12"],
            ["native", "at::native::empty_cuda(c10::ArrayRef<long>)", "libtorch_cuda.so"],
            ["cpython", "fragmentation_pattern", "/app/train.py", 74],
            *TRAIN,
        ],
    }
    # Where its outer end is not known, nothing is said of the program's own code.
    assert "code" not in copy
    assert (copy["complete"], copy["native"], copy["python"]) == (False, "frame_pointer", "cut")
    assert copy["frames"][1] == ["cut", "31 frames left out"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"by": "calls"}, [LAUNCH, COPY, MALLOC]),
        ({"by": "bytes"}, [MALLOC, COPY, LAUNCH]),
        ({"api": "cudaMalloc"}, [MALLOC]),
        ({"api": "cuMemAlloc"}, [MALLOC_INSIDE]),
        ({"api": "cudaFree"}, []),
        ({"pids": [4242], "limit": 1}, [LAUNCH]),
        ({"pids": [1]}, []),
        # The launch that ends there, and the copy; not the sampled launch after them.
        ({"from": "+0.06s", "to": "+0.0705s"}, [LAUNCH, COPY]),
        ({"from": "+0.2s"}, []),
        ({"of": "waits"}, [NEXT_BATCH]),
        ({"of": "waits", "reason": "queue"}, [NEXT_BATCH]),
        ({"of": "waits", "reason": "lock"}, []),
    ],
)
def test_stacks_are_chosen_and_ranked(training, arguments, expected):
    """By API, process, window and reason, as told; with most of a measure first."""
    found = served.ask(training, "get_stacks", **arguments)

    if {"by", "from"} & set(arguments):
        assert sorted(ids(found)) == sorted(expected)
    assert ids(found)[:1] == expected[:1]
    assert len(ids(found)) == len(expected)


def test_what_was_counted_is_of_what_was_asked_about(training):
    """One API of one process in one window, also where no call of it was kept."""

    def counted(**arguments):
        return served.ask(training, "get_stacks", **arguments)["coverage"]["counted"]

    assert counted(api="cudaMemcpy") == 3
    assert counted(api="cuMemAlloc") == 1
    assert counted(api="cudaFree") == 0
    assert counted(pids=[1]) == 0
    # Read at one second: nothing was counted after that.
    assert counted(from_="+5s") == 0
    assert counted(of="waits") is None


def test_waits_say_for_what_and_where_in_the_kernel(training):
    """A line of Python, and the functions of the kernel under it."""
    found = served.ask(training, "get_stacks", of="waits")

    (waited,) = found["stacks"]["rows"]
    # It was blocked from 100 to 139 ms.
    assert (waited["reason"], waited["waits"], waited["time_us"]) == ("queue", 1, 39_000)
    assert waited["code"] == LOADS
    assert waited["frames"][1] == ["native", "", "python3.11+0x1f40"]
    assert (found["coverage"]["with_stack"], found["coverage"]["without_stack"]) == (1, 1)
    kernel = found["kernel_stacks"]["rows"][0]
    assert kernel["functions"] == ["schedule", "anon_pipe_read", "vfs_read", "ksys_read"]
    assert (kernel["time_us"], kernel["evidence"]) == (39_000, "blocked-4242-4242-1000100000000")


@pytest.mark.parametrize(
    ("wanted", "calls", "waits", "hung"),
    [
        (MALLOC, [[4242, "train.py", "cudaMalloc", 1, 1, 2_000, 1 << 30]], [], 0),
        (MALLOC_INSIDE, [[4242, "train.py", "cuMemAlloc", 1, 1, 1_800, 1 << 30]], [], 0),
        (NEXT_BATCH, [], [[4242, "train.py", "queue", 1, 1, 39_000, 0]], 0),
        (HUNG, [], [], 1),
    ],
)
def test_a_stack_is_shown_with_its_uses(training, wanted, calls, waits, hung):
    """Its id gives all that happened there, also inside other calls, and in one that hangs."""
    found = served.ask(training, "get_stacks", id=wanted)

    assert found["stack"]["stack_id"] == wanted
    assert found["stack"]["frames"][-2:] == TRAIN
    assert found["calls"]["rows"] == calls
    assert found["waits"]["rows"] == waits
    assert found["calls_that_had_not_returned"] == hung


def test_an_id_that_is_none_is_said(training):
    """One that nothing has is no failure; one that cannot be is."""
    told = served.ask(training, "get_stacks", id="00000000000000ff")
    text, is_error = answer(training, "get_stacks", {"id": "<51>"})

    assert told["note"] == "No call, wait or sample of this window has this stack."
    assert is_error
    assert "is not an id" in json.loads(text)["error"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"of": "waits", "api": "cudaMalloc"}, "waits have no API and no bytes"),
        ({"of": "waits", "by": "bytes"}, "waits have no API and no bytes"),
        ({"reason": "lock"}, "calls have no reason"),
        ({"of": "gaps"}, "of must be one of calls, waits"),
    ],
)
def test_what_makes_no_sense_is_refused(training, arguments, told):
    """And how to ask rightly is said."""
    text, is_error = answer(training, "get_stacks", arguments)

    assert is_error
    assert told in json.loads(text)["error"]


def test_chains_cite_the_line(training):
    """
    Of an effect where it was called; of a cause where its thread waited, unless that is there.
    """
    chains = {
        (chain["effect"]["kind"], chain["effect"]["api"]): chain
        for chain in served.ask(training, "get_causal_chains")["worst_chains"]["rows"]
    }

    slow = chains["slow_call", "cudaMalloc"]
    assert (slow["effect"]["code"], slow["effect"]["stack_id"]) == (ALLOCATES, MALLOC)
    assert "stack_id" not in slow["causes"][0]
    # A gap was at no one place; its wait was.
    gap = chains["slow_gap", "cudaLaunchKernel"]
    assert "code" not in gap["effect"]
    waited = gap["causes"][0]
    assert (waited["kind"], waited["code"], waited["stack_id"]) == ("ipc", LOADS, NEXT_BATCH)


def test_intervals_and_moments_cite_the_line(training):
    """In a chain's intervals and in the timeline."""
    chain = served.ask(training, "get_causal_chains", id="slow_gap-4242-4242-1000099000000")
    moments = served.ask(training, "get_timeline", from_="+0s", limit=500)["moments"]["rows"]

    at = {row["id"]: row.get("stack_id") for row in chain["chain"]["intervals"]["rows"]}
    assert at["blocked-4242-4242-1000100000000"] == NEXT_BATCH
    at = {row["id"]: row.get("code") for row in moments}
    assert at["call-4242-4242-1000040000000"] == ALLOCATES
    assert at["blocked-4242-4242-1000100000000"] == LOADS


def test_no_stacks_are_said(tmp_path):
    """An assistant is not left to guess lines of source."""
    capture = served.capture_of(served.write_story(tmp_path / "story.otelgpu"))

    calls = served.ask(capture, "get_stacks")
    waits = served.ask(capture, "get_stacks", of="waits")
    nothing = served.ask(capture, "get_stacks", from_="2000-01-01", to="2000-01-02")

    assert calls["stacks"] == waits["stacks"] == nothing["stacks"] == {"rows": []}
    assert calls["notes"][0].endswith("Do not guess lines of source.")
    assert waits["kernel_stacks"]["rows"][0]["functions"][0] == "anon_pipe_read"
    assert nothing["notes"][0] == "Nothing of this kind was recorded individually in this window."


def test_a_shipped_recording_shows_who_called():
    """Where the scenario's loop makes its calls, as many as it makes."""
    found = served.ask(served.capture_of(served.STARVED), "get_stacks", by="calls")

    assert [
        (row["api"], row["calls"], row["code"]["function"]) for row in found["stacks"]["rows"]
    ] == [
        ("cudaLaunchKernel", 60, "Trainer.launch"),
        ("cudaStreamSynchronize", 60, "Trainer.synchronize"),
    ]
    assert sum(row["share"] for row in found["stacks"]["rows"]) == pytest.approx(1)


@pytest.fixture(scope="module", params=["recording", "store"])
def hostile(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    recording = served.write_hostile(folder / "hostile.otelgpu")
    if request.param == "recording":
        return served.capture_of(recording)
    return served.capture_of(None, served.store_of(recording, folder / "store.db"))


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("get_stacks", {}),
        ("get_stacks", {"limit": 100}),
        ("get_stacks", {"of": "waits"}),
        ("get_stacks", {"id": f"{served.CALLED_AT:016x}"}),
        ("get_causal_chains", {}),
        ("get_timeline", {"from": "+0s", "limit": 500}),
    ],
)
def test_hostile_frames_come_back_inert(hostile, tool, arguments):
    """Names of functions, files and libraries are cut, printable and nothing to obey."""
    text, is_error = answer(hostile, tool, arguments)

    assert not is_error
    assert text.isprintable()
    assert not set("<>&`\u202e\x1b\U000e0049\ufe01\u3164") & set(text)
    assert "](" not in text
    assert "x" * (MAX_FUNCTION + 1) not in text
    assert len(text.encode()) <= MAX_BYTES
    # It is about the hostile stacks at all.
    assert any(f"{number:016x}" in text for number in (served.CALLED_AT, served.WAITED_AT))
    assert "onerror=alert(1)" in text


def test_hostile_frames_are_all_there(hostile):
    """A stack in full shows each of its names as a value of its own."""
    found = served.ask(hostile, "get_stacks", id=f"{served.CALLED_AT:016x}")["stack"]

    rows = found["frames"]
    assert len(rows) == 4 * len(served.HOSTILE)
    assert rows[0] == ["cpython", served.HOSTILE[0], served.HOSTILE[0], 7]
    assert rows[1] == ["native", served.HOSTILE[0], f"{served.HOSTILE[0]}+0x40"]
    assert rows[2] == ["native", "", f"{served.HOSTILE[0]}+0x40"]
    assert rows[3] == ["cut", served.HOSTILE[0]]
    assert (found["complete"], found["native"], found["python"]) == (False, "none", "broken")


def test_a_name_cannot_look_like_two():
    """A function that is called as a frame is written keeps to its place."""
    name = 'main (train.py:1)","train.py",1],["cpython","real'
    stack = call_stack(frames=(Frame(FrameType.PYTHON, name, "evil.py\n", 7),))

    shown = json.loads(to_json(describe_stack(stack, 16)))

    assert shown["frames"] == [["cpython", name, "evil.py ", 7]]
    assert shown["code"] == {"function": name, "file": "evil.py ", "line": 7}


def test_two_calls_in_one_function_are_told_apart(tmp_path):
    """By where in the function they are, which else says nothing and is left out."""
    path = tmp_path / "twins.otelgpu"
    with RecordingWriter(path) as writer:
        writer.write([*itertools.islice(starved.tell(), 4), *_tell_calls(0x30FD, 0x31DD)])
    capture = served.capture_of(path)

    both = served.ask(capture, "get_stacks")["stacks"]["rows"]
    one = served.ask(capture, "get_stacks", limit=1)["stacks"]["rows"]
    whole = served.ask(capture, "get_stacks", id=f"{0x30FD:016x}")["stack"]

    assert [row["frames"] for row in both] == [
        [["cuda", "cudaMalloc", "libcudart.so.12+0x40"], ["native", "churn", "train+0x30fd"]],
        [["cuda", "cudaMalloc", "libcudart.so.12+0x40"], ["native", "churn", "train+0x31dd"]],
    ]
    assert one[0]["frames"] == [
        ["cuda", "cudaMalloc", "libcudart.so.12"],
        ["native", "churn", "train"],
    ]
    assert whole["frames"] == both[0]["frames"]
    assert both[0]["code"] == both[1]["code"] == {"function": "churn", "module": "train"}


def _tell_calls(*addresses):
    for number, address in enumerate(addresses):
        begin, end = starved.at(10 * number + 10), starved.at(10 * number + 12)
        frames = [
            ["native", "cudaMalloc", "", 0, "libcudart.so.12", 0x40],
            ["native", "churn", "", 0, "train", address],
        ]
        body = {"stack": address, "complete": True, "native": "eh_frame", "python": "none"}
        yield json_record(wire.RECORD_USER_STACK, end, body | {"frames": frames})
        yield call_record(
            ktime_ns=end, start_ktime_ns=begin, api=10, user_stack=address, **starved.MAIN
        )


def test_a_stack_is_cut_in_its_middle():
    """However deep it is and however long its names are."""
    frames = (
        Frame(FrameType.NATIVE, "f" * 10_000, module="m" * 10_000, address=1),
        *(Frame(FrameType.PYTHON, f"f{n}", "a.py", n) for n in range(300)),
        Frame(FrameType.CUT, "9 frames left out"),
    )

    shown = describe_stack(call_stack(frames=frames), 16)

    assert len(shown["frames"]) == 16
    assert ["cut", "287 frames left out"] in shown["frames"]
    assert shown["frames"][0][1] == "f" * 200 + "… (9,800 characters cut)"
    assert len(json.dumps(shown)) < 2_000


def test_what_is_not_known_is_left_out():
    """No stack, no place, no line."""
    nowhere = call_stack(0xAB, frames=(Frame(FrameType.CUT, "3 frames left out"),))

    assert code_of(None) == {}
    assert code_of(nowhere) == {"stack_id": "00000000000000ab"}
    assert describe_stack(nowhere, 16)["frames"] == [["cut", "3 frames left out"]]


@pytest.fixture(params=["recording", "store"])
def loader(request, tmp_path):
    recording = busy.write(tmp_path / "busy.otelgpu")
    if request.param == "recording":
        return served.capture_of(recording)
    return served.capture_of(None, served.store_of(recording, tmp_path / "store.db"))


def test_time_on_cpus_is_told_by_line(loader):
    """What burns it, how much of it, and of how much that is known."""
    found = served.ask(loader, "get_stacks", of="cpu", thread="pt_data*")

    assert [(row["code"]["function"], row["share"]) for row in found["stacks"]["rows"]] == [
        ("slow_augment", 0.91),
        ("crop", 0.09),
    ]
    first = found["stacks"]["rows"][0]
    assert (first["what"], first["seen"], first["time_us"]) == ("on_cpu", 91, 910_000)
    assert first["thread"] == "pt_data_worker (4250)"
    assert found["coverage"]["samples"] == 100
    assert (
        served.ask(loader, "get_stacks", of="cpu")["coverage"]["counted_on_cpu_ns"] == 1_210_000_000
    )


def test_waits_and_calls_are_in_one_graph(loader):
    """With what was waited for, and with the CUDA call that a thread was in."""
    found = served.ask(loader, "get_stacks", of="wall")

    assert [row["what"] for row in found["stacks"]["rows"]] == ["on_cpu", "ipc", "on_cpu", "on_cpu"]
    assert found["stacks"]["rows"][1]["frames"][0][:2] == ["wait", "[ipc]"]
    assert found["stacks"]["rows"][2]["frames"][0][:2] == ["cuda", "cudaStreamSynchronize"]
    waits = served.ask(loader, "get_stacks", of="off-cpu", reason="ipc")
    assert [row["what"] for row in waits["stacks"]["rows"]] == ["ipc"]


def test_a_stack_of_samples_is_told_in_full(loader):
    """With the waits at the same place."""
    found = served.ask(loader, "get_stacks", id=f"{busy.SLOW:016x}")

    assert found["stack"]["code"]["function"] == "slow_augment"
    assert found["cpu"]["rows"] == [[4242, "train.py", "on_cpu", 91, 910_000]]
    assert found["waits"]["rows"][0][2] == "ipc"


def test_time_has_no_bytes(loader):
    """And no number of calls."""
    text, is_error = answer(loader, "get_stacks", {"of": "cpu", "by": "bytes"})

    assert is_error
    assert "cpu is time, and has no bytes" in text
