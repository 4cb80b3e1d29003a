"""
Known work: what a thread worked on, from the frames of its stack, and what to do about it.

Libraries do the work that a program's line asked for. The line is the program's own, so the frames
between it and the innermost frame show what it asked for.
"""

# Which frame decides
# -------------------
#
# The outermost of the known frames, as that is what the line asked for: a checkpoint is pickled, a
# PNG is inflated, a log record can be written as JSON. Only garbage collection is never asked for
# by the code that it interrupts.
#
# A library's Python code counts as the program's own if nothing else is known. If its frame is
# known work, the line that called it is more useful, and so is the import statement for which the
# top level of a module runs.

import functools
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, NamedTuple

from otel_gpu.enrich.identity import libraries
from otel_gpu.enrich.identity.libraries import is_standard_library, layer_of, source_of
from otel_gpu.formatting.field_types import one_of
from otel_gpu.limits.caches import remembered
from otel_gpu.wire.frames import Frame, FrameType


class WorkKind(StrEnum):
    """Work that is known by its frames."""

    GC = "gc"
    TOKENISING = "tokenising"
    IMAGE_DECODING = "image decoding"
    MEDIA_DECODING = "audio and video decoding"
    COLLATING = "collating"
    CHECKPOINTING = "checkpointing"
    SENDING = "pickling for another process"
    LOGGING = "logging"
    COMPILATION = "compilation"
    IMPORT = "import"
    JSON = "json"
    TABLES = "table processing"
    COMPRESSION = "compression"


WorkName = Annotated[str, one_of(WorkKind)]
"""The text of a ``WorkKind``."""


class KnownWork(NamedTuple):
    """
    A kind of work, how it is recognized, and what to do about it.

    Attributes:
        work: The kind.
        advice: A sentence or two.
        files: Ends of the paths of Python files, as a pattern; empty: none.
        modules: File names of libraries and executables, up to ``.so``, as a pattern.
        functions: Names of native functions, as a pattern.
        layer: If set, the functions count in such a library only.
    """

    work: WorkKind
    advice: str
    files: str = ""
    modules: str = ""
    functions: str = ""
    layer: str = ""


# Where packages are installed: a program can have a folder of its own with such a name.
_INSTALLED = r"(?:site|dist)-packages/(?:.*/)?"

# If two rows match a frame, the first one counts.
KNOWN_WORK: tuple[KnownWork, ...] = (
    KnownWork(
        WorkKind.GC,
        "Python's garbage collector ran on the thread's time. Collect between epochs (gc.disable, "
        "gc.collect), exempt what stays (gc.freeze), or raise gc.set_threshold.",
        functions=r"_?PyGC_\w+|_PyGC_\w+|gc_\w+|collect_with_callback|deduce_unreachable"
        r"|subtract_refs|update_refs|visit_(decref|reachable|move)|move_(unreachable|legacy_\w+)"
        r"|delete_garbage|handle_weakrefs|mark_(all_)?reachable|untrack_(tuples|dicts)"
        r"|invoke_gc_callback",
        layer=libraries.PYTHON,
    ),
    KnownWork(
        WorkKind.TOKENISING,
        "Text was turned into tokens. Do it ahead of time and store the result, in batches with a "
        "fast tokenizer, or in more workers.",
        files=rf"{_INSTALLED}(tokenizers|sentencepiece|tiktoken|sacremoses)/.*"
        r"|transformers/(.*/)?tokenization_\w+\.py",
        modules=r"tokenizers|_sentencepiece|_tiktoken|libsentencepiece\w*",
    ),
    KnownWork(
        WorkKind.IMAGE_DECODING,
        "Images were decoded or changed on the CPU. Use more workers, decode on the GPU (nvJPEG, "
        "DALI, torchvision.io), or store images in the size that is needed.",
        files=rf"{_INSTALLED}((PIL|cv2|imageio|imagecodecs|skimage)/.*|turbojpeg\.py)"
        r"|torchvision/io/image\.py",
        modules=r"_imaging\w*|cv2|image(?=\.)|libjpeg|libturbojpeg|libpng\d*|libwebp\w*|libtiff|libopenjp2"
        r"|libopencv_\w+|libnvjpeg",
        functions=r"jpeg_\w+|decode_mcu\w*|png_(read|write)_\w+|WebPDecode\w*|tj3?Decompress\w*",
    ),
    KnownWork(
        WorkKind.MEDIA_DECODING,
        "Audio or video was decoded on the CPU. Use more workers, decode on the GPU (NVDEC), or "
        "store what is decoded.",
        files=rf"{_INSTALLED}((torchaudio|librosa|av|decord|torchcodec)/.*|soundfile\.py)"
        r"|torchvision/io/video\w*\.py",
        modules=r"libav(codec|format|util|filter)|libsw(scale|resample)|libsndfile|libdecord",
    ),
    KnownWork(
        WorkKind.COLLATING,
        "Samples were put together into a batch. Return arrays of one size, collate in the workers, "
        "and use fewer and larger items.",
        files=r"torch/utils/data/_utils/(collate|pin_memory)\.py",
    ),
    KnownWork(
        WorkKind.CHECKPOINTING,
        "State was saved or loaded. Save less often, in another thread or process "
        "(torch.distributed.checkpoint.async_save), or to a faster place.",
        files=rf"torch/serialization\.py|torch/distributed/checkpoint/.*|{_INSTALLED}safetensors/.*"
        r"|lib/python/(pickle|shelve)\.py",
        modules=r"_pickle|_safetensors_rust",
        functions=r"_?pickle_\w*(dump|load)\w*|_pickle_(Unp|P)ickler_\w+",
    ),
    KnownWork(
        WorkKind.SENDING,
        "Objects were pickled for another process. Send tensors (shared memory) or arrays and not "
        "objects, and fewer and larger items.",
        files=r"lib/python/multiprocessing/(queues|connection|reduction|managers)\.py"
        r"|torch/multiprocessing/(queue|reductions)\.py",
    ),
    KnownWork(
        WorkKind.LOGGING,
        "The program wrote logs or metrics. Log less in the loop, format only what is written, or "
        "hand records to another thread (logging.handlers.QueueHandler).",
        files=r"lib/python/logging/\w+\.py|torch/utils/tensorboard/.*"
        rf"|{_INSTALLED}(loguru|structlog|tqdm|wandb|mlflow|tensorboardX)/.*",
    ),
    KnownWork(
        WorkKind.COMPILATION,
        "Code was compiled. Compile before it counts, keep the caches (TORCHINDUCTOR_CACHE_DIR, "
        "TRITON_CACHE_DIR, CUDA_CACHE_PATH), and keep shapes that change from compiling again "
        "(dynamic=True).",
        # Code that runs at each call of a compiled function is not compilation.
        files=r"torch/_dynamo/(?!eval_frame|external_utils|decorators)\w+(/\w+)*\.py"
        r"|torch/_inductor/(?!output_code|utils|cudagraph_\w+|runtime/triton_heuristics)\w+(/\w+)*\.py"
        r"|torch/fx/(?!graph_module)\w+(/\w+)*\.py|torch/utils/cpp_extension\.py"
        r"|triton/(compiler/\w+|backends/\w+/compiler)\.py"
        rf"|{_INSTALLED}numba/core/(compiler\w*|typeinfer|lowering|codegen)\.py",
        modules=r"libnvrtc(-builtins)?|libnvptxcompiler\w*|libnvJitLink|libtriton|libLLVM\w*|ptxas|cicc"
        r"|nvlink|cudafe\+\+|cc1(plus)?|fatbinary",
        functions=r"nvrtcCompileProgram|nvPTXCompiler\w+|nvJitLink\w+",
    ),
    KnownWork(
        WorkKind.IMPORT,
        "Modules were imported. Import them before the loop, and in a parent process before its "
        "workers are forked.",
        files=r"<frozen (importlib\._bootstrap(_external)?|zipimport)>"
        r"|lib/python/importlib/\w+\.py",
        functions=r"PyImport_\w+",
        layer=libraries.PYTHON,
    ),
    KnownWork(
        WorkKind.JSON,
        "JSON was read or written. Do it ahead of time, with a faster library (orjson), or keep the "
        "data in a binary format.",
        files=rf"(lib/python/json|{_INSTALLED}simplejson)/\w+\.py",
        modules=r"_json|orjson|ujson|rapidjson|_speedups",
    ),
    KnownWork(
        WorkKind.TABLES,
        "Tables were read or changed. Do it ahead of time, read only the columns that are needed, or "
        "use more workers.",
        files=rf"{_INSTALLED}(pandas|pyarrow|polars|duckdb)/.*",
        modules=r"libarrow\w*|libparquet\w*|polars|duckdb",
    ),
    KnownWork(
        WorkKind.COMPRESSION,
        "Data was compressed or decompressed. Use a faster method (lz4, zstd), or store what is read "
        "often without.",
        files=r"lib/python/(gzip|bz2|lzma|zipfile|tarfile|_compression)(/\w+)*\.py",
        modules=r"libz|zlib|libzstd|_?zstd\w*|liblz4|_?lz4\w*|libbz2|_bz2|liblzma|_lzma|libsnappy"
        r"|libbrotli\w*|_brotli",
        functions=r"zlib_(de)?compress\w*|(in|de)flate(_\w+)?|ZSTD_\w+|LZ4_\w+|BZ2_\w+|lzma_\w+",
    ),
)
ADVICE = {row.work: row.advice for row in KNOWN_WORK}
"""What to do about each."""

# After a library's name: a hash or version, and CPython's tag.
_TAIL = r"(?:[-.][\w.+-]+)?"
_IMPORTS = re.compile(r"<frozen importlib\._bootstrap(_external)?>")
_TOP_LEVEL = "<module>"
_REMEMBERED = 4096


class _Pattern(NamedTuple):
    row: KnownWork
    files: re.Pattern[str]
    modules: re.Pattern[str]
    functions: re.Pattern[str]


_NOTHING = r"(?!)"


@functools.cache
def _patterns() -> Sequence[_Pattern]:
    # Not before the first stack: programs would start 9 ms later.
    return tuple(
        _Pattern(
            row,
            files=re.compile(rf"(?:.*/)?(?:{row.files or _NOTHING})", re.DOTALL),
            modules=re.compile(rf"(?:{row.modules or _NOTHING}){_TAIL}"),
            # A compiler can split a function in parts.
            functions=re.compile(rf"(?:{row.functions or _NOTHING})(?:\..*)?"),
        )
        for row in KNOWN_WORK
    )


class Working(NamedTuple):
    """What a thread worked on; ``place`` is the line of the program that asked for it."""

    work: WorkKind | None
    place: Frame | None


def find_work(frames: Sequence[Frame], place: Frame | None) -> Working:
    """
    Return what is known of the work of a thread.

    Args:
        frames: Its stack, innermost first.
        place: The innermost of them of the program's own code, from ``find_place``; it can be a
            library's.
    """
    end = frames.index(place) + 1 if place in frames else len(frames)
    found = [work for frame in frames[:end] if (work := work_of(frame))]
    work = WorkKind.GC if WorkKind.GC in found else found[-1] if found else None
    if place is None:
        return Working(work, None)
    for outer in range(end - 1, len(frames)):
        frame = frames[outer]
        if _is_imported(frames, outer):
            # Everything that runs then is for the import.
            work = work if work is WorkKind.GC else WorkKind.IMPORT
        elif _is_own(frame, place):
            return Working(work, frame)
    return Working(work, place)


def _is_own(frame: Frame, place: Frame) -> bool:
    # Whether a frame is of the program's own code, without known work.
    if frame.kind != place.kind:
        return False
    if frame is place:
        return work_of(frame) in (None, WorkKind.GC)
    if frame.kind == FrameType.PYTHON:
        own = bool(frame.function or frame.file) and not is_standard_library(frame.file)
    else:
        own = bool(frame.function) and layer_of(frame.module) == libraries.PROGRAM
    return own and work_of(frame) is None


def _is_imported(frames: Sequence[Frame], index: int) -> bool:
    frame = frames[index]
    if frame.kind != FrameType.PYTHON or frame.function != _TOP_LEVEL:
        return False
    caller = next((other for other in frames[index + 1 :] if other.kind == FrameType.PYTHON), None)
    return caller is not None and _IMPORTS.fullmatch(caller.file) is not None


@remembered("known_work", _REMEMBERED, 300)
def work_of(frame: Frame) -> WorkKind | None:
    """Return the work that a frame is known for; None: not known."""
    if frame.kind == FrameType.PYTHON:
        source = source_of(frame.file)
        return next((p.row.work for p in _patterns() if p.files.fullmatch(source)), None)
    if frame.kind != FrameType.NATIVE:
        return None
    for row, _, modules, functions in _patterns():
        if modules.fullmatch(frame.module):
            return row.work
        in_layer = not row.layer or layer_of(frame.module) == row.layer
        if in_layer and functions.fullmatch(frame.function):
            return row.work
    return None
