"""``otel-gpu report`` of recordings and stores; tests/browser shows the pages to a browser."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from otel_gpu import cli
from otel_gpu.report.timeline.timeline import MAX_ITEMS
from tests.replay.make_recordings import recording_path
from tests.scenarios.all_scenarios import SCENARIOS
from tests.unit.cli.commands import busy, starved
from tests.unit.importers.exports import Export
from tests.unit.importers.traces import host, step, trace
from tests.unit.importers.traces import write as write_trace
from tests.unit.report.render.html.pages import Seen
from tests.unit.report.render.html.test_devices import LOADER
from tests.unit.report.render.html.test_devices import starved as starved_device

REAL = os.environ.get("OTEL_GPU_TEST_TORCH_DATA", "")
SVG = ("xmlns", "class", "viewbox", "role", "aria-label", "font-family", "font-size", "fill")
EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "demo.otelgpu"
# What is the matter with each scenario, in the words of a page; numbers of threads are left out.
HEADINGS = {
    "memory-leak": "More and more memory was held from step to step",
    "memory-fragmentation": "Enough memory was free, in holes that were too small",
    "memory-exhaustion": "The program needed more memory than there is",
    "device-shared": "Other processes held the memory of the device",
    "empty-cache": "The allocator released its cache to the device, and allocated it again",
    "allocator-bypass": "Device memory was allocated past the framework's allocator",
    "healthy-memory": "Nothing went wrong: no call was far slower than usual, hung or failed",
    "clean": "Nothing went wrong: no call was far slower than usual, hung or failed",
    "preemption": "hog took its CPU away, which was in loop.py:… spin: …",
    "late-wakeup": "It was ready to run, and hog had the CPU, which was in loop.py:… spin: …",
    "cpu-quota": "Its cgroup had used up its CPU quota",
    "lock": "It waited for a lock of holder, which slept",
    "busy-loader": "It waited for data from loader, which was working on a CPU, in busy.py:… slow_augment: …",
    "slow-python": "The program worked on the CPU, in busy.py:… tokenise: …",
    "gil-holder": "It waited for Python's GIL, held by holder, which was working on a CPU, in busy.py:… tokenise: …",
    "garbage-collection": "The program worked on the CPU, in busy.py:… collect_garbage (gc): …",
    "gil": "It waited for Python's GIL, held by holder, which slept",
    "starved-loader": "It waited for data from loader, which hog kept from running, which was in loop.py:… spin: …",
    "disk": "It waited for data from loader, which waited for a disk or file system: /var/tmp/#… (ext4)",
    "large-fork": "trainer forked, which copied the page tables of a large process",
    "memory-limit": "Memory was short, and the kernel used its time to free some",
    "stopped": "It was stopped by a signal until stopper let it go on",
    "gpu-wait": "It waited for the GPU",
    "gpu-backpressure": "The GPU's launch queue was full",
    "first-call": "It was the first use of CUDA: libraries were loaded and contexts made",
    "allocator-churn": "Device memory was allocated and freed many times, ever slower",
    "two-causes": "hog took its CPU away, which was in loop.py:… spin: …",
    "steady-loader": "It waited for data from loader, which was working on a CPU, in loop.py:… compute: …",
    "steady-sleep": "It slept",
    "steady-host-work": "The program worked on the CPU, in loop.py:… compute: …",
    "steady-contention": "It was ready to run, and hog had the CPU, which was in loop.py:… spin: …",
    "full-queue": "Nothing went wrong: no call was far slower than usual, hung or failed",
    "long-synchronize": "It was ready to run, and hog had the CPU, which was in loop.py:… spin: …",
    "checkpoint": "It waited for a disk or file system: /var/tmp/checkpoint-… (ext4)",
    "noisy-neighbour": "It was ready to run, and neighbour had the CPU",
    "idle-server": "Nothing went wrong: no call was far slower than usual, hung or failed",
    "remote-read": "It waited for another host: 198.18.77.2:…",
}
# What another run would have another one of.
OF_A_RUN = re.compile(
    r"(?<=checkpoint-)\w+|(?<=198\.18\.77\.2:)\d+|(?<=/var/tmp/#)\d+|(?<=(?:busy|loop)\.py:)\d+|\d+ % of \d+ samples"
)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_GPU_STORE_ENABLED", "off")


@pytest.fixture
def recording(tmp_path):
    return starved.write(tmp_path / "starved.otelgpu")


def page_of(capsys, *arguments):
    assert cli.main(["report", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def timeline_of(page):
    """What the script of a page draws."""
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def heading_of(page):
    return Seen(re.search("<h1>.*?</h1>", page)[0]).text


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_injected_cause_is_the_headline(capsys, name):
    """What was done to the training loop of a scenario is what a reader sees first."""
    page = page_of(capsys, SCENARIOS[name].recording)

    heading = OF_A_RUN.sub("…", heading_of(page))
    assert re.sub(r" \(\d+(/\d+)?\)", "", heading) == HEADINGS[name]


def test_the_second_cause_is_told_below_the_first(capsys):
    """Where two things were done, both are told before anything else."""
    text = Seen(page_of(capsys, SCENARIOS["two-causes"].recording)).text

    assert re.search(
        r"hog \(\d+\) took its CPU away, which was in loop\.py:\d+ spin: 100 % of \d+ samples "
        r"Whose fault: hog .* Also: 31 % of it: It waited for a lock of holder",
        text,
    )


@pytest.mark.parametrize("path", [SCENARIOS["memory-limit"].recording, EXAMPLE], ids=str)
def test_every_incident_of_the_document_is_in_the_page(capsys, tmp_path, path):
    """The page leaves no incident out that a program would be told of."""
    document = tmp_path / "report.json"

    seen = Seen(page_of(capsys, path, "--json", document))

    ids = [incident["id"] for incident in json.loads(document.read_bytes())["incidents"]]
    assert len(ids) > 1
    assert [name for name in ids if name not in seen.text] == []


def test_a_page_and_a_document_can_go_to_files(recording, capsys, tmp_path):
    """Both are of one reading; what was written is said on standard error."""
    page, document = tmp_path / "report.html", tmp_path / "report.json"
    printed = page_of(capsys, recording)
    assert cli.main(["explain", str(recording), "--json"]) == 0
    explained = capsys.readouterr().out

    assert cli.main(["report", str(recording), f"--html={page}", f"--json={document}"]) == 0

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"otel-gpu: wrote {page}, ")
    assert page.read_text(encoding="utf-8") == printed
    assert document.read_text(encoding="utf-8") == explained


def test_the_same_recording_makes_the_same_page(recording):
    """Byte for byte, whatever order Python's sets have."""
    pages = [
        subprocess.run(
            [sys.executable, "-m", "otel_gpu", "report", str(recording)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]

    assert pages[0] == pages[1]
    assert pages[0].startswith(b"<!DOCTYPE html>\n")


def test_a_store_has_the_page_of_its_recording(recording, capsys, tmp_path):
    """Whatever it is read from, a report is made the same way."""
    store = tmp_path / "store.db"
    assert cli.main(["replay", str(recording), "--store", str(store)]) == 0
    page = page_of(capsys, recording)

    stored = page_of(capsys, "--store", store)

    assert heading_of(stored) == heading_of(page)
    assert "store.db" in Seen(stored).text


def test_flame_graphs_are_of_the_calls_and_of_the_waits(capsys):
    """Where a capture has stacks; each frame is text that can be searched for."""
    page = page_of(capsys, recording_path("training"))

    titles = re.findall('<h3 class="flame-title">(.*?)</h3>', page)
    assert titles == [
        "CUDA calls",
        "Waits of threads",
        "Threads on CPUs",
        "Threads on and off CPUs",
    ]
    assert "<title>fragmentation_pattern (/app/train.py:74)\n2 ms (11.9%)</title>" in page
    assert Seen(page).elements.count(("svg", SVG)) == 4


def test_where_samples_were_taken_time_on_cpus_is_drawn_too(capsys, tmp_path):
    """Alone, and in one graph with the waits."""
    page = page_of(capsys, busy.write(tmp_path / "busy.otelgpu"))

    titles = re.findall('<h3 class="flame-title">(.*?)</h3>', page)
    assert titles == ["Waits of threads", "Threads on CPUs", "Threads on and off CPUs"]
    assert "<title>slow_augment (/app/pictures.py:88)\n910 ms (75.8%)</title>" in page
    assert "<title>[ipc]\n700 ms (36.8%)</title>" in page
    assert "120 samples of threads on CPUs" in Seen(page).text


def test_without_stacks_there_are_no_flame_graphs(capsys):
    """A capture of a host that does not allow them, or that was made before there were any."""
    page = page_of(capsys, recording_path("neighbours"))

    assert "Flame graphs" not in page
    assert "Where in the program" not in page


def test_a_page_has_the_line_of_the_slow_call(capsys):
    """At its top, in the incident, and in the stack."""
    page = page_of(capsys, SCENARIOS["two-causes"].recording)

    text = Seen(page).text
    assert re.search(r"Where: loop\.py:\d+ Trainer\.launch", text)
    assert re.search(
        r"slow cudaLaunchKernel at loop\.py:\d+ Trainer\.launch cudaLaunchKernel \(libcudart\.so",
        text,
    )
    assert re.search(r"holder \([\d/]+\): slept for .{1,9} at injections\.py:\d+ _hold_mutex", text)


def test_a_part_has_the_flame_graphs_of_that_part(capsys):
    """What was played only to know what is usual is not drawn."""
    path = SCENARIOS["preemption"].recording
    whole, early = page_of(capsys, path), page_of(capsys, path, "--to", "+300ms")

    counts = [
        int(re.search(r"Of calls that became spans: ([\d,]+) with", Seen(page).text)[1])
        for page in (whole, early)
    ]
    assert counts[0] == 120
    assert 0 < counts[1] < 120
    assert "Counted: 120 calls." in Seen(whole).text
    assert "Counted: 120 calls." not in Seen(early).text


def test_a_part_of_a_recording_can_be_chosen(recording, capsys):
    """By time and by process, as for explain."""
    early = page_of(capsys, recording, "--to", "+1s")
    late = page_of(capsys, recording, "--since", "-6s")

    assert heading_of(early) == HEADINGS["clean"]
    assert heading_of(late).startswith("It waited for data from pt_data_worker")
    assert heading_of(page_of(capsys, recording, "--pid", "1")) == "No CUDA call was counted"


def test_a_damaged_recording_has_a_page_of_what_is_whole(recording, capsys):
    """The page says so, and the exit code is 1."""
    recording.write_bytes(recording.read_bytes()[:-1])

    assert cli.main(["report", str(recording)]) == 1

    captured = capsys.readouterr()
    assert "The recording is damaged: what comes after that is not known." in captured.out
    assert captured.out.endswith("</html>\n")
    assert "ends early" in captured.err


def test_a_trace_has_a_page_of_what_its_device_did(capsys, tmp_path):
    """As text it is what import says; here with a timeline of streams, steps, gaps and threads."""
    path = write_trace(tmp_path / "starved.json", starved_device())

    page = page_of(capsys, path)

    assert heading_of(page) == "data-bound: device 0 computed 20 % of the time"
    data = timeline_of(page)
    rows = {group["name"]: [row["name"] for row in group["rows"]] for group in data["groups"]}
    assert rows == {
        "device 0 (starved.json)": ["steps", "idle", "stream 7"],
        "starved.json (100)": ["thread (100)"],
    }
    assert {"gemm", "ProfilerStep#0", f"data_loader: {LOADER}", "aten::mm"} <= set(data["names"])


def test_a_folder_of_ranks_has_one_page(capsys, tmp_path):
    """With a card for each device, and its rows on the timeline."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(2):
        made = starved_device(steps=3 + rank)
        write_trace(folder / f"rank{rank}.json", made | {"distributedInfo": {"rank": rank}})

    page = page_of(capsys, folder)

    assert "of the time, the least of 2 devices" in heading_of(page)
    names = [group["name"] for group in timeline_of(page)["groups"]]
    assert names[:2] == ["device 0 (rank1.json)", "device 0 (rank0.json)"]
    assert {"at-0", "at-1"} <= set(Seen(page).values_of("id"))


def test_a_trace_of_the_host_alone_says_what_it_lacks(capsys, tmp_path):
    """It is no capture in which nothing went wrong: nobody looked at a device."""
    made = trace([step(1, 0, 100), host("aten::mm", 5, 20)])

    page = page_of(capsys, write_trace(tmp_path / "host.json", made))

    seen = Seen(page)
    assert heading_of(page) == "No activity of a device was recorded"
    sections = [value for tag, name, value in seen.values if (tag, name) == ("section", "id")]
    assert sections == ["timeline", "unknown"]
    assert "Was ProfilerActivity.CUDA among the activities of the profiler?" in seen.text
    assert "aten::mm" in timeline_of(page)["names"]


def test_an_export_of_nsight_has_a_page(capsys, tmp_path):
    """Recognized by its tables."""
    export = Export()
    export.call(0, 5, 1)
    export.kernel(10, 500, 1, name="gemm")
    export.write(tmp_path / "run.sqlite")

    page = page_of(capsys, tmp_path / "run.sqlite")

    assert "gemm" in timeline_of(page)["names"]


def test_a_recording_has_a_timeline_of_its_threads(capsys):
    """Calls, what threads waited for, why something was slow, and when incidents were."""
    data = timeline_of(page_of(capsys, SCENARIOS["preemption"].recording))

    rows = [row["name"] for group in data["groups"] for row in group["rows"]]
    assert {re.sub(r" \(\d+\)", "", name) for name in rows} >= {
        "trainer",
        "trainer: waits",
        "trainer: why",
        "hog: kept others waiting",
    }
    assert {"cudaLaunchKernel", "run queue"} <= set(data["names"])
    assert data["marks"][0][1].startswith("high: hog (")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--since", "-1ms"], "--from and --to do not apply to a trace: leave them out"),
        (["--pid", "100"], "--pid does not apply to a trace"),
    ],
)
def test_a_part_of_a_trace_is_refused(capsys, tmp_path, arguments, message):
    """Its figures are of the whole, and a page of the whole is not what was asked for."""
    path = write_trace(tmp_path / "starved.json", starved_device())

    assert cli.main(["report", str(path), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real traces")
@pytest.mark.parametrize(
    "name",
    [
        "kineto/workers_0.1623143089861.pt.trace.json.gz",
        "hta/df_index_resolver.json.gz",
        "tracelens/google_owlv2-large-patch14-ensemble__1016001.json.gz",
        "nsys/mfu_2gpu_after.sqlite",
    ],
)
def test_a_real_trace_fits_on_a_page(capsys, name):
    """However large: a few MB, and on the timeline so many items at most."""
    page = page_of(capsys, Path(REAL, name))

    assert re.search(r"-bound: .*device \d .*computed \d+ % of the time", heading_of(page))
    assert len(page) < 4_000_000
    lanes = [
        lane
        for group in timeline_of(page)["groups"]
        for row in group["rows"]
        for lane in row["lanes"]
    ]
    assert 1_000 < sum(len(lane) // 4 for lane in lanes) <= 2 * MAX_ITEMS * 1.5


def test_a_terminal_is_not_filled_with_markup(recording, capsys, monkeypatch):
    """Whoever forgot to name a file is told so, before the recording is read."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert cli.main(["report", str(recording)]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hint: name a file: --html report.html" in captured.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "name what to report on"),
        (["REC", "--store", "x.db"], 2, "name a recording or a store, not both"),
        (["REC", "--from", "+2s", "--to", "+1s"], 2, "the window ends before it begins"),
        (["REC", "--html", "no/such/report.html"], 1, "report.html: cannot be written"),
    ],
)
def test_what_makes_no_sense_is_refused(recording, capsys, arguments, code, message):
    """A line says what is wrong, and nothing is printed."""
    named = [str(recording) if argument == "REC" else argument for argument in arguments]

    assert cli.main(["report", *named]) == code

    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
