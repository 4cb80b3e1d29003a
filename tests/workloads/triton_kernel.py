"""A kernel that Triton compiles: it reads the source of its file."""

import triton
import triton.language as tl


@triton.jit
def add_one(values, BLOCK: tl.constexpr):  # noqa: N803 -- as Triton has it
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(values + at, tl.load(values + at) + 1)
