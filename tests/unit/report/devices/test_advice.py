"""Advice about what a program should not do in each step, and about its work: said if it is so, and not else."""

import io

import pytest
from rich.console import Console

from otel_gpu.report.render.text.document import write_text
from tests.unit.importers.test_torch_trace import explain
from tests.unit.importers.traces import call, host, kernel, step, trace, write
from tests.unit.report.devices.test_builder import LOADER, launched

MULTI = LOADER.replace("Single", "Multi")
H100 = {"id": 0, "name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0}
COMPILES = "_compile.compile_inner (dynamo_timed)"


@pytest.fixture
def document(tmp_path):
    """What is said of events."""
    return lambda events, **head: explain(write(tmp_path / "trace.json", trace(events, **head)))


def steps(count, waits, loader=MULTI, length=1_000):
    """Steps of 1 ms, which wait so many µs for a loader and then compute."""
    events = []
    for number in range(count):
        start, wait = number * length, waits(number)
        events += [
            step(number, start, length), host(loader, start, wait),
            *launched((start + wait + 10, length - wait - 20), first=number + 1),
        ]  # fmt: skip
    return events


def said(document, events, words, **head):
    """The advice with these words; None: there is none."""
    found = [one for one in document(events, **head).advice if words in one.text]
    assert len(found) < 2
    return found[0] if found else None


def written(found):
    """The report as text."""
    out = io.StringIO()
    write_text(found, Console(file=out, width=200, color_system=None))
    return out.getvalue()


def test_waits_in_a_period_are_those_of_workers_that_end_together(document):
    """Every 4th step: deeper queues smooth that, and nothing else is said of the loader."""
    found = said(document, steps(16, lambda number: 600 if number % 4 == 1 else 5), "data loader")

    assert "Every 4 steps one waits for the data loader (4 of 16 steps)" in found.text
    assert "prefetch_factor of 3 or 4" in found.text
    assert found.gain_at_most == pytest.approx(4 * 605 / 16_000, abs=0.01)


@pytest.mark.parametrize(
    ("waits", "loader"), [(lambda number: 600, MULTI), (lambda number: 600 * (number % 4 == 1), LOADER)]
)  # fmt: skip
def test_other_waits_have_no_period(document, waits, loader):
    """Each step waits, or there are no workers."""
    assert "Every" not in said(document, steps(16, waits, loader), "ata loader").text


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_workers_that_are_started_anew_are_seen(document, epochs):
    """Once is no epoch, and without functions of Python nothing is known of it."""
    events = steps(12, lambda _: 5)
    starts = []
    for epoch in range(epochs):
        at = 12_000 + epoch * 2_000
        starts.append(
            host("torch/utils/data/dataloader.py(440): _get_iterator", at, 1_500, "python_function")
        )
        events += [step(12 + epoch, at, 2_000), *launched((at + 1_600, 390), first=100 + epoch)]
    found = said(document, [*events, *starts], "persistent_workers=True")

    assert (found is None) == (epochs == 1)
    assert said(document, events, "persistent_workers=True") is None
    if found:
        assert f"{epochs} times" in found.text
        assert found.gain_at_most == pytest.approx(
            1_500 * epochs / (12_000 + 2_000 * epochs), abs=0.01
        )


def test_compiling_again_is_seen(document):
    """The time that the device was idle for it, and in which steps."""
    events = steps(8, lambda number: 700 if number in (2, 5) else 5, COMPILES)
    kept = [one for one in events if one["name"] != COMPILES or one["dur"] > 5]

    found = said(document, kept, "torch.compile compiled")

    assert "compiled 2 times while it was recorded, in 2 of 8 steps" in found.text
    assert found.gain_at_most == pytest.approx(1_400 / 8_000, abs=0.01)
    run = [
        dict(one, name="Torch-Compiled Region: 0/1") if one["name"] == COMPILES else one
        for one in kept
    ]
    assert said(document, run, "torch.compile compiled") is None


@pytest.mark.parametrize(("entry", "is_said"), [(1, False), (6, False), (7, True)])
def test_a_region_that_is_not_compiled_any_more_is_seen(document, entry, is_said):
    """The second number of a region is how often it was compiled before; eight is the limit."""
    events = [host(f"Torch-Compiled Region: 3/{entry}", 0, 100), *launched((10, 90))]

    found = said(document, events, "without being compiled")

    assert (found is not None) == is_said
    if found:
        assert f"compiled {entry + 1} times" in found.text
        assert found.gain_at_most is None


def convolution(start, kernels, first):
    """A convolution, and the kernels that it runs."""
    shape = {"Input Dims": [[8, 3, 224, 224]]}
    events = [host("aten::cudnn_convolution", start, 80 * len(kernels) + 80, **shape)]
    for number, name in enumerate(kernels):
        at = start + 80 * number
        events += [
            call("cudaLaunchKernel", at + 10, 20, first + number),
            kernel(at + 40, 79, first + number, name),
        ]
    return events


def test_algorithms_that_are_tried_out_are_seen(document):
    """One call runs many different kernels; others run one, or the same one often."""
    tried = [f"cudnn::algorithm_{number}" for number in range(6)]
    searching = [*convolution(0, tried, 1), *convolution(600, tried[:1], 20)]
    usual = [*convolution(0, tried[:5], 1), *convolution(600, tried[:1] * 9, 20)]

    found = said(document, searching, "cuDNN tries algorithms out")

    assert "1 times, for 1 shapes" in found.text
    assert found.gain_at_most == pytest.approx(6 * 79 / 679)
    assert said(document, usual, "cuDNN tries algorithms out") is None


NODE = "autograd::engine::evaluate_function: {}"


@pytest.mark.parametrize(
    ("around", "share"),
    [
        pytest.param([(NODE.format("CheckpointFunctionBackward"), 0, 300), ("CheckpointFunctionBackward", 0, 300)], 0.5, id="reentrant"),
        pytest.param([("torch/utils/checkpoint.py(306): backward", 0, 300)], 0.5, id="reentrant-python"),
        pytest.param([("torch/utils/checkpoint.py(1120): unpack_hook", 0, 150)], 0.5, id="python"),
        pytest.param([("torch/utils/checkpoint.py(488): checkpoint", 0, 300)], None, id="forward"),
        pytest.param([], None, id="none"),
    ],
)  # fmt: skip
def test_what_is_computed_again_is_not_the_backward_pass(document, around, share):
    """Of a checkpointed region half is computed again, and the other half uses it."""
    events = [
        *(host(name, start, length, "python_function" if ".py" in name else "cpu_op") for name, start, length in around),
        host("aten::mm", 1, 100), *launched((10, 90)),
        host(NODE.format("MmBackward0"), 151, 100), *launched((160, 90), first=2),
    ]  # fmt: skip

    found = said(document, events, "computes again")

    assert (found is None) == (share is None)
    if found:
        assert found.gain_at_most == pytest.approx(90 / 240)


def test_kernels_that_can_be_one_are_seen(document):
    """Of a framework that can fuse them, and did not."""
    name = "void at::native::vectorized_elementwise_kernel"
    plain = [*launched((10, 50), name=name), *launched((60, 90), first=2)]
    inside = host("aten::add", 0, 200)

    found = said(document, [inside, *plain], "torch.compile makes one of several")

    assert found.text.startswith("36 % of the time of kernels")
    assert found.gain_at_most == pytest.approx(50 / 140)
    # Not of what is no PyTorch, nor of what was compiled.
    assert said(document, plain, "torch.compile makes") is None
    fused = launched((150, 9), name="triton_poi_fused_add_0", first=3)
    assert said(document, [inside, *plain, *fused], "torch.compile makes") is None


@pytest.mark.parametrize(
    ("name", "model", "is_said"),
    [
        ("nvjet_tst_192x192_64x4_bf16", H100, True),
        ("nvjet_tst_192x192_64x4_e4m3", H100, False),
        ("nvjet_tst_192x192_64x4_bf16", H100 | {"computeMajor": 8}, False),
        ("void gemm<float>", H100, False),
    ],
)
def test_numbers_of_8_bits_are_for_devices_that_have_them(document, name, model, is_said):
    """And for programs whose time goes to tensor cores, with longer numbers."""
    events = [host("aten::mm", 0, 50), *launched((10, 90), name=name)]

    found = said(document, events, "8 bits", deviceProperties=[model])

    assert (found is not None) == is_said


def graphs(*calls, kernels=20):
    """Launches of graphs: when the call began, how long it took."""
    events = []
    for number, (start, length) in enumerate(calls, 1):
        events.append(call("cudaGraphLaunch", start, length, number))
        events += [kernel(start + length + 10 + 7 * at, 6, number) for at in range(kernels)]
    return events


def test_graphs_are_counted_as_graphs_and_not_advised(document):
    """Who launches 5 graphs has 5 launches, and already does what is advised."""
    events = graphs(*((10_000 * n, 6_000) for n in range(5)))

    found = document([host("aten::view", 0, 1), *events])

    (row,) = found.devices
    assert (row.launches.linked, row.launches.graphs) == (5, 5)
    assert "5 graph launches, 10 µs from call to start" in written(found)
    assert row.idle["launch_latency"] == 4 * 6_010_000
    assert not any("Launch less" in one.text for one in found.advice)


def test_one_long_launch_is_loading_and_not_many_launches(document):
    """Of a program without PyTorch: none of its settings, and of AMD none of CUDA."""
    short = [call("hipLaunchKernel", 40 * n, 5, n) for n in range(1, 9)]
    work = [kernel(40 * n + 10, 6, n) for n in range(1, 9)]
    long = [call("hipLaunchKernel", 400, 999_000, 9), kernel(999_405, 60, 9)]

    found = document([*short, *work, *long], deviceProperties=[MI300X])

    (one,) = found.advice
    assert one.text.startswith("The device was idle 100 % of the window while code was loaded")
    assert "Most of it (999 ms) in hipLaunchKernel." in one.text
    assert "CUDA" not in one.text
    assert "torch" not in one.text


FFMA = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x128x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4"
MI300X = H100 | {"name": "AMD Instinct MI300X"}
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1_AFC1"


def test_products_of_single_numbers_are_for_tf32_and_not_for_numbers_of_8_bits(document):
    """They use no tensor core, whatever library they are of."""
    events = [host("aten::mm", 0, 50), *launched((10, 90), name=FFMA)]

    found = document(events, deviceProperties=[H100])

    (text,) = [one.text for one in found.advice if "tensor cores" in one.text]
    assert text.startswith(
        'Use torch.set_float32_matmul_precision("high") (TF32), or torch.autocast: 100 % of'
    )
    assert found.devices[0].tensor_core_share == found.devices[0].tensor_core_unknown_share == 0


def test_matrix_cores_of_amd_are_named_so(document):
    """And no advice of CUDA is for them."""
    events = [host("aten::mm", 0, 50), *launched((10, 90), name=TENSILE)]

    found = document(events, deviceProperties=[MI300X])

    assert found.devices[0].tensor_core_share == 1
    assert "matrix cores, of kernel time 100 %" in written(found)
    assert not any("tensor cores" in one.text for one in found.advice)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (FFMA, "tensor cores: not known of 50 % of kernel time"),
        (TENSILE, "tensor cores, of kernel time 50 %, and not known of 50 %"),
    ],
)
def test_a_name_that_does_not_tell_leaves_the_tensor_cores_unknown(document, first, says):
    """Not: used by none."""
    events = [
        host("aten::mm", 0, 50), *launched((10, 90), name=first),
        *launched((100, 90), name="fused_moe_kernel", first=2),
    ]  # fmt: skip

    found = document(events, deviceProperties=[H100])

    assert found.devices[0].tensor_core_unknown_share == 0.5
    assert says in written(found)


@pytest.mark.parametrize(("back_bytes", "is_said"), [(4_000, True), (100, False)])
def test_what_goes_to_the_host_to_come_back_is_as_much_as_comes(document, back_bytes, is_said):
    """A large copy of a batch and a small one of a loss are no offload."""
    events = [
        *launched((10, 90)),
        *launched((100, 50), name="Memcpy HtoD (Pinned -> Device)", first=2, bytes=8_000),
        *launched((150, 50), name="Memcpy DtoH (Device -> Pinned)", first=3, bytes=back_bytes),
    ]

    assert (said(document, events, "to the host and back") is not None) == is_said


def test_advice_for_several_devices_is_given_once(document):
    """With the evidence of all of them."""
    events = [host("aten::to", 0, 90), *launched((10, 90)), *launched((10, 90), first=2)]
    events[-1]["args"]["device"] = 1
    events[-2]["tid"] = events[0]["tid"]

    found = said(document, events, "change their type")

    assert {one.partition("/")[0] for one in found.evidence} == {"0", "1"}


def test_tables_say_what_kinds_kernels_and_copies_took(document):
    """Per step, on average, and by where from and where to."""
    out = io.StringIO()
    copy = launched((1_000, 50), name="Memcpy HtoD (Pageable -> Device)", first=9, bytes=3 << 20)
    found = document([step(1, 0, 400), step(2, 400, 1_000), *launched((10, 90), (500, 30)), *copy])

    write_text(found, Console(file=out, width=200, color_system=None))

    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "gemm 2 120 µs 71 % 60 µs" in lines
    assert "gemm gemm 2 120 µs 71 % 60 µs 90 µs" in lines
    assert "HtoD, pageable 1 3.15 MB 50 µs 4 %" in lines


def test_a_trace_without_a_device_says_what_it_lacks(document):
    """And not that no call was slow, as it has no calls that could be."""
    out = io.StringIO()
    found = document([host("aten::mm", 0, 90)])

    write_text(found, Console(file=out, width=200, color_system=None))

    assert "it has no activity of a device" in out.getvalue()
    assert "ProfilerActivity.CUDA" in out.getvalue()
    for words in ("Incidents", "Verdict", "No CUDA call", "times of threads were not recorded"):
        assert words not in out.getvalue()
