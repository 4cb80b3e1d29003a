"""
Real names of kernels: their kinds, and whether they use tensor cores.

The table has names from traces of PyTorch and Nsight Systems (origins kineto, hta, tracelens and nsys), and from
issues, profiles and kernel tables that users and libraries published (origins are the libraries). Where a published
name was cut, it is cut here.
"""

import csv
from collections import Counter
from pathlib import Path

import pytest

from otel_gpu.state.traces.kernel_kinds import KernelKind, kind_of
from otel_gpu.state.traces.tensor_cores import uses_tensor_cores

with Path(__file__).with_name("kernel_names.tsv").open() as lines:
    ROWS = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
ANSWERS = {"yes": True, "no": False, "unknown": None}


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['origin']}-{row['name'][:60]}" for row in ROWS])
def test_the_name_of_a_kernel_tells_its_kind_and_its_tensor_cores(row):
    """Each row of the table, both columns."""
    kind = kind_of(row["name"])

    assert kind == row["kind"]
    assert uses_tensor_cores(row["name"], kind) is ANSWERS[row["tensor_cores"]]


def test_the_table_has_names_of_all_libraries_and_kinds():
    """At least 150, with each answer, so that no rule can decide alone."""
    origins = Counter(row["origin"] for row in ROWS)
    named = {
        "cublas", "cublaslt", "cudnn", "cutlass2", "cutlass3", "triton", "inductor", "flash2", "flash3", "nccl",
        "vllm", "sglang", "hipblaslt", "tensile", "miopen", "ck", "rocprim", "kineto", "hta", "tracelens", "nsys",
    }  # fmt: skip

    assert len({row["name"] for row in ROWS}) == len(ROWS) >= 150
    assert named <= set(origins)
    assert {row["kind"] for row in ROWS} == set(KernelKind) - {KernelKind.GRAPH}
    assert min(Counter(row["tensor_cores"] for row in ROWS).values()) >= 20


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # Words that are parts of other words, and numbers that look like the shape of an instruction.
        ("void marlin::kernel<1125899906909960l, 884l, 16816l>", KernelKind.GEMM),
        ("my_simple_kernel_16816", KernelKind.OTHER),
        ("", KernelKind.OTHER),
    ],
)
def test_what_the_name_does_not_contain_is_not_known(name, kind):
    """A number in the arguments of a template is no instruction."""
    assert kind_of(name) is kind
    assert uses_tensor_cores(name, kind) is None


def test_kinds_that_multiply_no_matrices_use_no_tensor_cores():
    """Whatever else the name has."""
    assert uses_tensor_cores("tensorop_s16816gemm", KernelKind.NORMALIZATION) is False
    assert uses_tensor_cores("tensorop_s16816gemm", KernelKind.GEMM) is True
