"""
What to do about how a program used a device.

Each piece of advice rests on a figure of the trace, names what shows it, and says at most how much
of the window it can save: all of the time that it is about. What a trace cannot show is not said.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from otel_gpu.explain.device_use import DeviceUse
from otel_gpu.explain.device_verdict import GPU_BOUND
from otel_gpu.explain.idle_causes import IdleCause
from otel_gpu.findings.device_report import Advice, DeviceReport
from otel_gpu.findings.words import format_duration, format_share, format_size, short_function
from otel_gpu.ledger.device_time import TO_DEVICE
from otel_gpu.ledger.host_time import Inside
from otel_gpu.ledger.kernel_kinds import KernelKind

MAX_EVIDENCE: Final = 5

# Shares of the window from which on something is worth a sentence.
_LOADER, _COPIES, _SYNC, _ALLOCATOR = 0.05, 0.01, 0.03, 0.03
_HOST, _COMMUNICATION, _ZERO_GRAD = 0.15, 0.10, 0.01
_LAYOUT, _CAST, _FILL, _CHECKPOINT, _OFFLOAD = 0.02, 0.05, 0.05, 0.05, 0.10
# Shares of the time of kernels.
_ELIGIBLE, _NO_TENSOR_CORES, _BY_HAND, _FUSED = 0.2, 0.01, 0.2, 0.05
_MANY_SHORT, _OVERLAPS = 0.5, 0.3
_STRAGGLES, _MATCHED = 0.5, 10
_TENSOR_CORES_SINCE, _TF32_SINCE = 70, 80

_ONE_PROCESS = "_SingleProcessDataLoaderIter"
_LAYOUTS = re.compile(r"nchwtonhwc|nhwctonchw", re.IGNORECASE)
_FLOAT32 = re.compile(r"sgemm|_f32f32_f32f32|cutlass_simt|scudnn")
_ZERO = "Optimizer.zero_grad"
_FILLS = ("aten::fill_", "aten::zero_")
_MATH = "aten::_scaled_dot_product_attention_math"
_PARALLEL = re.compile(r"(?<!Distributed)DataParallel\.forward")

Rule = Callable[[str, DeviceUse], Iterator[Advice]]


def advice_for(name: str, use: DeviceUse) -> Iterator[Advice]:
    """Yield what to do about one device, whose row has this id."""
    # What the verdict is about comes first: what was lost, or else what the device did.
    is_busy = use.verdict.verdict == GPU_BOUND
    ranked = (_RULES,) if is_busy else (_RULES_OF_LOSS, _RULES_OF_WORK)
    for rules in ranked if use.is_reliable else (_RULES_OF_WORK,):
        found = [advice for rule in rules for advice in rule(name, use)]
        yield from sorted(found, key=lambda one: -(one.gain_at_most or 0.0))


def straggler_advice(rows: Sequence[DeviceReport]) -> Iterator[Advice]:
    """Yield what to do about a rank for which the others wait."""
    for row in rows:
        one = row.collectives
        if one is None or one.matched < _MATCHED or one.last <= _STRAGGLES * one.matched:
            continue
        others = [other for other in rows if other.collectives and other is not row]
        waited = [other.collectives.waited_ns / other.window_ns for other in others if other.collectives]  # fmt: skip
        rank = row.source if row.rank is None else f"rank {row.rank}"
        yield Advice(
            f"Look at {rank}: it came last in {one.last:,} of {one.matched:,} collectives, and the "
            f"others waited for it, {format_share(max(waited, default=0.0))} of their window at most.",
            (row.id,),
            max(waited, default=None),
            "no rank is last in more than half of the collectives",
        )


def _share(use: DeviceUse, time_ns: float) -> float:
    return time_ns / use.phases.window_ns if use.phases.window_ns else 0.0


def _gaps(name: str, use: DeviceUse, *causes: IdleCause, named: str = "") -> tuple[str, ...]:
    """Return the longest gaps of some causes."""
    found = [
        f"{name}/gap/{number}"
        for number, gap in enumerate(use.gaps)
        if gap.place.cause in causes and named in gap.place.name
    ]
    return tuple(found[:MAX_EVIDENCE]) or (name,)


def _kernels(name: str, use: DeviceUse, kind: KernelKind | None, words: str = "") -> tuple[str, ...]:  # fmt: skip
    """Return the kernels of a kind, or with some words in their names, that took most."""
    pattern = re.compile(words, re.IGNORECASE)
    found = [
        f"{name}/kernel/{number}"
        for number, one in enumerate(use.work.kernels[:100])
        if kind in (None, one.kind) and pattern.search(one.name)
    ]
    return tuple(found[:MAX_EVIDENCE]) or (name,)


def _operations(name: str, use: DeviceUse, *names: str) -> tuple[str, ...]:
    found = [
        f"{name}/operation/{number}"
        for number, one in enumerate(use.work.operations[:100])
        if one.name in names
    ]
    return tuple(found[:MAX_EVIDENCE]) or (name,)


def _where(use: DeviceUse, *causes: IdleCause) -> str:
    """Name what the thread did that the device waited for longest."""
    for place, time_ns in use.places:
        if place.cause in causes and (place.name or place.python):
            python = f", in {place.python}" if place.python and place.python != place.name else ""
            return (
                f" Most of it ({format_duration(time_ns)}) in {place.name or place.python}{python}."
            )
    return ""


def _loader(name: str, use: DeviceUse) -> Iterator[Advice]:
    share = _share(use, use.idle_ns.get(IdleCause.DATA_LOADER, 0))
    if share < _LOADER:
        return
    is_alone = any(_ONE_PROCESS in gap.place.name for gap in use.gaps)
    what = (
        "The data loader runs in the training process (num_workers=0): give it workers, one less "
        "than there are CPUs to begin with, and persistent_workers=True"
        if is_alone
        else "The data loader's workers are too slow: give it more of them or a larger "
        "prefetch_factor, or do less in them"
    )
    yield Advice(
        f"{what}. The device waited for it {format_share(share)} of the window."
        f"{_where(use, IdleCause.DATA_LOADER)}",
        _gaps(name, use, IdleCause.DATA_LOADER),
        share,
        "idle time by data_loader, and the part data_loader of steps",
    )


def _pageable(name: str, use: DeviceUse) -> Iterator[Advice]:
    share = _share(use, use.phases.exposed_copy_ns)
    pageable = [one for one in use.work.copies if one.is_pageable]
    if share < _COPIES or not pageable:
        return
    bound = min(share, _share(use, sum(one.total_ns for one in pageable)))
    if bound < _COPIES:
        return
    moved = ", ".join(f"{one.way} {format_size(one.size_bytes)}" for one in pageable)
    to_host = all(one.way != TO_DEVICE for one in pageable)
    yield Advice(
        "Copies use memory that can be paged out, and the device waits for them "
        f"{format_share(bound)} of the window ({moved}): "
        + (
            "copy to pinned memory with non_blocking=True, and less often."
            if to_host
            else "use pin_memory=True together with .to(device, non_blocking=True)."
        ),
        _kernels(name, use, KernelKind.COPY, "pageable"),
        bound,
        "exposed_copy_ns, and copies named Pinned",
    )


def _sync(name: str, use: DeviceUse) -> Iterator[Advice]:
    share = _share(use, use.idle_ns.get(IdleCause.SYNC, 0))
    if share >= _SYNC:
        yield Advice(
            "The host waits for the device and only then goes on to launch: the device was idle so "
            f"{format_share(share)} of the window. Avoid .item(), .cpu(), print and nonzero() in each "
            f"step.{_where(use, IdleCause.SYNC)}",
            _gaps(name, use, IdleCause.SYNC),
            share,
            "idle time by sync",
        )


def _allocator(name: str, use: DeviceUse) -> Iterator[Advice]:
    share = _share(use, use.idle_ns.get(IdleCause.ALLOCATOR, 0))
    if share >= _ALLOCATOR:
        yield Advice(
            f"The device waited {format_share(share)} of the window while memory was allocated or "
            "freed on it: allocate before the loop, do not call torch.cuda.empty_cache() in it, and "
            f"try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.{_where(use, IdleCause.ALLOCATOR)}",
            _gaps(name, use, IdleCause.ALLOCATOR),
            share,
            "idle time by allocator",
        )


def _host(name: str, use: DeviceUse) -> Iterator[Advice]:
    causes = (IdleCause.HOST_OP, IdleCause.PYTHON, IdleCause.LAUNCH_LATENCY)
    share = _share(use, sum(use.idle_ns.get(cause, 0) for cause in causes))
    if share < _HOST:
        return
    work = use.work
    is_short = bool(work.kernel_count) and work.short > _MANY_SHORT * work.kernel_count
    short = (
        f" {format_share(work.short / work.kernel_count)} of the kernels take less than 10 µs."
        if is_short
        else ""
    )
    yield Advice(
        f"The host is too slow to keep the device busy: it was idle {format_share(share)} of the window "
        f"while operators and Python ran.{short} Launch less: torch.compile, CUDA graphs "
        f'(mode="reduce-overhead"), fused or foreach variants, or a larger batch.{_where(use, *causes)}',
        _gaps(name, use, *causes),
        share,
        "idle time by host_op, python and launch_latency",
    )


def _zero_grad(name: str, use: DeviceUse) -> Iterator[Advice]:
    waited_ns = sum(time_ns for place, time_ns in use.places if _ZERO in place.name)
    filled_ns = use.work.inside_ns.get(Inside.ZERO_GRAD, 0)
    share = _share(use, waited_ns + filled_ns)
    if filled_ns and share >= _ZERO_GRAD:
        yield Advice(
            f"Gradients are set to zero one by one, which takes {format_share(share)} of the window: "
            "use optimizer.zero_grad(set_to_none=True).",
            _gaps(name, use, *IdleCause, named=_ZERO),
            share,
            "activities inside Optimizer.zero_grad",
        )


def _communication(name: str, use: DeviceUse) -> Iterator[Advice]:
    phases = use.phases
    share, overlap = _share(use, phases.exposed_communication_ns), phases.overlap
    if share < _COMMUNICATION or overlap is None:
        return
    little = f"only {format_share(overlap)}" if overlap < _OVERLAPS else format_share(overlap)
    yield Advice(
        f"Communication keeps the device from computing {format_share(share)} of the window; {little} of "
        "it is overlapped. Let it begin earlier: gradient_as_bucket_view=True and a fitting "
        "bucket_cap_mb, no find_unused_parameters; with FSDP backward_prefetch and forward_prefetch; "
        "and nothing in a step that waits for the device.",
        _kernels(name, use, KernelKind.COMMUNICATION),
        share,
        "exposed_communication_ns and overlap",
    )


def _parallel(name: str, use: DeviceUse) -> Iterator[Advice]:
    if any(_PARALLEL.search(text) for text in use.trace.names):
        yield Advice(
            "The program uses torch.nn.DataParallel, one process for several devices: use "
            "DistributedDataParallel.",
            (name,),
            None,
            "one trace for each device",
        )


def _tensor_cores(name: str, use: DeviceUse) -> Iterator[Advice]:
    work, compute = use.work, use.model.compute
    if not work.kernel_ns or compute < _TENSOR_CORES_SINCE or "AMD" in use.model.name:
        return
    eligible = work.eligible_ns / work.kernel_ns
    if eligible < _ELIGIBLE or work.tensor_ns > _NO_TENSOR_CORES * work.kernel_ns:
        return
    is_float = any(_FLOAT32.search(one.name) for one in work.kernels)
    tf32 = (
        'torch.set_float32_matmul_precision("high") (TF32), or '
        if is_float and compute >= _TF32_SINCE
        else ""
    )
    yield Advice(
        f"Use {tf32}torch.autocast: {format_share(eligible)} of the time of kernels is in operators that "
        f"can use tensor cores, and none of it does.",
        _kernels(name, use, None, "gemm|cudnn|conv|wgrad|dgrad"),
        _share(use, min(work.eligible_ns, use.phases.compute_ns)),
        "tensor_core_share",
    )


def _attention(name: str, use: DeviceUse) -> Iterator[Advice]:
    work = use.work
    names = {one.name for one in work.operations if one.device_ns}
    fused_ns = work.by_kind().get(KernelKind.ATTENTION, (0, 0))[1]
    softmax_ns = sum(one.device_ns for one in work.operations if one.name == "aten::_softmax")
    by_hand = sum(
        one.device_ns for one in work.operations if one.name in ("aten::_softmax", "aten::bmm")
    )
    if _MATH in {one.name for one in work.operations}:
        spent_ns = work.inside_ns.get(Inside.ATTENTION, 0)
        yield Advice(
            "scaled_dot_product_attention fell back to its mathematical form, "
            f"{format_share(_share(use, spent_ns))} of the window: types, head size or the mask rule the "
            "fused kernels out; torch.nn.attention.sdpa_kernel says why.",
            _operations(name, use, _MATH, "aten::bmm", "aten::_softmax"),
            _share(use, spent_ns),
            "kernels of kind attention",
        )
    elif (
        "aten::bmm" in names
        and softmax_ns
        and work.kernel_ns
        and by_hand > _BY_HAND * work.kernel_ns
        and fused_ns < _FUSED * work.kernel_ns
    ):
        yield Advice(
            "Attention is computed in steps (bmm, softmax, bmm), "
            f"{format_share(by_hand / work.kernel_ns)} of the time of kernels: use "
            'scaled_dot_product_attention, in transformers attn_implementation="sdpa".',
            _operations(name, use, "aten::_softmax", "aten::bmm"),
            _share(use, min(by_hand, use.phases.compute_ns)),
            "kernels of kind attention",
        )


def _layout(name: str, use: DeviceUse) -> Iterator[Advice]:
    spent_ns = sum(one.total_ns for one in use.work.kernels if _LAYOUTS.search(one.name))
    if (share := _share(use, spent_ns)) >= _LAYOUT:
        yield Advice(
            f"Convolutions convert their layout, {format_share(share)} of the window: use "
            "memory_format=torch.channels_last for model and input.",
            _kernels(name, use, None, _LAYOUTS.pattern),
            share,
            "kernels named nchwToNhwc and nhwcToNchw",
        )


def _cast(name: str, use: DeviceUse) -> Iterator[Advice]:
    if (share := _share(use, use.work.cast_ns)) >= _CAST:
        yield Advice(
            f"Numbers change their type (aten::to) {format_share(share)} of the window: keep parameters, "
            "buffers and inputs in the type that they are used in, or let torch.compile fuse it.",
            _operations(name, use, "aten::copy_", "aten::_to_copy"),
            share,
            "kernels launched in aten::to",
        )


def _fill(name: str, use: DeviceUse) -> Iterator[Advice]:
    filling = [one for one in use.work.operations if one.name in _FILLS]
    if (share := _share(use, sum(one.device_ns for one in filling))) >= _FILL:
        most = max(filling, key=lambda one: one.device_ns)
        shapes = f", most with inputs {most.shapes}" if most.shapes else ""
        yield Advice(
            f"Memory is filled {format_share(share)} of the window{shapes}: use torch.empty where all of it "
            "is written anyway, and keep buffers.",
            _operations(name, use, *_FILLS),
            share,
            "operators aten::fill_ and aten::zero_",
        )


def _checkpoint(name: str, use: DeviceUse) -> Iterator[Advice]:
    if (share := _share(use, use.work.inside_ns.get(Inside.CHECKPOINT, 0))) >= _CHECKPOINT:
        yield Advice(
            f"Regions with activation checkpointing take {format_share(share)} of the window, a part of it to "
            "compute again what was computed before: if a memory snapshot shows room, do without it, "
            "or checkpoint fewer layers.",
            (name,),
            share,
            "activities inside checkpointed regions, and the peak of memory",
        )


def _offload(name: str, use: DeviceUse) -> Iterator[Advice]:
    moved = [one for one in use.work.copies if one.way in ("HtoD", "DtoH")]
    exposed = _share(use, use.phases.exposed_copy_ns)
    if {one.way for one in moved} == {"HtoD", "DtoH"} and exposed >= _OFFLOAD:
        sizes = ", ".join(f"{one.way} {format_size(one.size_bytes)}" for one in moved)
        yield Advice(
            f"Data goes to the host and back ({sizes}), which is exposed {format_share(exposed)} of the window: "
            "offload less, or prefetch it on a stream of its own.",
            _kernels(name, use, KernelKind.COPY),
            exposed,
            "exposed_copy_ns and copies",
        )


def _top_kernel(name: str, use: DeviceUse) -> Iterator[Advice]:
    """Say where a device that is the bound itself spends its time."""
    if use.verdict.verdict != GPU_BOUND or not use.work.kernels:
        return
    most = use.work.kernels[0]
    share = _share(use, most.total_ns)
    yield Advice(
        f"The device is busy. What takes most is {short_function(most.name)} ({most.kind}), "
        f"{format_share(share)} of the window in {most.times:,} runs.",
        (f"{name}/kernel/0",),
        share,
        "kernels",
    )


_RULES_OF_LOSS: Final[tuple[Rule, ...]] = (
    _loader, _pageable, _sync, _allocator, _host, _zero_grad, _communication, _offload,
)  # fmt: skip
_RULES_OF_WORK: Final[tuple[Rule, ...]] = (
    _tensor_cores, _attention, _layout, _cast, _fill, _checkpoint, _parallel, _top_kernel,
)  # fmt: skip
_RULES: Final = (*_RULES_OF_LOSS, *_RULES_OF_WORK)
