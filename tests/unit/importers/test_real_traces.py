"""Traces that others made, with the figures that others assert of them."""

import os
from functools import cache
from pathlib import Path

import pytest

from tests.unit.importers.test_torch_trace import explain

REAL = os.environ.get("OTEL_GPU_TEST_TORCH_DATA", "")
pytestmark = pytest.mark.skipif(
    not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real artefacts"
)

# By the kineto plugin's own rules, in µs: a step, and in it kernel, copy, fill, call, data loader,
# operation, other (tb_plugin/test/result_check_file.txt); then utilization, processors, occupancy in %.
WORKERS = {
    "workers_0.1623143089861.pt.trace.json.gz": (
        177_592, (98_589, 1_915, 89, 2_908, 59_262, 13_674, 1_156), (55.51, 54.68, 49.13),
        (67, 8_772, 591_532),
    ),
    "workers_4.1623212756351.pt.trace.json.gz": (
        141_068, (99_145, 3_160, 98, 10_564, 1_186, 22_665, 4_251), (70.27, 69.22, 48.91),
        (62, 8_868, 594_868),
    ),
}  # fmt: skip
# From the first to the last activity: window, computing, communication, exposed communication and idle, in ms (HolisticTraceAnalysis, TraceLens,
# and an independent script); None: not asserted.
TIMES = {
    "google_owlv2-large-patch14-ensemble__1016001.json.gz": (
        1078.2883791503907, 552.1892138671875, 0, 0, 511.52890625,
    ),
    "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (
        34.8924189453125, 31.903115234375, 0, 0, 2.986935791015625,
    ),
    "qwen_mi300.json.gz": (33.131, None, 0, 0, 3.387),
    "df_index_resolver.json.gz": (1732.965, 621.408, 357.343, 357.343, 732.352),
    "trace_diff_control.json.gz": (464.594, 282.582, 163.535, 87.267, None),
    "trace_diff_test.json.gz": (745.239, 550.307, 251.341, 72.359, None),
    "nccl_data.json.gz": (660.551, 116.047, 46.876, 39.529, 503.051),
}  # fmt: skip
# How much longer the steps are, in ms: idle before the first activity and after the last one.
STEPS = {
    "google_owlv2-large-patch14-ensemble__1016001.json.gz": 132.893873,
    "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": 0.290943,
    "qwen_mi300.json.gz": 0.624,
    "df_index_resolver.json.gz": 4.937,
    "trace_diff_control.json.gz": 0.577,
    "trace_diff_test.json.gz": 0.038,
    "nccl_data.json.gz": 6.674958,
}
VERDICTS = {
    "workers_0.1623143089861.pt.trace.json.gz": ("data-bound", "data_loader", 0.285),
    "workers_4.1623212756351.pt.trace.json.gz": ("cpu-bound", "host_op", 0.150),
    "google_owlv2-large-patch14-ensemble__1016001.json.gz": ("data-bound", "data_loader", 0.455),
    "trace_diff_control.json.gz": ("mixed", "host_op", 0.093),
    "trace_diff_test.json.gz": ("mixed", "noise", 0.018),
    "nccl_data.json.gz": ("cpu-bound", "host_op", 0.664),
    "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": ("gpu-bound", "noise", 0.049),
}


@cache
def document(name):
    """What is said of a file, wherever under the folder or beside it it lies."""
    found = next(path for root in (Path(REAL), Path(REAL).parent) for path in root.rglob(name))
    return explain(found)


def device(name):
    (row,) = document(name).devices
    return row


@pytest.mark.parametrize("name", WORKERS)
def test_the_steps_are_those_of_the_kineto_plugin(name):
    """Average step and its parts to the microsecond; estimates to the figures that it prints."""
    row = device(name)
    step_us, parts_us, shares, kernels = WORKERS[name]

    assert len(row.step_rows) == 6
    mean = sum(step.duration_ns for step in row.step_rows) / 6_000
    assert mean == pytest.approx(step_us, abs=0.5)
    names = ("kernel", "copy", "fill", "call", "data_loader", "operation", "other")
    found = [sum(step.parts[part] for step in row.step_rows) / 6_000 for part in names]
    assert found == pytest.approx(parts_us, abs=0.51)
    estimates = (row.utilization, row.processors, row.occupancy)
    # It divides by the time of the file, some 0.1 ms more than its steps.
    assert [100 * one for one in estimates] == pytest.approx(shares, abs=0.02)
    computing = [one for one in row.kernels if one.kind != "copy" and "Memset" not in one.name]
    figures = (len(computing), sum(one.times for one in computing), sum(one.time_ns for one in computing))  # fmt: skip
    assert figures == (*kernels[:2], kernels[2] * 1_000)


def test_the_fifth_step_and_an_operator_are_those_of_the_kineto_plugin():
    """One row of its table of steps, and one of its table of operators."""
    row = device("workers_0.1623143089861.pt.trace.json.gz")

    first = row.step_rows[0]
    assert (first.name, first.duration_ns) == ("ProfilerStep#5", 187_948_000)
    parts = [first.parts[name] // 1_000 for name in ("kernel", "copy", "fill", "call", "data_loader", "operation", "other")]  # fmt: skip
    assert parts == [98_598, 1_941, 90, 2_796, 69_317, 14_091, 1_115]
    of = [one for one in row.operations if one.name == "aten::cudnn_convolution_backward_weight"]
    sums = [sum(getattr(one, name) for one in of) for name in ("times", "device_ns", "host_ns")]
    assert sums == [318, 142_461_000, 22_804_000]


@pytest.mark.parametrize("name", TIMES)
def test_the_parts_of_the_window_are_those_that_others_find(name):
    """But for what the device was idle in steps at their edges; they are all of it, to the nanosecond."""
    row = device(name)
    beyond_ns = STEPS[name] * 1e6
    found = (
        row.window_ns - beyond_ns, row.compute_ns, row.communication_ns, row.exposed_communication_ns,
        row.idle_ns - beyond_ns,
    )  # fmt: skip

    for value, expected in zip(found, TIMES[name], strict=True):
        if expected is not None:
            assert value / 1e6 == pytest.approx(expected, rel=1e-6, abs=0.001)
    parts = row.exposed_communication_ns + row.exposed_copy_ns + row.idle_ns
    assert row.compute_ns + parts == row.window_ns
    assert sum(row.idle.values()) == row.idle_ns


def test_overlap_is_that_of_others():
    """Of communication; nothing where all of it is exposed."""
    overlaps = {
        "trace_diff_control.json.gz": 0.4664, "trace_diff_test.json.gz": 0.7121,
        "df_index_resolver.json.gz": 0.0,
    }  # fmt: skip

    assert {name: round(device(name).overlap, 4) for name in overlaps} == overlaps


@pytest.mark.parametrize("name", VERDICTS)
def test_the_known_cause_of_each_trace_is_named(name):
    """Which bounds it, and the share of the window of the most frequent cause of idle time."""
    row = device(name)
    verdict, cause, least = VERDICTS[name]

    assert row.verdict == verdict
    assert next(iter(row.idle)) == cause
    assert row.idle[cause] >= least * row.window_ns


def test_work_of_before_the_recording_is_counted():
    """509 of the activities of Qwen were launched before."""
    gate = device("Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz").gate

    assert any(text.startswith("509 activities at the front") for text in gate)


def test_what_can_be_done_is_said():
    """The loader that runs in the training process; numbers of 32 bits; attention by hand."""
    of = {
        "workers_0.1623143089861.pt.trace.json.gz": ["num_workers=0", "67 % of the time of kernels"],
        "workers_4.1623212756351.pt.trace.json.gz": ["67 % of the time of kernels"],
        "google_owlv2-large-patch14-ensemble__1016001.json.gz": ["num_workers=0", "bmm, softmax, bmm"],
        "nccl_data.json.gz": ["The host is too slow"],
        "df_index_resolver.json.gz": ["only 0 % of it is overlapped"],
    }  # fmt: skip
    for name, texts in of.items():
        said = " ".join(one.text for one in document(name).advice)
        assert all(text in said for text in texts), (name, said)
    assert "num_workers" not in str(document("workers_4.1623212756351.pt.trace.json.gz").advice)


def test_zero_to_four_workers_save_what_others_say():
    """36.5 ms of each step, and 58.1 ms of the data loader."""
    sums = []
    for name in WORKERS:
        steps = device(name).step_rows
        sums.append([sum(step.duration_ns for step in steps) / 6e6, sum(step.parts["data_loader"] for step in steps) / 6e6])  # fmt: skip
    changes = [round(after - before, 1) for before, after in zip(*sums, strict=True)]

    assert changes == [-36.5, -58.1]


@pytest.mark.parametrize("name", ["cpu_only.json.gz", "rank_non_gpu.json.gz"])
def test_nothing_is_said_of_a_device_that_did_nothing(name):
    """A note says why."""
    found = document(name)

    assert (found.devices, found.advice) == ((), ())
    assert any("no activity of a device" in note for note in found.notes)


def test_a_trace_without_most_launches_has_no_verdict():
    """Of what ended its idle time nothing is known."""
    row = device("trace_compare_base.json.gz")

    assert (row.verdict, row.idle, row.lost) == ("unknown", None, None)
    assert any("causes and verdict are unknown" in text for text in row.gate)
