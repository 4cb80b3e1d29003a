"""
Tensor cores: whether a kernel multiplies matrices in them (AMD: matrix cores), by its name.

Libraries put the instruction into the names of their kernels: ``ffma`` and ``simt`` are arithmetic
of single numbers, ``s16816``, ``tensor16x8x8``, ``wgmma`` and ``MI16x16x1`` are tensor and matrix
cores. Without such a word, as in nearly all names from Triton, the answer is not known.
"""

import re
from typing import Final

from otel_gpu.state.traces.kernel_kinds import LONGEST_NAME, KernelKind

MULTIPLIES: Final = frozenset(
    {
        KernelKind.ATTENTION,
        KernelKind.CONVOLUTION,
        KernelKind.GEMM,
        KernelKind.EXPERTS,
        KernelKind.FUSED,
        KernelKind.OTHER,
    }
)
"""Kinds of kernels that can multiply matrices; others use no tensor cores."""

# Helpers of a product, and products with single numbers, are matched first.
_PLAIN: Final = (
    # Instructions for single numbers.
    r"_(?:ffma|dfma|hfma2?|dp4a|idp4a)(?![a-z])|simt|naive|dlops|gemm_dl(?![a-z])",
    # Products with vectors, and what comes before and after a product.
    r"gemv|gemmk1_|dot_kernel|reduce_1Block|split_?k_?reduce|ReduceSplitK|globalKernel|reduce_wgrad|offsets_?kernel",
    r"im2col|col2im|winograd(?:Forward|Wgrad)|generateWinogradTiles|combine_?kernel|FwdCombine|_metadata",
    r"dot_do_o|bwd_convert_dq|[bf]wd_?preprocess|FmhaBwd(?:OGradDotO|ConvertQGrad)|mla_reduce",
    r"attention_v2_reduce|splitkv_reduce|rotary",
    # Attention of one token: products of a vector with the cache.
    r"paged_attention_v[12]_kernel|(?:Batch|Single)DecodeWith",
    # cuBLAS and cuDNN without the shape of an instruction: numbers of 16 to 64 bits, complex and
    # integer ones.
    r"(?:maxwell|volta|turing|ampere|ada|hopper)\w{0,20}_(?:[shdcz]|gc|gz|i)gemm(?![a-z0-9])(?!\w{0,60}mma\d)|magma_\w?gemm",
    r"(?<![a-z0-9])[hs]cudnn_|(?:ex|im)plicit_convolve_[hsd]gemm|wgrad_alg[01]_engine|dgrad_engine|fft[12]d_",
    # Attention of PyTorch where tensor cores do not take 32 bits, or do not exist.
    r"fmha_cutlass[FB]_f32_\w{0,40}sm(?:50|70|75)|fmha_cutlass[FB]_f16_\w{0,40}sm50",
    # Convolutions of MIOpen without a matrix core.
    r"miopenSp3AsmConv(?:_v|\dx\d|Rx)|GcnAsmConv|MIOpenConv|implicit_gemm_v\dr\d_(?!\w{0,60}xdlops)|depthwise|causal_conv1d",
    # The choice of experts for tokens.
    r"moe_align|topk_?(?:gating|softmax)|moe_?(?:sort|sum|topk)|expert_?maps|sort_expert|grouped_topk",
    r"^triton_(?:poi|red|per|for)_",
)
_TENSOR: Final = (
    # Instructions by their shapes, at the start of a name: numbers occur in arguments of templates,
    # too.
    r"(?<![a-z0-9])[shidcz](?:884|1684|1688|8816|8832|16816|16832|16864|161616|168128|168256)(?![0-9])",
    r"tensor_?op|tensor\d+x\d+x\d+|gmma|umma|wmma|xdl|(?<![a-z])(?:mfma|[hidb]mma(?![a-z]))|MMA_\d+x\d+x\d+",
    r"warpgroupsize|xmma_\w{1,60}?_(?:b?f16b?f16|tf32|e4m3|e5m2|i8i8)|igemm_(?:fwd|bwd|wrw)_gtcx",
    # The matrix instruction of Tensile.
    r"_MI\d+x\d+(?:x\d+){0,3}_",
    # Libraries that were written for tensor cores alone.
    r"nvjet|flash_(?:attn_)?(?:fwd|bwd)|FlashAttn(?:Fwd|Bwd)|fmha_cutlass[FB]_|fmhaSm\d+|PrefillWith",
    r"marlin(?:_moe_wna16)?::Marlin|deep_gemm::sm\d+|ck_tile(?:::|\d).{0,200}Fmha(?:Fwd|Bwd)",
)
_NOT: Final = re.compile("|".join(_PLAIN).lower())
_USED: Final = re.compile("|".join(_TENSOR).lower())
_TENSILE: Final = re.compile(r"cijk_\w{1,200}?_mt\d+x\d+x\d+_")


def uses_tensor_cores(name: str, kind: KernelKind) -> bool | None:
    """
    Return whether a kernel of a kind uses tensor or matrix cores; None: its name does not contain
    it.
    """
    if kind not in MULTIPLIES:
        return False
    lower = name[:LONGEST_NAME].lower()
    if _NOT.search(lower):
        return False
    if _USED.search(lower):
        return True
    # Tensile names the matrix instruction wherever one is used.
    return False if _TENSILE.search(lower) else None
