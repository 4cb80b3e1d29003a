"""
Advice on the work of a device.

Each rule checks for work that can take less time, judged by kernels and operators.
"""

import re
from collections.abc import Iterator
from typing import Final

from otel_gpu.explain.traces.device_use import DeviceUse
from otel_gpu.report.devices.advice_evidence import (
    Rule,
    kernel_ids,
    knows_torch,
    operation_ids,
    share_of,
)
from otel_gpu.report.devices.types import Advice
from otel_gpu.report.wording.formats import format_share
from otel_gpu.state.traces.host_time import Inside
from otel_gpu.state.traces.kernel_kinds import KernelKind

# Minimal shares of the window.
_LAYOUT, _CAST, _FILL, _CHECKPOINT, _SEARCH = 0.02, 0.05, 0.05, 0.05, 0.05
_POINTWISE_SHARE = 0.05
# Shares of the time of kernels.
_ELIGIBLE, _NO_TENSOR_CORES, _BY_HAND, _FUSED = 0.2, 0.01, 0.2, 0.05
_FUSIBLE, _GEMM = 0.3, 0.5
_TENSOR_CORES_SINCE, _TF32_SINCE, _FLOAT8_SINCE = 70, 80, 89

_LAYOUTS = re.compile(r"nchwtonhwc|nhwctonchw", re.IGNORECASE)
_FLOAT32 = re.compile(r"sgemm|_f32f32_f32f32|cutlass_simt|scudnn")
_FLOAT8 = re.compile(r"e4m3|e5m2|fp8|float_?8", re.IGNORECASE)
_FILLS = ("aten::fill_", "aten::zero_")
_MATH = "aten::_scaled_dot_product_attention_math"
_PARALLEL = re.compile(r"(?<!Distributed)DataParallel\.forward")
_POINTWISE = (KernelKind.ELEMENTWISE, KernelKind.CAST, KernelKind.FILL, KernelKind.RANDOM)


def _tensor_cores(name: str, use: DeviceUse) -> Iterator[Advice]:
    work, compute = use.work, use.model.cuda_compute
    if not work.kernel_ns or compute < _TENSOR_CORES_SINCE:
        return
    eligible = work.eligible_ns / work.kernel_ns
    uses_ns = work.tensor_ns(True)  # noqa: FBT003 -- an answer
    if eligible < _ELIGIBLE or uses_ns > _NO_TENSOR_CORES * work.kernel_ns:
        return
    is_float = any(_FLOAT32.search(one.name) for one in work.kernels)
    tf32 = (
        'torch.set_float32_matmul_precision("high") (TF32), or '
        if is_float and compute >= _TF32_SINCE
        else ""
    )
    yield Advice(
        text=f"Use {tf32}torch.autocast: {format_share(eligible)} of the time of kernels is in operators that "
        f"can use tensor cores, and none of it does.",
        evidence=kernel_ids(name=name, use=use, kind=None, words="gemm|cudnn|conv|wgrad|dgrad"),
        gain_at_most=share_of(use, min(work.eligible_ns, use.phases.compute_ns)),
        check="tensor_core_share",
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
            text="scaled_dot_product_attention fell back to its mathematical form, "
            f"{format_share(share_of(use, spent_ns))} of the window: types, head size or the mask rule the "
            "fused kernels out; torch.nn.attention.sdpa_kernel says why.",
            evidence=operation_ids(name, use, _MATH, "aten::bmm", "aten::_softmax"),
            gain_at_most=share_of(use, spent_ns),
            check="kernels of kind attention",
        )
    elif (
        "aten::bmm" in names
        and softmax_ns
        and work.kernel_ns
        and by_hand > _BY_HAND * work.kernel_ns
        and fused_ns < _FUSED * work.kernel_ns
    ):
        yield Advice(
            text="Attention is computed in steps (bmm, softmax, bmm), "
            f"{format_share(by_hand / work.kernel_ns)} of the time of kernels: use "
            'scaled_dot_product_attention, in transformers attn_implementation="sdpa".',
            evidence=operation_ids(name, use, "aten::_softmax", "aten::bmm"),
            gain_at_most=share_of(use, min(by_hand, use.phases.compute_ns)),
            check="kernels of kind attention",
        )


def _layout(name: str, use: DeviceUse) -> Iterator[Advice]:
    spent_ns = sum(one.total_ns for one in use.work.kernels if _LAYOUTS.search(one.name))
    if (share := share_of(use, spent_ns)) >= _LAYOUT:
        use_one = (
            "use memory_format=torch.channels_last for model and input"
            if knows_torch(use)
            else "keep data in the layout that they take (NHWC)"
        )
        yield Advice(
            text=f"Convolutions convert their layout, {format_share(share)} of the window: {use_one}.",
            evidence=kernel_ids(name=name, use=use, kind=None, words=_LAYOUTS.pattern),
            gain_at_most=share,
            check="kernels named nchwToNhwc and nhwcToNchw",
        )


def _cast(name: str, use: DeviceUse) -> Iterator[Advice]:
    if (share := share_of(use, use.work.cast_ns)) >= _CAST:
        yield Advice(
            text=f"Numbers change their type (aten::to) {format_share(share)} of the window: keep parameters, "
            "buffers and inputs in the type that they are used in, or let torch.compile fuse it.",
            evidence=operation_ids(name, use, "aten::copy_", "aten::_to_copy"),
            gain_at_most=share,
            check="kernels launched in aten::to",
        )


def _fill(name: str, use: DeviceUse) -> Iterator[Advice]:
    filling = [one for one in use.work.operations if one.name in _FILLS]
    if (share := share_of(use, sum(one.device_ns for one in filling))) >= _FILL:
        most = max(filling, key=lambda one: one.device_ns)
        shapes = f", most with inputs {most.shapes}" if most.shapes else ""
        yield Advice(
            text=f"Memory is filled {format_share(share)} of the window{shapes}: use torch.empty where all of it "
            "is written anyway, and keep buffers.",
            evidence=operation_ids(name, use, *_FILLS),
            gain_at_most=share,
            check="operators aten::fill_ and aten::zero_",
        )


def _checkpoint(name: str, use: DeviceUse) -> Iterator[Advice]:
    work = use.work
    if (share := share_of(use, work.inside_ns.get(Inside.CHECKPOINT, 0))) >= _CHECKPOINT:
        yield Advice(
            text=f"Activation checkpointing computes again what was computed before, {format_share(share)} of the "
            "window: if a memory snapshot shows room, do without it, or checkpoint fewer layers.",
            evidence=operation_ids(name, use, "CheckpointFunctionBackward"),
            gain_at_most=share,
            check="activities inside checkpointed regions, and the peak of memory",
        )


def _searches(name: str, use: DeviceUse) -> Iterator[Advice]:
    searches = use.searches
    if (share := share_of(use, searches.device_ns)) >= _SEARCH:
        steps = f" in {searches.steps:,} of {len(use.steps):,} steps" if use.steps else ""
        shapes = f", for {searches.shapes:,} shapes" if use.trace.has_shapes else ""
        yield Advice(
            text=f"cuDNN tries algorithms out, {searches.times:,} times{steps}{shapes}, which takes "
            f"{format_share(share)} of the window: with torch.backends.cudnn.benchmark=True it does so for each "
            "new shape. Pad inputs to few shapes, or set it to False.",
            evidence=kernel_ids(name, use, KernelKind.CONVOLUTION),
            gain_at_most=share,
            check="calls of convolutions that run many different kernels",
        )


def _fusion(name: str, use: DeviceUse) -> Iterator[Advice]:
    work = use.work
    kinds = {kind: time_ns for kind, (_, time_ns) in work.by_kind().items()}
    pointwise_ns = sum(kinds.get(kind, 0) for kind in _POINTWISE)
    # A program without known operators may not use PyTorch, and fused kernels are compiled already.
    if not work.kernel_ns or not any(one.device_ns for one in work.operations):
        return
    share = share_of(use, min(pointwise_ns, use.phases.compute_ns))
    if share < _POINTWISE_SHARE or KernelKind.FUSED in kinds:
        return
    if pointwise_ns >= _FUSIBLE * work.kernel_ns:
        pointwise = format_share(pointwise_ns / work.kernel_ns)
        yield Advice(
            text=f"{pointwise} of the time of kernels goes to those that compute element by element, and read and "
            "write all of it each time: torch.compile makes one of several.",
            evidence=kernel_ids(name, use, KernelKind.ELEMENTWISE),
            gain_at_most=share,
            check="kernels of kind elementwise, cast and fill, and of kind fused",
        )


def _float8(name: str, use: DeviceUse) -> Iterator[Advice]:
    work = use.work
    _, gemm_ns = work.by_kind().get(KernelKind.GEMM, (0, 0))
    if use.model.cuda_compute < _FLOAT8_SINCE or gemm_ns < _GEMM * work.kernel_ns:
        return
    is_torch = any(one.device_ns for one in work.operations)
    if (
        is_torch
        and work.tensor_ns(True, KernelKind.GEMM) >= gemm_ns / 2  # noqa: FBT003 -- an answer
        and not any(_FLOAT8.search(one.name) for one in work.kernels)
    ):
        yield Advice(
            text=f"Multiplying matrices takes {format_share(gemm_ns / work.kernel_ns)} of the time of kernels, with "
            "tensor cores, which are twice as fast with numbers of 8 bits: if the model allows it, use "
            "torchao.float8 or Transformer Engine.",
            evidence=kernel_ids(name, use, KernelKind.GEMM),
            gain_at_most=share_of(use, min(gemm_ns, use.phases.compute_ns)) / 2,
            check="kernels of kind gemm",
        )


def _parallel(name: str, use: DeviceUse) -> Iterator[Advice]:
    if any(_PARALLEL.search(text) for text in use.trace.names):
        yield Advice(
            text="The program uses torch.nn.DataParallel, one process for several devices: use "
            "DistributedDataParallel.",
            evidence=(name,),
            gain_at_most=None,
            check="one trace for each device",
        )


RULES_OF_WORK: Final[tuple[Rule, ...]] = (
    _tensor_cores, _attention, _layout, _searches, _cast, _fill, _fusion, _float8, _checkpoint,
    _parallel,
)  # fmt: skip
