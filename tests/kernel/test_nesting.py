"""Calls inside calls: parents, depth, and calls that never return to their caller."""

from collections.abc import Iterator

import pytest

from tests.kernel.agent import Agent, Shared, calls, losses, run_together, spans, total
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("counted_each_way")]

# By mode of the workload: what its stub does, and how often.
NESTED = {
    "driver": ("cudaMalloc:nest=1", 23),
    "recurse": ("cudaFree:recurse=12", 7),
    "longjmp": ("", 7),
    "tail": ("", 7),
    "exit": ("", 7),
    "exit-hot": ("", 11),
}


@pytest.fixture(scope="module")
def shared(counted_each_way: str, stubs: StubLibraries) -> Iterator[Shared]:
    commands = {
        mode: ({"CUDA_STUB": stub}, [workload("nested"), stubs.runtime, mode, count])
        for mode, (stub, count) in NESTED.items()
    }
    with run_together(commands, "--spans", "full") as shared:
        yield shared


def test_a_driver_call_is_the_child_of_its_runtime_call(shared: Shared) -> None:
    """A cuMemAlloc inside cudaMalloc is its child span; memory and calls count once."""
    receiver, pid = shared.receiver, shared.pid("driver")

    outer = spans(receiver, "cudaMalloc", pid)
    inner = spans(receiver, "cuMemAlloc", pid)
    assert (len(outer), len(inner)) == (23, 23)
    by_id = {span.span.span_id: span.span for span in outer}
    for child in (span.span for span in inner):
        parent = by_id.pop(child.parent_span_id)
        assert child.trace_id == parent.trace_id
        assert parent.start_time_unix_nano <= child.start_time_unix_nano
        assert child.end_time_unix_nano <= parent.end_time_unix_nano
    assert all(span.span.parent_span_id == b"" for span in outer)
    assert calls(receiver, "cudaMalloc", pid, gpu__cuda__layer="runtime") == 23
    assert calls(receiver, "cuMemAlloc", pid, gpu__cuda__layer="driver") == 23
    assert total(receiver, "gpu.cuda.memory.allocations", pid) == 23 * 512


def test_a_failed_inner_call_brings_its_outer_call_along(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A chosen span is never an orphan: the call around it is sent too."""
    command = [workload("nested"), stubs.runtime, "driver", "7"]
    stub = "cudaMalloc:nest=1;cuMemAlloc_v2:fail=2"
    with Agent(receiver, command, env={"CUDA_STUB": stub}) as agent:
        pid = agent.wait().lines[0]["pid"]

    known = {span.span.span_id for span in receiver.spans()}
    inner = spans(receiver, "cuMemAlloc", pid)
    assert len(inner) == 7
    assert {span.attributes["error.type"] for span in inner} == {"CUDA_ERROR_OUT_OF_MEMORY"}
    assert all(span.span.parent_span_id in known for span in inner)
    assert total(receiver, "gpu.cuda.memory.allocations", pid) == 0


def test_nothing_is_lost_but_what_cannot_be_kept(shared: Shared) -> None:
    """
    Of 13 nested calls 5 are deeper than the bound, for each of 7 outermost calls. Seven calls were
    left by longjmp, and seven and eleven threads died in one.
    """
    assert losses(shared.receiver) == {
        "depth_exceeded": 7 * 5,
        "no_return": 7,
        "exit_inside_call": 7 + 11,
    }


def test_recursion_deeper_than_the_bound_gives_no_wrong_number(shared: Shared) -> None:
    """Of 13 nested calls 8 are kept, for each of 7 outermost calls."""
    receiver, pid = shared.receiver, shared.pid("recurse")

    found = spans(receiver, "cudaFree", pid)
    assert calls(receiver, "cudaFree", pid) == 7 * 8
    assert len(found) == 7 * 8
    assert sum(span.span.parent_span_id == b"" for span in found) == 7


def test_calls_after_one_that_was_left_by_longjmp_stand_alone(shared: Shared) -> None:
    """The next one is not taken for its child."""
    receiver, pid = shared.receiver, shared.pid("longjmp")

    after = spans(receiver, "cudaMalloc", pid)
    assert calls(receiver, "cudaMalloc", pid) == 7
    assert calls(receiver, "cudaFree", pid) == 0
    assert [span.span.parent_span_id for span in after] == [b""] * 7
    assert total(receiver, "gpu.cuda.memory.allocations", pid) == 7 * 512


def test_a_tail_call_is_nested_in_the_call_that_made_it(shared: Shared) -> None:
    """A call that ends in a jump to another API returns together with it; both count once."""
    receiver, pid = shared.receiver, shared.pid("tail")

    outer = spans(receiver, "cudaStreamCreateWithFlags", pid)
    inner = spans(receiver, "cudaStreamCreate", pid)
    assert (len(outer), len(inner)) == (7, 7)
    assert {span.span.parent_span_id for span in inner} == {span.span.span_id for span in outer}
    assert calls(receiver, "cudaStreamCreate", pid) == 7
    assert calls(receiver, "cudaStreamCreateWithFlags", pid) == 7


def test_a_thread_that_ends_inside_a_call_leaves_nothing_open(shared: Shared) -> None:
    """Whole calls of other threads are exact."""
    assert calls(shared.receiver, "cudaFree", shared.pid("exit")) == 7
    assert calls(shared.receiver, "cudaDeviceSynchronize", shared.pid("exit-hot")) == 11
