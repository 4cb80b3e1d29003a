"""What a thread was at work on, and the line that asked for it."""

import pytest

from otel_gpu.enrich.known_work import ADVICE, KNOWN_WORK, WorkKind, find_work, work_of
from otel_gpu.enrich.stack_table import find_place
from otel_gpu.wire.frames import Frame

LIB = "/usr/lib/python3.11"
SITE = "/venv/lib/python3.11/site-packages"
APP = "slow_augment /app/pictures.py:88"
MAIN = "main /app/pictures.py:120"


def stack(*lines):
    """Frames, innermost first: ``function module`` is native, ``function file:line`` is Python."""
    frames = []
    for line in lines:
        function, _, place = line.partition(" ")
        file, colon, number = place.rpartition(":")
        name = function.replace("-", "")
        frames.append(
            Frame("cpython", name, file, int(number))
            if colon
            else Frame("native", name, module=place)
        )
    return tuple(frames)


def working(*lines):
    frames = stack(*lines)
    work, place = find_work(frames, find_place(frames))
    return work, place and place.function


@pytest.mark.parametrize(
    ("work", "frames"),
    [
        (WorkKind.GC, ["deduce_unreachable python3.11", "gc_collect_main python3.11"]),
        (WorkKind.GC, ["- libpython3.13.so.1.0", "_PyGC_Collect libpython3.13.so.1.0"]),
        (WorkKind.TOKENISING, ["- tokenizers.abi3.so"]),
        (WorkKind.TOKENISING, [f"encode {SITE}/transformers/models/gpt2/tokenization_gpt2.py:9"]),
        (WorkKind.IMAGE_DECODING, ["jpeg_fill_bit_buffer libjpeg-8a13c6e0.so.62.4.0"]),
        (WorkKind.IMAGE_DECODING, ["- _imaging.cpython-311-x86_64-linux-gnu.so"]),
        (WorkKind.IMAGE_DECODING, ["cv::resize cv2.abi3.so"]),
        (
            WorkKind.IMAGE_DECODING,
            [
                "inflate_fast libz-ab12cd34.so.1.2",
                f"load {SITE}/PIL/ImageFile.py:300",
                f"convert {SITE}/PIL/Image.py:1000",
            ],
        ),
        (WorkKind.LOGGING, [f"encode {LIB}/json/encoder.py:3", f"emit {LIB}/logging/__init__.py:1100"]),
        (
            WorkKind.CHECKPOINTING,
            ["- _pickle.cpython-311-x86_64-linux-gnu.so", f"save {SITE}/torch/serialization.py:850"],
        ),
        (WorkKind.CHECKPOINTING, [f"dump {LIB}/pickle.py:487"]),
        (
            WorkKind.SENDING,
            [
                "- _pickle.cpython-311-x86_64-linux-gnu.so",
                f"ForkingPickler.dumps {LIB}/multiprocessing/reduction.py:51",
            ],
        ),
        (WorkKind.COMPILATION, [f"transform {SITE}/torch/_dynamo/convert_frame.py:9"]),
        (WorkKind.COMPILATION, ["nvrtcCompileProgram libnvrtc.so.12"]),
        (WorkKind.IMPORT, ["- python3.11", "_compile_bytecode <frozen importlib._bootstrap_external>:729"]),
        (WorkKind.JSON, ["scan_once _json.cpython-311-x86_64-linux-gnu.so", f"loads {LIB}/json/__init__.py:3"]),
        (WorkKind.JSON, ["- orjson.cpython-311-x86_64-linux-gnu.so"]),
        (WorkKind.COLLATING, [f"default_collate {SITE}/torch/utils/data/_utils/collate.py:9"]),
        (WorkKind.TABLES, ["- libarrow.so.1500", f"read {SITE}/pyarrow/parquet/core.py:1"]),
        (WorkKind.COMPRESSION, ["ZSTD_decompress libzstd.so.1.5.5"]),
        (WorkKind.COMPRESSION, ["inflate libpython3.11.so.1.0", "zlib_decompress libpython3.11.so.1.0"]),
        (WorkKind.IMPORT, ["- libpython3.11.so.1.0", "PyImport_ImportModule libpython3.11.so.1.0"]),
        (WorkKind.IMAGE_DECODING, ["- image.so"]),
        (WorkKind.CHECKPOINTING, ["save libpython3.11.so.1.0", "_pickle_dumps libpython3.11.so.1.0"]),
        (WorkKind.MEDIA_DECODING, ["avcodec_send_packet libavcodec.so.59"]),
        (None, ["multiply _multiarray_umath.cpython-311-x86_64-linux-gnu.so"]),
        (None, [f"_fn {SITE}/torch/_dynamo/eval_frame.py:9"]),
        (None, []),
    ],
)  # fmt: skip
def test_work_is_known_by_the_frames_that_a_line_asked_for(work, frames):
    """The line is that of the program: a library that does known work is called by it."""
    place = "_fn" if work is None and frames and "eval_frame" in frames[0] else "slow_augment"
    assert working(*frames, APP, MAIN) == (work, place)


def test_what_called_the_line_says_nothing_of_it():
    """A program that runs inside of a compiler's frames is no compiler."""
    assert working(APP, f"call {SITE}/torch/_dynamo/convert_frame.py:9", MAIN) == (
        None,
        "slow_augment",
    )


def test_garbage_collection_is_known_wherever_it_strikes():
    """It is no part of the work that it interrupts."""
    frames = ["gc_collect_main python3.11", f"loads {LIB}/json/__init__.py:3"]
    assert working(*frames, APP) == (WorkKind.GC, "slow_augment")


@pytest.mark.parametrize("folder", ["av", "PIL", "tokenizers", "pandas", "simplejson", "wandb"])
def test_a_folder_of_the_programs_own_is_no_library(folder):
    """It may be called like one; so may a user, and a program."""
    assert working(f"step /srv/{folder}/train.py:3", APP) == (None, "step")
    assert working("step image", "main image") == (None, "step")


def test_functions_of_the_collector_are_the_interpreters():
    """A program may call its own functions so."""
    assert working("update_refs libmine.so", APP) == (None, "slow_augment")


def test_the_top_level_of_a_module_is_its_import():
    """The line is the import statement's, through all modules that import each other."""
    imports = [
        f"<module> {SITE}/torch/_tensor.py:3",
        "_call_with_frames_removed <frozen importlib._bootstrap>:241",
        f"<module> {SITE}/torch/__init__.py:5",
        "_call_with_frames_removed <frozen importlib._bootstrap>:241",
        "_find_and_load <frozen importlib._bootstrap>:1176",
    ]
    assert working(*imports, APP, MAIN) == (WorkKind.IMPORT, "slow_augment")
    assert working("<module> /app/train.py:3", "_run_code <frozen runpy>:88") == (None, "<module>")


def test_a_program_without_python_is_known_by_its_functions():
    """Its own function called the library."""
    frames = ["decode_mcu_slow libjpeg.so.62", "jpeg_read_scanlines libjpeg.so.62"]
    assert working(*frames, "read_image loader", "main loader") == (
        WorkKind.IMAGE_DECODING,
        "read_image",
    )
    assert working("assemble ptxas", "main ptxas") == (WorkKind.COMPILATION, "assemble")


def test_where_the_place_is_not_known_the_work_may_be():
    """A stack without names of the program's own."""
    assert working("jpeg_fill_bit_buffer libjpeg.so.62", "- python3.11") == (
        WorkKind.IMAGE_DECODING,
        "jpeg_fill_bit_buffer",
    )
    assert find_work((), None) == (None, None)


def test_each_kind_of_work_has_advice_and_a_way_to_be_known():
    """One row of the table for each."""
    assert [row.work for row in KNOWN_WORK] == list(dict.fromkeys(row.work for row in KNOWN_WORK))
    assert set(ADVICE) == set(WorkKind)
    assert all(row.files or row.modules or row.functions for row in KNOWN_WORK)
    assert all(row.advice.endswith(".") and len(row.advice) < 240 for row in KNOWN_WORK)


@pytest.mark.parametrize("kind", ["kernel", "cut"])
def test_frames_of_other_kinds_are_no_work(kind):
    """What a kernel function is called says nothing of a library."""
    assert work_of(Frame(kind, "jpeg_read_header", module="libjpeg.so.62")) is None
