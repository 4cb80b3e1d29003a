"""What a trace cannot carry is said before anything else, and nothing is concluded past it."""

import io

import pytest
from rich.console import Console

from otel_gpu import cli
from otel_gpu.report.render.text.document import write_text
from tests.unit.importers.test_torch_trace import explain
from tests.unit.importers.traces import LOADER, call, host, kernel, step, trace, write


@pytest.fixture
def document(tmp_path):
    """What is said of events."""
    return lambda events, **head: explain(write(tmp_path / "trace.json", trace(events, **head)))


@pytest.fixture
def device(document):
    """What is said of the one device of events."""

    def of(events):
        (row,) = document(events).devices
        return row

    return of


def launched(*edges, first=1, tid=100, **more):
    """Kernels (start, length), each launched by a call 8 µs before; with these correlations."""
    for number, (start, length) in enumerate(edges, first):
        yield call("cudaLaunchKernel", start - 8, 5, number, tid)
        yield kernel(start, length, number, **more)


def test_idle_before_the_first_kernel_of_a_step_and_after_the_last_one_counts(device):
    """The window is the steps: a preprocessing of 267 ms keeps the device idle, and logging does."""
    preparing = host("preprocess", 100, 267_000)
    kernels = [
        one
        for number in range(24)
        for one in (
            call("cudaLaunchKernel", 267_500 + 8 * number, 5, number + 1),
            kernel(268_000 + 5_000 * number, 5_000, number + 1),
        )
    ]

    row = device([step(6, 0, 390_000), preparing, *kernels, host("log", 388_050, 1_900)])

    assert row.verdict == "cpu-bound"
    assert (row.window_ns, row.compute_ns, row.idle_ns) == (390_000_000, 120_000_000, 270_000_000)
    assert row.idle == {"host_op": 268_900_000, "host_other": 600_000, "launch_latency": 500_000}
    assert [(wait.name, wait.time_ns) for wait in row.waits][:2] == [
        ("preprocess", 267_000_000),
        ("log", 1_900_000),
    ]
    assert row.utilization == pytest.approx(120 / 390)


@pytest.mark.parametrize("doing", ["data_loader", "host_other"])
def test_the_end_of_the_last_step_is_due_to_the_thread_whose_step_it_is(device, doing):
    """Whichever thread launched the last kernel."""
    loading = [host(LOADER, 600, 399)] if doing == "data_loader" else []
    others = [host("aten::mul", 600, 399, tid=300), host("autograd", 100, 50, tid=300)]

    row = device([step(1, 0, 1_000), *others, *loading, *launched((110, 490), tid=300)])

    assert row.idle[doing] == {"data_loader": 399_000, "host_other": 500_000}[doing]
    assert row.window_ns == 1_000_000


def test_work_outside_of_the_steps_is_left_out_and_counted(device):
    """What a program does before its first step and after the last one is no part of them."""
    before, after = launched((10, 90), (200, 90)), launched((9_000, 700), first=9)
    steps = [step(1, 1_000, 1_000), step(2, 2_000, 1_000)]

    row = device([*before, *steps, *launched((1_010, 990), (2_010, 990), first=3), *after])

    assert (row.window_ns, row.compute_ns) == (2_000_000, 1_980_000)
    assert sum(one.times for one in row.kernels) == 2
    assert any(
        text.startswith("3 activities before the first step or after the last one are left out")
        for text in row.gate
    )


def test_steps_in_which_a_device_did_nothing_are_idle(document):
    """Of two devices of a process one did something before them only."""
    other = list(launched((10, 200), first=50, device=1))
    steps = [step(n, 1_000 * n, 1_000) for n in (1, 2)]

    first, second = document([*other, *steps, *launched((1_010, 990), (2_010, 990))]).devices

    assert first.verdict == "gpu-bound"
    assert (second.verdict, second.idle_ns, second.kernels) == ("unknown", 2_000_000, ())
    assert any("worked for 0 ns only: the verdict is unknown" in text for text in second.gate)


def test_a_step_begins_when_the_work_of_before_has_ended(device):
    """What was launched before anything was recorded is no idle time of the first step, and none of its work."""
    before = [kernel(100 * n, 100, 900 + n) for n in range(5)]

    row = device([step(1, 100, 1_900), *before, *launched((510, 490), (1_010, 990))])

    assert (row.window_ns, row.idle_ns) == (1_500_000, 20_000)
    assert any(text.startswith("5 activities at the front") for text in row.gate)


def test_one_fill_bounds_nothing(device):
    """1.47 µs of 125 ms: too little for a verdict, and what it is a share of is a moment."""
    fill = kernel(4_000, 1.47, 1, "Memset (Device)")
    calls = [call("cudaMemsetAsync", 0, 5_000, 1), call("cudaDeviceSynchronize", 5_100, 120_000, 2)]

    row = device([*calls, fill])

    assert (row.verdict, row.useful, row.idle_ns, row.utilization) == ("unknown", None, None, None)
    said = " ".join(row.gate)
    assert "the device worked for 1.47 µs only" in said
    assert "lies within 1.47 µs, <1 % of what was recorded" in said


@pytest.mark.parametrize(("busy_us", "verdict"), [(49, "unknown"), (50, "gpu-bound")])
def test_a_verdict_needs_device_time(device, busy_us, verdict):
    """Below 50 µs it is about a few launches."""
    assert device(launched((10, busy_us))).verdict == verdict


@pytest.mark.parametrize(("recorded_us", "verdict"), [(9_900, "gpu-bound"), (10_100, "unknown")])
def test_without_steps_the_window_has_to_be_some_of_what_was_recorded(device, recorded_us, verdict):
    """Of a hundredth nothing is concluded about the rest, in which no work was launched."""
    waits = call("cudaDeviceSynchronize", 10, recorded_us - 8, 99)

    assert device([host("x", 2, 1), *launched((10, 100)), waits]).verdict == verdict


def test_no_advice_without_a_verdict(document):
    """A fill of 11 µs in a step of which 200 launches have left no work: nothing is gained by saying more."""
    lost = [call("hipLaunchKernel", 1_000 + 100 * n, 5, 10 + n) for n in range(200)]
    fills = [
        one
        for n in range(2)
        for one in (
            host("aten::fill_", 100 + n, 15, **{"Input Dims": [[1], []]}),
            *launched((130 + 6 * n, 5.5), first=1 + n, name="FillFunctor<long>"),
        )
    ]

    found = document([step(1, 0, 33_000), *fills, *lost])

    (row,) = found.devices
    assert (row.verdict, row.idle_ns) == ("unknown", None)
    assert [one.idle_ns for one in row.step_rows] == [None]
    assert found.advice == ()


def test_a_file_with_a_wrong_duration_has_no_verdict(document):
    """A kernel of 4 ms is written with 1.6 s, and runs over 56 later ones of its stream."""
    steps = [step(n, 100_000 * n, 100_000) for n in range(4)]
    kernels = list(launched(*((5_000 * n + 30, 4_000) for n in range(80)), name="fmha_bwd"))
    kernels[47]["dur"] = 1_600_000

    found = document([*steps, *kernels])

    (row,) = found.devices
    assert (row.verdict, row.idle_ns, row.idle, row.steps, row.step_rows) == ("unknown", None, None, 0, ())  # fmt: skip
    assert (row.compute_ns, [one.longest_ns for one in row.kernels]) == (316_000_000, [4_000_000])
    assert row.gate[0].startswith("durations of the file are wrong: ")
    assert "up to 56 later ones" in row.gate[0]
    assert row.gate[0].endswith("causes and verdict are unknown")
    assert not any("says where steps begin" in text for text in row.gate)
    assert found.advice == ()


def test_a_file_whose_streams_are_out_of_order_has_no_steps(document):
    """
    Graphs of eleven steps whose kernels are written as one burst after the last of them.

    Kernels that were launched after a graph, to its stream, are at their times: before it.
    """
    events, first = [], 1
    for number in range(11):
        at = 35_000 * number
        events.append(step(number, at, 35_000))
        events.append(call("hipGraphLaunch", at + 400, 200, first))
        for one in range(260):
            burst = 400_000 + 34_000 * number + 120 * one
            events.append(kernel(burst, 110, first, "moe_kernel"))
        events += launched(*((at + 1_000 + 40 * one, 6) for one in range(17)), first=first + 1)
        first += 18

    found = document(events)

    (row,) = found.devices
    assert (row.verdict, row.idle_ns, row.idle, row.steps, row.critical) == ("unknown", None, None, 0, None)  # fmt: skip
    # All kernels of all steps but those of the last: nothing was launched before that is late.
    assert row.gate[0].startswith(
        "the work of 187 of 198 launches begins before that of an earlier"
    )
    assert found.advice == ()


def test_a_launch_that_is_out_of_order_is_said_and_costs_nothing(device):
    """One of 300 may be a number that was given twice."""
    kernels = list(launched(*((100 * n, 90) for n in range(1, 301))))
    first, second = kernels[21], kernels[23]
    first["args"]["correlation"], second["args"]["correlation"] = 12, 11

    row = device(kernels)

    assert row.verdict == "gpu-bound"
    assert any(text.startswith("the work of 1 of 300 launches begins before") for text in row.gate)


def test_launches_without_activities_are_named(document):
    """As of graphs on ROCm: it is not that nobody asked for the device."""
    graphs = [call("hipGraphLaunch", 30_000 * n, 4_000, n + 1) for n in range(32)]

    found = document([*graphs, call("hipDeviceSynchronize", 999_000, 10)])

    (note,) = found.notes
    assert "launches were recorded (hipGraphLaunch 32), but no activity of a device" in note
    assert (found.devices, found.advice) == ((), ())


@pytest.mark.parametrize(
    ("category", "maker"),
    [("xpu_runtime", "Intel XPU"), ("mtia_ccp_events", "Meta MTIA"), ("privateuse1_runtime", "PrivateUse1")],
)  # fmt: skip
def test_devices_of_other_makers_are_named(document, category, maker):
    """What their runtimes say is not understood, and is no reason to blame the profiler's settings."""
    calls = [host("urEnqueueKernelLaunch", 500 * n, 20, category, correlation=n) for n in range(20)]

    alone = document(calls)
    (row,) = document([*calls, *(kernel(500 * n + 50, 300, n) for n in range(20))]).devices

    note = alone.notes[0]
    assert f"{maker}, whose devices are not read: 20)" in note
    assert "ProfilerActivity" not in note
    assert (row.verdict, row.idle_ns) == ("unknown", None)
    assert f"{maker}, whose devices are not read: 20)" in row.gate[0]


def test_what_is_not_known_of_devices_stands_before_the_rest(tmp_path):
    """Of several ranks one has nothing of a device: that is read before what the others did."""
    write(tmp_path / "rank0.json", trace(launched((10, 900))))
    write(tmp_path / "rank1.json", trace([host("aten::mm", 0, 90)]))
    out = io.StringIO()

    write_text(explain(tmp_path), Console(file=out, width=200, color_system=None))

    text = out.getvalue()
    assert text.count("Not known") == 1
    assert text.index("rank1.json: it has no activity of a device") < text.index("Verdict for")
    assert text.index("nothing in the file says where steps begin") < text.index("Verdict for")


def test_what_is_wrong_with_any_rank_stands_before_their_table(tmp_path):
    """Also of those of which no more is shown; what takes away a verdict comes first."""
    for rank in range(5):
        events = [step(n, 1_000 * n, 1_000) for n in range(4)]
        events += launched(*((1_000 * n + 10, 960 - rank) for n in range(4)))
        if rank == 3:
            events += [call("cudaLaunchKernel", 2_980, 5, 90 + n) for n in range(4)]
        if rank != 2:
            events.append(host("profiler", 5, 3, "overhead"))
        head = {"distributedInfo": {"rank": rank, "world_size": 5}}
        write(tmp_path / f"rank{rank}.json", trace(events, **head))
    out = io.StringIO()

    write_text(explain(tmp_path), Console(file=out, width=200, color_system=None))

    lines = [line.strip() for line in out.getvalue().splitlines()]
    at = lines.index("What the traces cannot say")
    assert lines[at + 1 : at + 3] == [
        "- rank 3, device 0: nothing was recorded of what 4 of 8 launches did (50 %): causes and verdict are unknown",
        "- rank 0, device 0; rank 1, device 0; rank 3, device 0 and 1 more: the profiler itself took 3 µs of the host",
    ]
    assert at < lines.index("5 ranks") < next(n for n, one in enumerate(lines) if one.startswith("Verdict for"))  # fmt: skip
    assert sum("4 of 8 launches" in line for line in lines) == 1


def test_an_export_without_rows_is_refused(tmp_path, capsys):
    """It is bad input, with the exit code of that."""
    path = tmp_path / "empty.json"
    path.write_text("[[-1, 1, 37888, 7], [-1, 1, 512, 7]]")

    assert cli.main(["import", "torch-trace", str(path)]) == 1

    said = capsys.readouterr().err
    assert "it has no event" in said
    assert "export_chrome_trace" in said


def test_idle_on_what_nobody_recorded_is_not_communication(document):
    """
    Six gaps of 64 ms in graphs that were launched long before, and nothing runs on the device.

    That communication takes 15 % of the window does not make the rest of it communication.
    """
    length_us, events = 118_000, []
    for number in range(6):
        at = length_us * number
        events += [
            step(number, at, length_us),
            call("cudaGraphLaunch", at + 100, 200, 2 * number + 1),
            kernel(at + 400, 18_000, 2 * number + 1, "sm80_xmma_gemm_bf16"),
            kernel(at + 82_400, 18_000, 2 * number + 1, "ncclDevKernel_AllReduce", stream=20),
            kernel(at + 100_400, 17_000, 2 * number + 1, "sm80_xmma_gemm_bf16"),
        ]

    found = document(events)

    (row,) = found.devices
    assert row.exposed_communication_ns / row.window_ns == pytest.approx(0.15, abs=0.005)
    assert row.idle["dependency"] == 6 * 64_000_000
    assert row.verdict == "unknown"
    assert row.lost["communication"] == row.exposed_communication_ns
    assert row.lost["other"] > 0.5 * row.window_ns
    assert found.advice == ()
