"""How devices were used: each gap has its cause, each verdict its loss, each advice its figure."""

import io
import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from otel_gpu import cli
from otel_gpu.explain.traces.device_verdict import find_device_verdict
from otel_gpu.explain.traces.idle_causes import IdleCause
from otel_gpu.report.render.text.document import write_text
from otel_gpu.state.traces.collectives import find_waits
from otel_gpu.state.traces.device_time import Phases
from tests.unit.importers.test_torch_trace import explain
from tests.unit.importers.traces import T0_US, WORKER, call, host, kernel, step, trace, write

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
V100 = {"id": 0, "name": "Tesla V100", "computeMajor": 7, "computeMinor": 0, "numSms": 80}


@pytest.fixture
def document(tmp_path):
    """What is said of events."""
    return lambda events, **head: explain(write(tmp_path / "trace.json", trace(events, **head)))


@pytest.fixture
def device(document):
    """What is said of the one device of events."""

    def of(events, **head):
        (row,) = document(events, **head).devices
        return row

    return of


def launched(*edges, name="gemm", first=1, **more):
    """Kernels (start, length), each launched by a call 8 µs before; with these correlations."""
    events = []
    for number, (start, length) in enumerate(edges, first):
        events += [
            call("cudaLaunchKernel", start - 8, 5, number),
            kernel(start, length, number, name, **more),
        ]
    return events


# Of a gap from 100 to 1,100 µs, what the host did in it: the launch that ends it begins 8 µs before that.
WAITS = {
    "data_loader": [host(LOADER, 50, 900), host("aten::stack", 200, 600)],
    "sync": [host("aten::slow", 90, 990), call("cudaStreamSynchronize", 150, 800)],
    "allocator": [host("aten::empty", 100, 900), call("cudaMalloc", 110, 800)],
    "host_op": [host("train", 0, 1_090, "python_function"), host("aten::sort", 110, 900)],
    "python": [host("train.py(7): augment", 90, 900, "python_function")],
    "host_other": [host("aten::short", 110, 20)],
}
# How the time of the gap is divided, in µs.
SPENT = {
    "data_loader": {"data_loader": 850, "host_other": 142},
    "sync": {"sync": 800, "host_op": 180, "host_other": 12},
    "allocator": {"allocator": 800, "host_op": 100, "host_other": 92},
    "host_op": {"host_op": 900, "python": 90, "host_other": 2},
    "python": {"python": 890, "host_other": 102},
    "host_other": {"host_other": 972, "host_op": 20},
}


@pytest.mark.parametrize("cause", WAITS)
def test_the_time_of_a_gap_is_divided_among_what_the_launching_thread_did(device, cause):
    """By the regions around it, and named by what took most; another thread has no say."""
    other = host("aten::other", 90, 1_000, tid=WORKER)

    row = device([other, *WAITS[cause], *launched((10, 90), (1_100, 90))])

    spent = SPENT[cause] | {"launch_latency": 8}
    assert row.idle == {name: time_us * 1_000 for name, time_us in spent.items()}
    assert [gap.cause for gap in row.gaps] == [cause]


def test_a_gap_of_two_calls_is_divided_between_them(device):
    """An allocator and a launch that loads code: HolisticTraceAnalysis' AlexNet."""
    row = device([
        *launched((10, 90)), call("cudaFree", 110, 6_530_000), call("cudaLaunchKernel", 6_540_000, 3_055_000, 2),
        kernel(9_595_000, 90, 2),
    ])  # fmt: skip

    assert [(wait.cause, wait.name, wait.time_ns) for wait in row.waits] == [
        ("allocator", "cudaFree", 6_530_000_000),
        ("module_loading", "cudaLaunchKernel", 3_055_000_000),
        ("host_other", "", 9_900_000),
    ]
    assert [gap.cause for gap in row.gaps] == ["allocator"]


def test_what_was_waited_for_is_named(device):
    """By the operator rather than its call, the loader rather than what it runs, and by Python."""
    python = host("data.py(9): decode", 120, 700, "python_function")
    row = device([python, *WAITS["data_loader"], *launched((10, 90), (1_100, 90))])

    assert [(wait.name, wait.python, wait.time_ns) for wait in row.waits] == [
        (LOADER, "data.py(9): decode", 700_000),
        (LOADER, "", 150_000),
        ("", "", 142_000),
        ("cudaLaunchKernel", "", 8_000),
    ]
    assert row.gaps[0].python == "data.py(9): decode"


@pytest.mark.parametrize(
    ("calls", "work", "cause"),
    [
        pytest.param([(1, 0), (2, 60)], [(10, 90, 1), (120, 50, 2)], "launch_latency", id="short"),
        pytest.param([(1, 0), (2, 60)], [(10, 90, 1), (600, 50, 2)], "dependency", id="waits"),
        pytest.param([(1, 0), (2, 108)], [(10, 90, 1), (600, 50, 2)], "launch_latency", id="slow"),
        pytest.param([(1, 0)], [(10, 90, 1), (600, 50, 9)], "no_launch", id="unknown"),
        pytest.param([(1, 0), (2, 60)], [(10, 90, 1), (104, 50, 2)], "noise", id="noise"),
        pytest.param(
            [(1, 0), (7, 150), (2, 590)], [(10, 90, 1), (600, 50, 2)], "not_recorded", id="lost"
        ),
    ],
)
def test_a_gap_may_not_depend_on_what_the_host_did(tmp_path, calls, work, cause):
    """Latency, dependencies, and what was not recorded."""
    events = [call("cudaLaunchKernel", start, 5, number) for number, start in calls]
    events += [kernel(*one) for one in work]
    # So many launches that one lost one, or one that is not known, is no reason to believe nothing.
    events += launched(*((20_000 + 100 * n, 100) for n in range(200)), first=1_000)

    found = explain(write(tmp_path / "trace.json", trace(events))).devices[0]

    first = min(found.gaps, key=lambda gap: gap.start_unix_ns)
    assert first.cause == cause
    assert first.start_unix_ns == (T0_US + 100) * 1_000
    assert not any("unknown" in text for text in found.gate)


def test_a_process_may_use_several_devices(document):
    """Each has its own gaps and its own work; time of the host is counted once."""
    events = [host("aten::mm", 0, 100), *launched((10, 50)), *launched((70, 30), first=9)]
    events[-1]["args"]["device"] = 1

    rows = document(events).devices

    assert [(row.device, row.compute_ns, row.window_ns) for row in rows] == [
        (0, 50_000, 50_000),
        (1, 30_000, 30_000),
    ]
    assert [[one.host_ns for one in row.operations] for row in rows] == [[90_000], [90_000]]
    assert all("one process used 2 devices" in row.gate for row in rows)


@given(
    st.lists(st.tuples(st.integers(1, 2_000), st.integers(0, 300), st.booleans()), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 500), st.sampled_from([LOADER, "aten::x", "cudaFree", "a.py(1): f"])), max_size=20),
)  # fmt: skip
@example([(1, 0, False), (2, 0, False)], [])
@example([(1, 0, False), (5, 3, False), (9, 0, False)], [])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_causes_are_all_of_the_idle_time(tmp_path, work, around):
    """Whatever overlaps with what, on host and device: to the nanosecond."""
    events = []
    for number, (start, length, talks) in enumerate(work, 1):
        name = "ncclDevKernel_AllReduce" if talks else "gemm"
        events.append(call("cudaLaunchKernel", max(0, start - number * 7), 5, number))
        # On one stream nothing can be at once.
        events.append(kernel(start, length, number, name, stream=number))
    for start, length, name in around:
        category = "python_function" if name.startswith("a.py") else "cpu_op"
        events.append(host(name, start, length, category))

    (row,) = explain(write(tmp_path / "trace.json", trace(events))).devices

    exposed = row.exposed_communication_ns + row.exposed_copy_ns
    if row.idle_ns is None:
        # All that is known of the device is a moment of what was recorded.
        assert any("of what was recorded" in text for text in row.gate)
        assert row.window_ns < 20_000
        return
    assert row.compute_ns + exposed + row.idle_ns == row.window_ns
    assert sum(row.idle.values()) == row.idle_ns
    assert sum(wait.time_ns for wait in row.waits) == row.idle_ns
    # Of a device that did hardly anything there is no verdict.
    assert row.lost is None or sum(row.lost.values()) == row.window_ns - row.compute_ns
    assert (row.lost is None) == (row.window_ns - row.idle_ns < 50_000)


@pytest.mark.parametrize(
    ("parts", "idle", "verdict"),
    [
        ({"compute": 80}, {"data_loader": 20}, "gpu-bound"),
        ({"compute": 79}, {"data_loader": 21}, "data-bound"),
        ({"compute": 50, "load": 30}, {"host_op": 20}, "data-bound"),
        ({"compute": 50, "copy": 30}, {"host_op": 20}, "copy-bound"),
        ({"compute": 50, "communication": 26}, {"host_op": 24}, "communication-bound"),
        ({"compute": 50, "communication": 26}, {"dependency": 10, "sync": 14}, "communication-bound"),
        ({"compute": 50, "communication": 20}, {"dependency": 10, "sync": 20}, "mixed"),
        ({"compute": 16, "communication": 15}, {"dependency": 54, "host_op": 15}, "unknown"),
        ({"compute": 50}, {"dependency": 30, "sync": 20}, "unknown"),
        ({"compute": 50}, {"allocator": 30, "sync": 20}, "allocation-bound"),
        ({"compute": 50}, {"sync": 10, "python": 10, "host_op": 3, "launch_latency": 3, "noise": 24}, "cpu-bound"),
        ({"compute": 50, "communication": 25}, {"host_op": 25}, "mixed"),
        ({"compute": 50}, {"host_other": 30, "noise": 20}, "unknown"),
    ],
)  # fmt: skip
def test_the_verdict_is_where_most_of_the_rest_went(parts, idle, verdict):
    """Not the share of computing, as long as that is less than 80 %."""
    load, copy, communication = (parts.get(name, 0) for name in ("load", "copy", "communication"))
    phases = Phases(100, parts["compute"], communication, load + copy, communication, load + copy, load, sum(idle.values()))  # fmt: skip
    causes = {IdleCause(name): time_ns for name, time_ns in idle.items()}

    found = find_device_verdict(phases, causes, is_reliable=True)

    assert found.verdict == verdict
    assert sum(found.lost_ns.values()) == 100 - parts["compute"]
    assert find_device_verdict(phases, causes, is_reliable=False).verdict == "unknown"


@pytest.mark.parametrize(
    ("events", "words"),
    [
        pytest.param(
            [*launched((10, 90), (500, 90)), call("cudaLaunchKernel", 200, 5, 90)],
            "1 of 3 launches", id="launches",
        ),
        pytest.param(
            [*launched((10, 90), (500, 90)), call("cudaGraphLaunch", 200, 5, 90)],
            "launches of graphs", id="graphs",
        ),
        pytest.param([kernel(10, 90), kernel(500, 90)], "no call that launched", id="device-only"),
        pytest.param(
            [*launched((10, 90)), kernel(500, 90, 77), kernel(700, 9, 78)],
            "is idle, and of what was launched", id="unlinked",
        ),
    ],
)  # fmt: skip
def test_what_a_trace_cannot_carry_is_unknown(device, events, words):
    """No causes and no verdict, and it is said why."""
    row = device(events)

    assert (row.verdict, row.idle, row.lost, row.gaps) == ("unknown", None, None, ())
    assert any(words in text and "unknown" in text for text in row.gate)


def test_what_is_wrong_but_not_fatal_is_said(device):
    """Clocks, streams, stacks, steps: the figures stand."""
    events = [
        *launched((10, 90), (500, 90)),
        call("cudaLaunchKernel", 700, 5, 50),
        kernel(650, 100, 50),
        call("cudaLaunchKernel", 690, 5, 51),
        kernel(640, 20, 51),
        host("a.py(1): f", 0, 400, "python_function"),
        host("profiler", 5, 3, "overhead"),
        step(1, 0, 900),
    ]

    row = device(events)

    said = " ".join(row.gate)
    for words in ("clocks", "activities of one stream overlap for 10 µs", "with_stack", "took 3 µs", "fewer than two"):  # fmt: skip
        assert words in said
    assert row.verdict == "cpu-bound" or row.idle is not None


def test_copies_of_nothing_are_not_lost(device):
    """A fill of no bytes leaves no trace on the device, and nothing is wrong with that."""
    events = [*launched((10, 90), (120, 90)), *(call("cudaMemsetAsync", 20 + n, 1, 90 + n) for n in range(9))]  # fmt: skip

    assert not any("launches" in text for text in device(events).gate)


OF_TORCH = host("aten::view", 0, 1)
ADVICE = {
    "num_workers=0": [host(LOADER, 100, 900), *launched((10, 90), (1_100, 90))],
    "prefetch_factor": [
        host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 100, 900),
        *launched((10, 90), (1_100, 90)),
    ],
    "pin_memory=True": [
        OF_TORCH, *launched((10, 90)), *launched((100, 50), name="Memcpy HtoD (Pageable -> Device)"),
    ],
    "Avoid .item()": [OF_TORCH, call("cudaStreamSynchronize", 100, 900), *launched((10, 90), (1_100, 90))],
    "expandable_segments": [OF_TORCH, call("cudaMalloc", 100, 900), *launched((10, 90), (1_100, 90))],
    "torch.compile": [host("aten::x", 100, 900), *launched((10, 90), (1_100, 90))],
    "set_to_none=True": [
        host("Optimizer.zero_grad#SGD.zero_grad", 0, 1_200, "user_annotation"),
        *launched((10, 90), (1_100, 90)),
    ],
    "gradient_as_bucket_view": [
        OF_TORCH, *launched((10, 90)), *launched((100, 50), name="ncclDevKernel_AllReduce"),
    ],
    "torch.autocast": [
        host("aten::mm", 0, 100, **{"Input Dims": [[1]]}), *launched((10, 90), name="volta_sgemm"),
    ],
    "fell back": [
        host("aten::scaled_dot_product_attention", 0, 90),
        host("aten::_scaled_dot_product_attention_math", 0, 90),
        *launched((10, 90)),
    ],
    "bmm, softmax, bmm": [
        host("aten::bmm", 0, 20), host("aten::_softmax", 90, 20), *launched((10, 90), (100, 90)),
    ],
    "channels_last": [OF_TORCH, *launched((10, 90), name="nchwToNhwcKernel")],
    # Without any name of PyTorch, its settings are of no use.
    "asynchronously": launched((10, 90), (100, 50), name="Memcpy HtoD (Pageable -> Device)"),
    "Avoid such waits": [call("cudaStreamSynchronize", 100, 900), *launched((10, 90), (1_100, 90))],
    "keep what is allocated": [call("cudaMalloc", 100, 900), *launched((10, 90), (1_100, 90))],
    "a stream of its own": [
        *launched((10, 90)), *launched((100, 50), name="ncclDevKernel_AllReduce"),
    ],
    "(NHWC)": launched((10, 90), name="nchwToNhwcKernel"),
    "graphs of launches": [
        *(call("cudaFuncGetAttributes", 100 + 90 * n, 80) for n in range(10)), *launched((10, 90), (1_100, 90)),
    ],
    "CUDA_MODULE_LOADING": [
        *launched((10, 90)), call("cudaLaunchKernel", 110, 5_000, 2), kernel(5_112, 90, 2),
    ],
    "change their type": [host("aten::to", 0, 90), *launched((10, 90))],
    "Memory is filled": [host("aten::fill_", 0, 90, **{"Input Dims": [[7]]}), *launched((10, 90))],
    "checkpoint fewer layers": [host("CheckpointFunctionBackward", 0, 90), *launched((10, 90))],
    "offload less": [
        *launched((10, 90)),
        *launched((100, 50), name="Memcpy HtoD (Pinned -> Device)", bytes=4096),
        *launched((150, 50), name="Memcpy DtoH (Device -> Pinned)", bytes=4096),
    ],
    "copied within the device": [
        *launched((10, 90)), *launched((100, 50), name="Memcpy DtoD (Device -> Device)", bytes=4096),
    ],
    "DistributedDataParallel": [host("DataParallel.forward", 0, 90), *launched((10, 90))],
}  # fmt: skip


@pytest.mark.parametrize("words", ADVICE)
def test_advice_has_its_figure_and_its_evidence(document, words):
    """What shows it is in the document, and it saves no more than the window."""
    found = document(ADVICE[words], deviceProperties=[V100])

    (one,) = [one for one in found.advice if words in one.text]
    (row,) = found.devices
    known = {row.id, *(part.id for name in ("gaps", "kernels", "operations", "step_rows") for part in getattr(row, name))}  # fmt: skip
    assert one.evidence
    assert set(one.evidence) <= known
    assert one.check
    assert one.gain_at_most is None or 0 < one.gain_at_most <= 1


def test_a_healthy_program_gets_no_advice(document):
    """Kernels one after the other, with tensor cores: tables say where its time goes."""
    found = document(launched(*((10 + 90 * n, 90) for n in range(20)), name="sm80_xmma_gemm_bf16"))

    assert found.advice == ()
    assert found.devices[0].verdict == "gpu-bound"


def rank(number, lengths):
    """A rank whose collectives take so long."""
    events = launched(
        *((1_000 * n, length) for n, length in enumerate(lengths, 1)),
        name="ncclDevKernel_AllReduce",
    )
    return trace(events, distributedInfo={"rank": number, "world_size": 3})


def test_the_rank_for_which_others_wait_is_named(tmp_path):
    """Its collectives are the shortest: it came last, and waited for nobody."""
    for number, length in enumerate((300, 50, 290)):
        write(tmp_path / f"rank{number}.json", rank(number, [length] * 12))

    found = explain(tmp_path)

    waits = [(one.rank, one.collectives.waited_ns, one.collectives.last) for one in found.devices]
    assert waits == [(0, 12 * 250_000, 0), (1, 0, 12), (2, 12 * 240_000, 0)]
    assert "Look at rank 1: it came last in 12 of 12" in found.advice[0].text


@pytest.mark.parametrize("numbered", [False, True])
def test_ranks_that_began_to_record_at_different_moments_are_matched_by_number_only(
    tmp_path, numbered
):
    """By order, each of one rank would be taken for the next one of the other."""
    for number, first in enumerate((0, 1)):
        made = rank(number, [300 if (n + number) % 2 else 50 for n in range(first, 13)])
        for at, one in enumerate(one for one in made["traceEvents"] if one["cat"] == "kernel"):
            if numbered:
                one["args"] |= {
                    "Collective name": "allreduce",
                    "Process Group Name": "0",
                    "Seq": first + at,
                }
        write(tmp_path / f"rank{number}.json", made)

    found = explain(tmp_path)

    matched = [one.collectives and one.collectives.matched for one in found.devices]
    assert matched == ([12, 12] if numbered else [None, None])


def test_nobody_is_named_where_nobody_waits(tmp_path):
    """Of ranks that are equally fast, one is last by chance, or the first of them by its number."""
    for number, length in enumerate((300, 299, 300)):
        write(tmp_path / f"rank{number}.json", rank(number, [length] * 12))

    found = explain(tmp_path)

    assert [one.collectives.last for one in found.devices] == [0, 12, 0]
    assert not any("Look at" in one.text for one in found.advice)


@given(st.lists(st.lists(st.integers(1, 50), min_size=3, max_size=3), max_size=20))
def test_someone_comes_last_in_each_collective(lengths):
    """And waits for nobody in it."""
    ranks = {n: {("g", "x", at): row[n] for at, row in enumerate(lengths)} for n in range(3)}

    found = find_waits(ranks)

    assert sum(one.last for one in found) == len(lengths)
    assert sum(one.waited_ns for one in found) == sum(sum(row) - 3 * min(row) for row in lengths)
    assert find_waits({0: ranks[0]}) == ()


def test_the_report_is_text_that_nothing_obeys(document):
    """All of it can be written, also of names that would clear a terminal."""
    events = [
        host(f"evil\x1b[2J{LOADER}", 100, 900), step(1, 0, 1_500),
        *launched((10, 90), (1_100, 90), name="k\x1b]0;x\x07[bold]"),
    ]  # fmt: skip
    out = io.StringIO()

    write_text(document(events), Console(file=out, width=200, color_system=None))

    text = out.getvalue()
    for words in ("data-bound", "data_loader", "ProfilerStep#1", "What to do", "gain at most"):
        assert words in text
    assert "\x1b" not in text
    assert "[bold]" in text


def test_the_command_prints_one_document(tmp_path, capsys):
    """What was imported, and the report."""
    path = write(tmp_path / "trace.json", trace(WAITS["sync"] + launched((10, 90), (1_100, 90))))

    assert cli.main(["import", "torch-trace", str(path), "--json"]) == 0

    made = json.loads(capsys.readouterr().out)
    assert made["import"]["taken"]["activities of devices"] == 2
    assert made["report"]["devices"][0]["idle"]["sync"] == 800_000
    assert made["report"]["advice"]
