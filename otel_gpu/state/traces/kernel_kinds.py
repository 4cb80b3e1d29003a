"""
The kind of work of a kernel, by its name; ``tests/unit/state/kernel_names.tsv`` has real names.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from otel_gpu.wire.device_activity import MIGRATION, DeviceActivities, Names, Work


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


# The first match names the kind. Special ones come first: nearly all names of PyTorch contain words
# of its own templates (elementwise_kernel, at::native::).
_KINDS: Sequence[tuple[KernelKind, str]] = (
    # torch.compile names these after everything that is fused in them, including a matrix product
    # beside it.
    (KernelKind.FUSED, r"^triton_(?:poi|red|per|for)_"),
    (
        KernelKind.COMMUNICATION,
        (
            r"nccl|rccl|msccl|cross_device_reduce|nvshmem|symm_mem|multimem_|deep_ep|(?:intra|inter)node::"
            r"|all_?reduce_|(?:one|two)_shot_all|all_?gather_kernel|reduce_scatter_kernel|all_?to_?all_kernel"
        ),
    ),
    (KernelKind.COPY, r"rocclr_copyBuffer"),
    # Kernels that write the cache of attention contain its names.
    (KernelKind.INDEX, r"reshape_and_cache|concat_and_cache|store_kv_?cache|kv_?cache_page"),
    (
        KernelKind.ATTENTION,
        (
            r"flash(?!infer)|fmha|attention|sdpa|attn|With(?:Paged|Ragged)?KVCacheKernel|(?<![a-z])mla_|kernel_mha|(?<![a-z])[gm]qa_|dot_do_o"
            r"|_fwd_(?:grouped_)?kernel_stage|(?<![a-z])PA_A\d+W\d+"
        ),
    ),
    (
        KernelKind.QUANTIZATION,
        r"quantize|dequant|nf4|int8_cast|fp8_cast|scaled_quant|_quant_kernel|group_quant|act_quant|to_fp4",
    ),
    (KernelKind.EXPERTS, r"moe(?!ba)|expert|scatter2scatter|topk_?(?:gating|softmax)"),
    (
        KernelKind.OPTIMIZER,
        r"multi_tensor_apply|fused_adam|adamw?_|lamb_|sgd_|optimizer|foreach",
    ),
    (
        KernelKind.NORMALIZATION,
        (
            r"(?:batch|layer|group|instance|rms|qk)_?norm|bn_(?:fw|bw)|bn_bwd|bn_fwd|norm_(?:fwd|bwd)"
            r"|GammaBetaBackward|RowwiseMoments"
        ),
    ),
    (
        KernelKind.LAYOUT,
        r"(?:nchw|nhwc)_?(?:2|to)_?(?:folded)?(?:nchw|nhwc)_?(?:kernel|<|$)|nchwAddPadding",
    ),
    (
        KernelKind.CONVOLUTION,
        (
            r"conv(?!ert)|[hs]cudnn_|[hsi]\d{3,6}cudnn|cask_cudnn|wgrad|dgrad|fprop|winograd|implicit_gemm|fft[12]d_|depthwise"
            r"|im2col|col2im|igemm_(?:fwd|bwd|wrw)_gtc"
        ),
    ),
    # The second half of a scalar product of cuBLAS; its arguments name its product with a vector.
    (KernelKind.REDUCTION, r"(?<![a-z])dot_kernel|reduce_1Block_kernel"),
    (
        KernelKind.GEMM,
        r"(?<!fb)gemm|gemv|cutlass|cublas(?!Trsm)|splitk|(?<![a-z])(?:b?add)?b?mm(?![a-z])|mul_mat|matmul|nvjet|tensile|cijk_|marlin",
    ),
    (
        KernelKind.LAYOUT,
        r"transpose|(?<!no)permut|tensortransform|catarray|reformat|split_with_sizes",
    ),
    (KernelKind.SOFTMAX, r"softmax|nll_?loss|NLLCriterion|cross_entropy|mse_loss|_cce_"),
    (KernelKind.SORT, r"radix_?sort|sort_?(?:kernel|by|pairs)|topk|bitonic|devicesort|onesweep"),
    (KernelKind.ELEMENTWISE, r"rotary|(?<![a-z])rope_|_rope(?![a-z])"),
    (KernelKind.FILL, r"arange_cuda|linspace|fillBuffer"),
    (
        KernelKind.INDEX,
        r"index(?!_?t\b|type)|indices|gather|scatter|embedding|masked_select|partition_kernel|DeviceSelect|CompactInit",
    ),
    (KernelKind.RANDOM, r"distribution_|philox|dropout|bernoulli|curand"),
    (
        KernelKind.CAST,
        r"copy_kernel|direct_copy|loadwithcast|to_copy|convert_|convertTensor|bfloat16tofloat",
    ),
    (KernelKind.FILL, r"fillfunctor|(?<!pre)fill_kernel|memset|zero_kernel"),
    (
        KernelKind.REDUCTION,
        r"reduce_kernel|reduce_|sum_kernel|argmax|argmin|cumsum|(?<!chunk_)scan|histogram|reducebykey|pool(?:ing)?(?!ed)",
    ),
    (KernelKind.FUSED, r"triton_"),
    (
        KernelKind.ELEMENTWISE,
        (
            r"elementwise|pointwise|vectorized|functor|activation|_and_mul|g[eu]lu|silu|(?:swi|ge|re)glu"
            r"|SubTensorOp|op_(?:generic_)?tensor|scalePackedTensor"
        ),
    ),
)
# Names and patterns are both lower case: twice as fast as ignoring case.
_PATTERNS: Sequence[tuple[KernelKind, re.Pattern[str]]] = tuple(
    (kind, re.compile(pattern.lower())) for kind, pattern in _KINDS
)
LONGEST_NAME: Final = 4_096
"""
Only this much of a name is searched; the longest of PyTorch have 5,000 characters, with the kind at
the start.
"""
_COPY_WAY = re.compile(r"\b([HDP])to([HDP])\b")


def kinds_of(names: Names, activities: DeviceActivities) -> list[KernelKind]:
    """Return the kind of each activity's name, by the number of the name."""
    found = [KernelKind.OTHER] * len(names)
    for name, kind in set(zip(activities.names, activities.kinds, strict=True)):
        found[name] = _OF_WORK.get(Work(kind)) or kind_of(names[name])
    return found


def kind_of(name: str) -> KernelKind:
    """Return the kind of a kernel by its name; ``OTHER``: the name does not contain it."""
    lower = name[:LONGEST_NAME].lower()
    for kind, pattern in _PATTERNS:
        if pattern.search(lower):
            return kind
    return KernelKind.OTHER


def copy_way(name: str) -> str:
    """Return the direction of a copy, as HtoD; empty: its name does not contain it."""
    found = _COPY_WAY.search(name)
    return found[0] if found else ""


def is_migration(name: str) -> bool:
    """Return whether a copy moves pages of managed memory, on demand or ahead of it."""
    return name.startswith(MIGRATION)


def is_pageable(name: str) -> bool:
    """Return whether the host's side of a copy can be paged out."""
    return "Pageable" in name


_OF_WORK = {Work.COPY: KernelKind.COPY, Work.FILL: KernelKind.FILL, Work.GRAPH: KernelKind.GRAPH}
