"""
Libraries by role for a program that calls CUDA, from their file names; also Python's files.

A stack shows where a program was, and much of it is not the program's own code: the CUDA libraries,
the code that carries a call from Python to C, the C library's waits. File names distinguish them.
They are the same in system folders, wheels and containers, except that a wheel can put a hash into
the name (``libcudart-9335f6a2.so.12``).
"""

import functools
import re
from collections.abc import Mapping
from typing import Final

CUDA: Final = "cuda"
DRIVER: Final = "driver"
PYTHON: Final = "python"
PYTHON_MODULE: Final = "python_module"
FOREIGN_CALLS: Final = "foreign_calls"
C_LIBRARY: Final = "c_library"
# The program's own, or a library that counts as its own: what it chose to call.
PROGRAM: Final = ""

# Whole file names up to ".so" or the end, as patterns; the first match counts.
_NAMES: Mapping[str, str] = {
    # The user-space driver, and what it loads.
    DRIVER: r"libcuda|libnvidia-[\w-]+|libcudadebugger",
    CUDA: (
        r"libcudart|libcublas(Lt)?|libcudnn(_\w+)?|libnccl|libcufftw?|libcurand|libcusparse(Lt)?"
        r"|libcusolver(Mg)?|libnvrtc(-builtins)?|libnvJitLink|libcupti|libcufile|libnvToolsExt"
        r"|libnvtx3interop"
    ),
    PYTHON: r"libpython\d(\.\d+)?\w*|python(\d(\.\d+)?\w*)?",
    FOREIGN_CALLS: r"libffi|_ctypes|_cffi_backend",
    # Those of the standard library that wait.
    PYTHON_MODULE: r"select|_socket|_ssl|_queue|_multiprocessing",
    C_LIBRARY: (
        r"libc|libpthread|libm|libdl|librt|libresolv|ld|ld-linux[\w-]*|ld-musl-\w+|libc\.musl-\w+"
        r"|libstdc\+\+|libgcc_s|libc\+\+|libc\+\+abi|libgomp|libatomic|linux-vdso|\[vdso\]"
        r"|\[uprobes\]"
    ),
}
# After the name: a hash of auditwheel's or a version before ".so", or CPython's tag.
_TAIL = r"(?:-[0-9a-f]{8}|-\d[\d.]*)?(?:\.(?:cpython-|abi3|pypy).*|\.so.*)?"
# Of CPython, installed, in its sources or in an archive, without packages that were installed into
# it.
_STANDARD_LIBRARY = re.compile(
    r"(?:.*/)?(?:lib\w*/python[\w.]+|Lib|base_library\.zip)/(?!(?:site|dist)-packages/)(.*)",
    re.DOTALL,
)
# Frozen programs and archives have paths that begin where modules do.
_BEGINNING = re.compile(r"(?:/.*\.zip/)?((\w+)(?:\.py|/.*))", re.DOTALL)
# No script that uses threads has one of these names: it would be imported in their place.
_FROZEN = re.compile(
    "_compression|_weakrefset|abc|asyncio|bz2|codecs|collections|concurrent|contextlib|copy|ctypes"
    "|enum|functools|gzip|heapq|http|importlib|inspect|io|json|linecache|logging|lzma"
    "|multiprocessing|operator|os|pathlib|pickle|queue|random|re|runpy|selectors|shelve|shutil"
    "|signal|socket|socketserver|ssl|subprocess|tarfile|tempfile|threading|tokenize|traceback|types"
    "|typing|urllib|warnings|weakref|zipfile"
)
STANDARD_LIBRARY: Final = "lib/python/"
"""The start of the name of each source file of the standard library, as of ``source_of``."""
_REMEMBERED_NAMES = 4096


# When first called: most starts never need them.
@functools.cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((layer, re.compile(f"(?:{names}){_TAIL}")) for layer, names in _NAMES.items())


@functools.lru_cache(maxsize=_REMEMBERED_NAMES)
def layer_of(module: str) -> str:
    """Return the role of a library with this file name; ``PROGRAM`` for unknown ones."""
    for layer, pattern in _patterns():
        if pattern.fullmatch(module):
            return layer
    return PROGRAM


@functools.lru_cache(maxsize=_REMEMBERED_NAMES)
def source_of(file: str) -> str:
    """
    Return the name of a source file, from its path; standard library files have one name.

    That is ``lib/python/queue.py``, wherever Python is installed, and also where it was frozen into
    a program. All others have their path.
    """
    if found := _STANDARD_LIBRARY.fullmatch(file):
        return f"{STANDARD_LIBRARY}{found[1]}"
    found = _BEGINNING.fullmatch(file)
    return f"{STANDARD_LIBRARY}{found[1]}" if found and _FROZEN.fullmatch(found[2]) else file


def is_standard_library(file: str) -> bool:
    """Return whether a source file, by its path, is of Python's standard library."""
    return file.startswith("<frozen ") or source_of(file).startswith(STANDARD_LIBRARY)
