"""The critical path: what each moment waited for, and all of a window."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.state.traces import critical_path
from otel_gpu.state.traces.critical_path import PathBound, Walk, find_critical_path
from otel_gpu.state.traces.device_time import timelines
from otel_gpu.state.traces.host_time import HostTime
from otel_gpu.state.traces.kernel_kinds import kinds_of
from otel_gpu.state.traces.launches import link
from otel_gpu.wire.device_activity import HostWork
from tests.unit.state.traces.test_device_time import US, of

CALL, OPERATION, ANNOTATION = HostWork.CALL, HostWork.OPERATION, HostWork.ANNOTATION


def parts_of(trace):
    links = link(trace)
    (line,) = timelines(trace, links, kinds_of(trace.names, trace.activities))
    return trace, line, links, HostTime(trace)


def path(work, host, start=0, end=100):
    """The segments of a path (bound, name, start, end), in µs and in order."""
    trace, *rest = parts_of(of(work, host))
    found = []
    for bound, row, start_ns, end_ns in Walk(trace, *rest, start * US, end * US).segments():
        table = trace.activities if bound in (PathBound.KERNEL, PathBound.QUEUE) else trace.host
        name = trace.names[table.names[row]] if row >= 0 else ""
        found.append((str(bound), name, start_ns // US, end_ns // US))
    return found[::-1]


def test_work_waits_for_its_launch_where_the_stream_is_empty():
    """And before that for all that the thread did."""
    found = path(
        [("gemm", 40, 60, 1)],
        [(OPERATION, "aten::mm", 0, 30), (CALL, "cudaLaunchKernel", 20, 5, 1)],
    )

    assert found == [
        ("operator", "aten::mm", 0, 20),
        ("launch", "cudaLaunchKernel", 20, 40),
        ("kernel", "gemm", 40, 100),
    ]


def test_work_waits_for_the_work_before_it():
    """If that was not done when it was launched: the host is ahead."""
    found = path(
        [("a", 10, 40, 1), ("b", 52, 48, 2)],
        [(CALL, "launch", 0, 5, 1), (CALL, "launch", 20, 5, 2)],
    )

    assert found == [
        ("launch", "launch", 0, 10), ("kernel", "a", 10, 50), ("queue", "a", 50, 52), ("kernel", "b", 52, 100),
    ]  # fmt: skip


def test_a_call_that_waits_for_the_device_waits_for_its_work():
    """And before that for what its thread did, if no work ended while it waited."""
    host = [(CALL, "launch", 0, 5, 1), (CALL, "cudaStreamSynchronize", 20, 50), (OPERATION, "aten::item", 70, 30)]  # fmt: skip

    waits = path([("a", 10, 55, 1)], host)
    does_not = path([("a", 10, 5, 1)], host)

    assert waits == [
        ("launch", "launch", 0, 10), ("kernel", "a", 10, 65), ("sync", "cudaStreamSynchronize", 65, 70),
        ("operator", "aten::item", 70, 100),
    ]  # fmt: skip
    assert does_not == [
        ("call", "launch", 0, 5), ("unknown", "", 5, 20), ("sync", "cudaStreamSynchronize", 20, 70),
        ("operator", "aten::item", 70, 100),
    ]  # fmt: skip


def test_a_copy_that_its_call_waits_for_is_waited_for():
    """As those from and to memory that can be paged out."""
    found = path(
        [("a", 10, 30, 1), ("Memcpy DtoH (Device -> Pageable)", 42, 20, 2)],
        [(CALL, "launch", 0, 5, 1), (CALL, "cudaMemcpyAsync", 8, 60, 2), (OPERATION, "x", 68, 32)],
    )

    assert found == [
        ("launch", "launch", 0, 10), ("kernel", "a", 10, 40), ("queue", "a", 40, 42),
        ("kernel", "Memcpy DtoH (Device -> Pageable)", 42, 62), ("sync", "cudaMemcpyAsync", 62, 68),
        ("operator", "x", 68, 100),
    ]  # fmt: skip


def test_work_may_wait_for_another_stream():
    """Launched long before, and its own stream had nothing to do."""
    found = path(
        [("a", 10, 60, 1, 7), ("b", 72, 28, 2, 8)],
        [(CALL, "launch", 0, 5, 1), (CALL, "launch", 8, 5, 2)],
    )

    assert found == [
        ("launch", "launch", 0, 10), ("kernel", "a", 10, 70), ("queue", "a", 70, 72), ("kernel", "b", 72, 100),
    ]  # fmt: skip


def test_what_the_program_names_stands_for_what_nobody_recorded():
    """A window of the program, where no operator ran."""
    found = path(
        [("a", 95, 5, 1)],
        [(ANNOTATION, "load", 10, 60), (OPERATION, "x", 20, 10), (CALL, "launch", 90, 3, 1)],
    )

    assert found == [
        ("unknown", "", 0, 10), ("operator", "load", 10, 20), ("operator", "x", 20, 30), ("operator", "load", 30, 70),
        ("unknown", "", 70, 90), ("launch", "launch", 90, 95), ("kernel", "a", 95, 100),
    ]  # fmt: skip


def test_a_thread_that_does_nothing_waits_for_the_one_that_does():
    """As for the thread of the backward pass."""
    trace = of([("a", 190, 10, 1)], [(OPERATION, "forward", 0, 50), (OPERATION, "backward", 55, 100), (CALL, "step", 160, 3, 1)])  # fmt: skip
    trace.host.threads[1] = 0
    trace, *rest = parts_of(trace)

    found = find_critical_path(trace, *rest, 0, 200 * US)

    assert {(part.bound, part.name): part.time_ns // US for part in found.parts} == {
        (PathBound.OPERATOR, "forward"): 50, (PathBound.OPERATOR, "backward"): 100, (PathBound.LAUNCH, "step"): 30,
        (PathBound.KERNEL, "a"): 10, (PathBound.UNKNOWN, ""): 10,
    }  # fmt: skip


NAMES = ["launch", "cudaStreamSynchronize", "cudaMemcpyAsync"]
WORK = st.tuples(
    st.sampled_from(["a", "Memcpy DtoH"]), st.integers(0, 300), st.integers(0, 80), st.integers(0, 12), st.integers(7, 8)
)  # fmt: skip
HOST = st.tuples(
    st.sampled_from([CALL, OPERATION, ANNOTATION]), st.sampled_from(NAMES), st.integers(0, 300),
    st.integers(0, 120), st.integers(0, 12),
)  # fmt: skip


@given(
    st.lists(WORK, min_size=1, max_size=25),
    st.lists(HOST, max_size=25),
    st.integers(0, 200),
    st.integers(1, 250),
)
@settings(max_examples=300, deadline=None)
def test_the_pieces_are_all_of_the_stretch(work, host, start, length):
    """Whatever overlaps with what, on any clocks: each moment has one piece, and there is an end."""
    made = of(work, host)
    for row in range(len(made.host)):
        made.host.threads[row] = row % 2
    trace, *rest = parts_of(made)
    start_ns, end_ns = start * US, (start + length) * US

    segments = list(Walk(trace, *rest, start_ns, end_ns).segments())

    reached_ns = end_ns
    for piece in segments:
        assert piece.end_ns == reached_ns
        assert piece.start_ns < piece.end_ns
        reached_ns = piece.start_ns
    assert reached_ns == start_ns
    found = find_critical_path(trace, *rest, start_ns, end_ns)
    assert sum(part.time_ns for part in found.parts) == end_ns - start_ns


def test_a_stretch_in_which_too_much_happened_has_no_path(monkeypatch):
    """What a stranger's file costs is bounded."""
    monkeypatch.setattr(critical_path, "MAX_ROWS", 1)
    trace, *rest = parts_of(of([("a", 0, 5), ("b", 5, 5)]))

    assert find_critical_path(trace, *rest, 0, 10 * US) is None


def test_what_began_before_the_stretch_is_known():
    """As the data loader of a step that begins when the last work of the one before ends."""
    found = path(
        [("a", 95, 5, 1)], [(OPERATION, "load", 0, 80), (CALL, "launch", 90, 3, 1)], start=40
    )

    assert found == [("operator", "load", 40, 80), ("unknown", "", 80, 90), ("launch", "launch", 90, 95), ("kernel", "a", 95, 100)]  # fmt: skip


@pytest.mark.parametrize("host", [[], [(ANNOTATION, "ProfilerStep#1", 0, 100)]])
def test_without_anything_of_the_host_the_device_is_the_path(host):
    """And what it waited for is not known."""
    assert path([("a", 10, 80)], host) == [
        ("unknown", "", 0, 10), ("kernel", "a", 10, 90), ("unknown", "", 90, 100),
    ]  # fmt: skip
