"""The probe table and the spellings that libraries export."""

import pytest

from otel_gpu import wire
from otel_gpu.wire.probe_symbols import VARIANTS, api_of_symbol, probes_of
from otel_gpu.wire.probe_table import API_BY_NUMBER, APIS, unknown_api


@pytest.mark.parametrize(
    ("symbol", "name", "spelling"),
    [
        ("cudaMalloc", "cudaMalloc", ""),
        ("cudaLaunchKernel_ptsz", "cudaLaunchKernel", "_ptsz"),
        ("cudaMemcpy_ptds", "cudaMemcpy", "_ptds"),
        ("cuMemAlloc_v2", "cuMemAlloc", "_v2"),
        ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync", "_v2_ptsz"),
        ("cuMemsetD8_v2_ptds", "cuMemsetD8", "_v2_ptds"),
        ("cudaGetDeviceProperties_v2", "cudaGetDeviceProperties", "_v2"),
        ("ncclAllReduce", "ncclAllReduce", ""),
        ("ncclAllReduceConfig", "ncclAllReduce", "Config"),
        ("ncclCommInitRankConfig", "ncclCommInitRank", "Config"),
        ("ibv_reg_mr_iova2", "ibv_reg_mr_iova2", ""),
    ],
)
def test_a_spelling_counts_as_its_api(symbol, name, spelling):
    """Versions and per-thread-stream spellings are the same API to a user."""
    api, variant = api_of_symbol(symbol)

    assert (api.name, VARIANTS[variant]) == (name, spelling)


@pytest.mark.parametrize(
    "symbol",
    [
        "cudaFoo",
        "cuMemAlloc_v9",
        "ibv_post_send",
        "malloc",
        "cudaMallocs",
        "cudaMallocConfig",
        "ncclAllReduce_v2",
        "",
    ],
)
def test_other_symbols_are_left_alone(symbol):
    """A spelling that is not known may have other arguments, so it gets no probe."""
    assert api_of_symbol(symbol) is None


def test_an_alias_gets_one_probe():
    """Two names of one function would count each call twice."""
    probes = probes_of(
        [("cudaMalloc_ptsz", 64), ("cudaMalloc", 64), ("cudaFree", 32), ("other", 16)]
    )

    assert [(probe.symbol, probe.file_offset) for probe in probes] == [
        ("cudaFree", 32),
        ("cudaMalloc", 64),
    ]


def test_what_nccl_calls_itself_gets_no_probe():
    """It has a CUDA runtime of its own; a program that has both linked in is asked for both."""
    functions = [("cudaMalloc", 64), ("ncclAllReduce", 32), ("pncclAllReduce", 32)]

    assert [probe.symbol for probe in probes_of(functions, "libnccl.so.2")] == ["ncclAllReduce"]
    assert len(probes_of(functions, "train")) == 2


@pytest.mark.parametrize(
    ("number", "layer"),
    [(99, wire.LAYER_RUNTIME), (191, wire.LAYER_DRIVER), (229, wire.LAYER_NCCL)],
)
def test_an_api_of_a_later_version_is_of_the_layer_of_its_number(number, layer):
    """As a recording of one has it."""
    assert unknown_api(number).layer == layer


def test_numbers_are_unique_and_fit_the_kernel_table():
    """Numbers are on the wire; the kernel side indexes an array with them."""
    assert len(API_BY_NUMBER) == len(APIS)
    assert len({api.name for api in APIS}) == len(APIS)
    assert all(0 < api.number < wire.MAX_APIS for api in APIS)


def test_layers_follow_names_and_numbers():
    """Readers of recordings tell the layer of an unknown API by its number."""
    for api in APIS:
        runtime = api.name.lstrip("_").startswith("cuda")
        nccl = api.name.startswith("nccl")
        assert (api.layer == wire.LAYER_RUNTIME) == runtime == (api.number < 100), api
        assert (api.layer == wire.LAYER_NCCL) == nccl == (192 <= api.number < 230), api
        verbs = api.name.startswith("ibv_")
        assert (api.layer == wire.LAYER_VERBS) == verbs == (api.number >= 230), api
        assert unknown_api(api.number).layer == api.layer
