"""Short forms of names, and of texts in a column: those that differ read differently."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.report.wording.short_names import cut_apart, short_names

KERNELS = Path(__file__).parents[2] / "state" / "kernel_names.tsv"
PRODUCTS = [
    f"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_{size}>(T1::Params)"
    for size in ("64x64_64x6_tn_align8", "128x64_64x3_tn_align8")
]


def test_kernels_of_one_name_have_behind_it_what_differs():
    """Two templates of CUTLASS are no Kernel2 each."""
    assert [*short_names(PRODUCTS).values()] == [
        "Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>",
        "Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_tn_align8>",
    ]
    assert [*short_names(PRODUCTS[:1]).values()] == ["Kernel2"]


def test_real_kernels_read_differently():
    """All of the table, whatever they have in common."""
    with KERNELS.open() as lines:
        names = [row["name"] for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]  # fmt: skip

    found = short_names(names)

    assert len(set(found.values())) == len(set(names))
    assert max(map(len, found.values())) <= 80


@pytest.mark.parametrize(
    ("texts", "width", "cuts"),
    [
        (["short", "alike"], 5, ["short", "alike"]),
        (["longer than that", "alike"], 9, ["longer t…", "alike"]),
        (["train.py(7): forward_a", "train.py(7): forward_b"], 14, ["trai…forward_a", "trai…forward_b"]),
        (["the same text", "the same text"], 6, ["the s…", "the s…"]),
        (["train_resnet.py (38224)"], 18, ["train_res… (38224)"]),
        (["loop.py:2481 run"], 11, ["loop.py:…"]),
    ],
)  # fmt: skip
def test_texts_are_cut_where_they_do_not_differ(texts, width, cuts):
    """At the end; in the middle, if they would be alike then."""
    assert cut_apart(texts, width) == cuts


@given(st.lists(st.text("abc:<", min_size=1, max_size=40), max_size=12), st.integers(8, 30))
def test_no_text_is_wider_than_its_column_and_none_is_another_one(texts, width):
    """Whatever they have in common."""
    cuts = cut_apart(texts, width)

    assert all(len(cut) <= width for cut in cuts)
    assert len(set(cuts)) == len(set(texts))
    assert all(cut == text for cut, text in zip(cuts, texts, strict=True) if len(text) <= width - 2)
