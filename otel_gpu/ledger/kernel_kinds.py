"""What kernels do, as their names say."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from otel_gpu.decode.device import DeviceActivities, Names, Work


class KernelKind(StrEnum):
    """A kind of work of a device."""

    COMMUNICATION = "communication"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    GEMM = "gemm"
    QUANTIZATION = "quantization"
    EXPERTS = "experts"
    NORMALIZATION = "normalization"
    OPTIMIZER = "optimizer"
    SOFTMAX = "softmax"
    LAYOUT = "layout"
    SORT = "sort"
    INDEX = "index"
    REDUCTION = "reduction"
    CAST = "cast"
    FILL = "fill"
    RANDOM = "random"
    ELEMENTWISE = "elementwise"
    FUSED = "fused"
    COPY = "copy"
    GRAPH = "graph"
    OTHER = "other"


_COMMUNICATION: Final = (
    r"nccl|rccl|cross_device_reduce|mscclpp|nvshmem|symm_mem|multimem_|deep_ep|(?:intra|inter)node::"
    r"|all_?reduce_|(?:one|two)_shot_all|all_?gather_kernel|reduce_scatter_kernel|all_?to_?all_kernel"
)
# The first that fits says it. Words of torch's own templates stand in nearly all names
# (elementwise_kernel, at::native::), so what is special comes first.
_KINDS: Sequence[tuple[KernelKind, str]] = (
    (KernelKind.COMMUNICATION, _COMMUNICATION),
    (KernelKind.ATTENTION, r"flash|fmha|attention|sdpa|attn"),
    (KernelKind.QUANTIZATION, r"quantize|dequant|nf4|int8_cast|fp8_cast"),
    (KernelKind.EXPERTS, r"moe|expert|scatter2scatter"),
    (
        KernelKind.OPTIMIZER,
        r"multi_tensor_apply|fused_adam|adamw?_|lamb_|sgd_|optimizer|foreach",
    ),
    (
        KernelKind.NORMALIZATION,
        r"(?:batch|layer|group|instance|rms)_?norm|bn_(?:fw|bw)|batchnorm|bn_bwd|bn_fwd|norm_(?:fwd|bwd)",
    ),
    (KernelKind.LAYOUT, r"nchw|nhwc|transpose|permute|tensortransform|catarray"),
    (
        KernelKind.CONVOLUTION,
        r"conv(?!ert)|s?cudnn_\d+x|cask_cudnn|wgrad|dgrad|fprop|winograd|implicit_gemm|fft2d|depthwise|im2col|col2im",
    ),
    (
        KernelKind.GEMM,
        r"gemm|gemv|cutlass|cublas|splitk|s\d{3,5}(?:gemm|cudnn)|_mm_|matmul|nvjet|tensile|cijk_|bmm",
    ),
    (KernelKind.SOFTMAX, r"softmax|nll_loss|cross_entropy|mse_loss|_cce_"),
    (KernelKind.SORT, r"radix_?sort|sort_?(?:kernel|by|pairs)|topk|bitonic|devicesort|gathertopk"),
    (
        KernelKind.INDEX,
        r"index|gather|scatter|embedding|unrolled_elementwise_kernel_for_index|masked_select",
    ),
    (KernelKind.RANDOM, r"distribution_|philox|dropout|bernoulli|curand"),
    (KernelKind.CAST, r"copy_kernel|direct_copy|loadwithcast|to_copy|convert_"),
    (KernelKind.FILL, r"fillfunctor|(?<!pre)fill_kernel|memset|zero_kernel"),
    (KernelKind.REDUCTION, r"reduce_kernel|reduce_|sum_kernel|argmax|argmin|cumsum|scan"),
    (KernelKind.FUSED, r"triton_"),
    (
        KernelKind.ELEMENTWISE,
        r"elementwise|pointwise|vectorized|functor|activation|g[eu]lu|silu|(?:swi|ge|re)glu",
    ),
)
_PATTERNS: Sequence[tuple[KernelKind, re.Pattern[str]]] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS
)
# Fewer letters of it would be part of other words.
_TENSOR_CORES = re.compile(
    r"tensor_?op|(?:16816|1688|884|161616|64x\d+x16|wgmma|hmma|imma)|_h1688|_i8816|xmma|nvjet|sm(?:80|90|100)_x",
    re.IGNORECASE,
)
_COPY_WAY = re.compile(r"\b([HDP])to([HDP])\b")


def kinds_of(names: Names, activities: DeviceActivities) -> list[KernelKind]:
    """Return the kind of each activity's name, by the number of the name."""
    found = [KernelKind.OTHER] * len(names)
    for name, kind in set(zip(activities.names, activities.kinds, strict=True)):
        found[name] = _OF_WORK.get(Work(kind)) or kind_of(names[name])
    return found


def kind_of(name: str) -> KernelKind:
    """Return what a kernel does."""
    for kind, pattern in _PATTERNS:
        if pattern.search(name):
            return kind
    return KernelKind.OTHER


def uses_tensor_cores(name: str) -> bool:
    """Say whether the name of a kernel is one of those that use tensor cores."""
    return _TENSOR_CORES.search(name) is not None


def copy_way(name: str) -> str:
    """Return from where to where a copy went, as in HtoD; empty: its name does not say it."""
    found = _COPY_WAY.search(name)
    return found[0] if found else ""


def is_pageable(name: str) -> bool:
    """Say whether the host's side of a copy can be paged out."""
    return "Pageable" in name


_OF_WORK = {Work.COPY: KernelKind.COPY, Work.FILL: KernelKind.FILL, Work.GRAPH: KernelKind.GRAPH}
