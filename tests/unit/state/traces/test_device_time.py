"""The time of a device: its parts are all of it, and steps divide it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.state.traces.device_steps import counted, find_steps, host_spans
from otel_gpu.state.traces.device_time import timelines
from otel_gpu.state.traces.host_time import rows_by_start
from otel_gpu.state.traces.interval_sets import union
from otel_gpu.state.traces.kernel_kinds import KernelKind, kind_of, kinds_of
from otel_gpu.state.traces.launches import QUEUE_LIMIT, link, measure
from otel_gpu.wire.device_activity import (
    UNKNOWN_COLLECTIVE,
    DeviceActivities,
    DeviceTrace,
    HostOperations,
    HostWork,
    Names,
    Thread,
    Work,
)

US = 1_000
PIECES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=40)


def of(work=(), host=(), ranks=None):
    """A trace of work (name, start, duration, correlation) and of what the host did; in µs."""
    names, activities, operations = Names(), DeviceActivities(), HostOperations()
    for name, start, duration, *more in work:
        kind = Work.COPY if "Memcpy" in name else Work.FILL if "Memset" in name else Work.KERNEL
        correlation, stream = (*more, 0, 7)[:2] if len(more) != 1 else (more[0], 7)
        activities.add(
            kind, 0, stream, start * US, duration * US, names.number(name), correlation=correlation
        )
    for kind, name, start, duration, *more in host:
        number = names.number(name)
        operations.add(kind, 1, start * US, duration * US, number, *more)
    return DeviceTrace(
        source="x", tool="test", base_unix_ns=0, is_dated=True, names=names, shapes=Names(),
        activities=activities, host=operations, threads=(Thread(0, 0), Thread(9, 9)),
        collectives=(UNKNOWN_COLLECTIVE,), models={}, ranks=ranks,
    )  # fmt: skip


def timeline(trace):
    (found,) = timelines(trace, link(trace), kinds_of(trace.names, trace.activities))
    return found


def steps(trace):
    return find_steps(trace, timeline(trace), link(trace), host_spans(trace, rows_by_start(trace)))


def points(pairs):
    """The whole time of pairs, moment by moment."""
    return {at for start, length in pairs for at in range(start, start + length)}


@given(PIECES, PIECES)
def test_spans_are_sets_of_moments(ours, theirs):
    """Union, difference and parts, against sets."""
    first, second = (
        union(sorted((start, start + length) for start, length in pairs))
        for pairs in (ours, theirs)
    )

    assert first.length_ns == len(points(ours))
    assert first.minus(second).length_ns == len(points(ours) - points(theirs))
    assert first.join(second).length_ns == len(points(ours) | points(theirs))
    assert first.within(50, 200).length_ns == len(points(ours) & set(range(50, 200)))
    assert all(end < start for (_, end), (start, _) in zip(first, list(first)[1:], strict=False))


@given(PIECES, PIECES, PIECES, PIECES, st.integers(0, 400), st.integers(0, 400))
@settings(max_examples=300)
def test_parts_are_all_of_the_window(kernels, collectives, copies, moves, one, other):
    """Whatever overlaps: to the nanosecond, and as sets of moments say."""
    named = {
        "gemm": kernels, "ncclDevKernel_AllReduce": collectives,
        "Memcpy HtoD (Pinned -> Device)": copies, "Memcpy DtoD (Device -> Device)": moves,
    }  # fmt: skip
    segments = [(name, *pair) for name, pairs in named.items() for pair in pairs]
    # On one stream nothing can be at once.
    work = [(*piece, 0, stream) for stream, piece in enumerate(segments)]
    if not work:
        return
    found = timeline(of(work))
    start, end = sorted((one, other))

    phases = found.phases(start * US, end * US)

    inside = set(range(start, end))
    compute, talk = points(kernels) & inside, points(collectives) & inside
    copied = (points(copies) | points(moves)) & inside
    assert phases.window_ns == (end - start) * US
    assert phases.compute_ns == len(compute) * US
    assert phases.exposed_communication_ns == len(talk - compute) * US
    assert phases.exposed_copy_ns == len(copied - compute - talk) * US
    assert phases.idle_ns == len(inside - compute - talk - copied) * US
    parts = (phases.exposed_communication_ns, phases.exposed_copy_ns, phases.idle_ns)
    assert phases.compute_ns + sum(parts) == phases.window_ns
    assert found.gaps().length_ns == found.phases(found.start_ns, found.end_ns).idle_ns


def test_work_of_before_the_recording_is_no_part_of_the_window():
    """What was launched before leads, and is left out and counted; alone it all counts."""
    launch = (HostWork.CALL, "cudaLaunchKernel", 90, 5, 1)
    early = [("k", 10, 5), ("k", 20, 5)]

    assert timeline(of([*early, ("k", 100, 50, 1)], [launch])).left_out == 2
    assert timeline(of(early)).left_out == 0
    assert timeline(of([("k", 100, 50, 1), *((n, s + 200, d) for n, s, d in early)], [launch])).left_out == 0  # fmt: skip


def marked(*edges):
    return [
        (HostWork.ANNOTATION, f"ProfilerStep#{number}", start, length)
        for number, (start, length) in enumerate(edges, 1)
    ]


def test_a_step_ends_when_what_it_launched_has():
    """So the next one begins later than the host says."""
    host = [
        *marked((0, 100), (100, 100)),
        (HostWork.CALL, "cudaLaunchKernel", 50, 10, 1),
        (HostWork.CALL, "cudaLaunchKernel", 120, 10, 2),
    ]

    first, second = steps(of([("k", 80, 60, 1), ("k", 150, 40, 2)], host))

    assert (first.start_ns, first.end_ns) == (0, 140 * US)
    assert (second.start_ns, second.end_ns) == (140 * US, 200 * US)
    assert first.parts["kernel"] == 60 * US
    assert first.parts["call"] == 10 * US
    assert all(sum(step.parts.values()) == step.duration_ns for step in (first, second))


def test_a_long_first_step_and_a_last_one_that_was_cut_off_are_set_aside():
    """Both are listed, and count in no median."""
    edges = [(0, 300), (300, 100), (400, 100), (500, 100), (600, 100)]
    calls = [(HostWork.CALL, "cudaLaunchKernel", start, 1, at) for at, (start, _) in enumerate(edges, 1)]  # fmt: skip
    work = [("k", start + 2, 50, at) for at, (start, _) in enumerate(edges[:-1], 1)]

    found = steps(of([*work, ("k", 602, 20, 5)], [*marked(*edges), *calls]))

    assert [bool(step.set_aside) for step in found] == [True, False, False, False, True]
    assert len(counted(found)) == 3


def test_steps_are_what_somebody_calls_so():
    """Stretches of one name that fill the window; never gaps."""
    rounds = [(HostWork.ANNOTATION, f"round {n}", n * 100, 99) for n in range(4)]
    calls = [(HostWork.CALL, "cudaLaunchKernel", n * 100 + 5, 1, n + 1) for n in range(4)]
    work = [("k", n * 100 + 10, 80, n + 1) for n in range(4)]

    assert [step.name for step in steps(of(work, [*rounds, *calls]))] == [f"round {n}" for n in range(4)]  # fmt: skip
    assert steps(of(work, calls)) == ()
    assert steps(of(work, [*rounds[:2], *calls])) == ()


def test_launches_are_measured():
    """Delay from the end of the call, kernels shorter than it, and clocks that do not agree."""
    calls = [(HostWork.CALL, "cudaLaunchKernel", 10 * n, 6, n) for n in range(1, 4)]
    trace = of([("k", 21, 5, 1), ("k", 26, 9, 2), ("k", 29, 9, 3), ("k", 60, 1)], calls)

    found = measure(trace, timeline(trace).rows, link(trace))

    assert (found.linked, list(found.delays_ns)) == (3, [5 * US, 0, 0])
    assert (found.shorter, found.early, found.most_queued) == (1, 1, 2)
    assert found.median_delay_ns == 0


def test_a_graph_is_one_launch():
    """However many kernels it has: the first of them is what was waited for."""
    calls = [(HostWork.CALL, "cudaGraphLaunch", 100 * n, 6, n) for n in range(1, 6)]
    work = [("k", 100 * n + 10 + 2 * at, 1, n) for n in range(1, 6) for at in range(7)]
    other = (HostWork.CALL, "cudaLaunchKernel", 700, 1, 9)
    trace = of([*work, ("k", 710, 3, 9)], [*calls, other])

    found = measure(trace, timeline(trace).rows, link(trace))

    assert (found.linked, found.graphs, found.most_queued) == (6, 5, 1)
    assert list(found.delays_ns) == [4 * US] * 5 + [9 * US]
    # 7 kernels of 1 µs take longer than their call of 6 µs.
    assert found.shorter == 0


def test_a_full_queue_is_timed():
    """From the launch that fills it to the first that leaves."""
    count = QUEUE_LIMIT + 1
    calls = [(HostWork.CALL, "cudaLaunchKernel", n, 1, n) for n in range(1, count + 1)]
    work = [("k", 5_000 + n, 1, n) for n in range(1, count + 1)]
    trace = of(work, calls)

    found = measure(trace, timeline(trace).rows, link(trace))

    assert found.most_queued == count
    assert found.full_ns == (5_002 - QUEUE_LIMIT) * US


def test_kernels_are_known_by_their_names():
    """Communication is; and words that hold others are not taken for them."""
    named = {
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": KernelKind.COMMUNICATION,
        "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)": KernelKind.COMMUNICATION,
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>": KernelKind.COMMUNICATION,
        "void deep_ep::intranode::dispatch<8, 768>": KernelKind.COMMUNICATION,
        "volta_sgemm_128x64_nn": KernelKind.GEMM,
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": KernelKind.GEMM,
        "cudnn::cnn::wgrad2d_grouped_direct_kernel": KernelKind.CONVOLUTION,
        "void cudnn::batchnorm_bwtr_nhwc_semiPersist<float>": KernelKind.NORMALIZATION,
        "flash_fwd_splitkv_kernel": KernelKind.ATTENTION,
        "prefill_kernel": KernelKind.OTHER,
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>": KernelKind.FILL,
        "triton_poi_fused_add_0": KernelKind.FUSED,
        "": KernelKind.OTHER,
    }  # fmt: skip

    assert {name: kind_of(name) for name in named} == named
