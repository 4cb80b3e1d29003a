"""
Builds the stub CUDA libraries and the C workloads with the host's compiler.

Results are kept under ``.output/tests`` by the hash of their sources, so a test run
compiles only what changed and two runs at once do not disturb each other.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
STUBS = TESTS / "stubs"
WORKLOADS = TESTS / "workloads"
CACHE = TESTS.parent / ".output" / "tests"

# Each API must stay one function at one address, called by a real call instruction:
# nothing may be inlined, cloned, merged with its twin or turned into a jump.
FLAGS = (
    "-std=gnu11",
    "-O2",
    "-g",
    "-Wall",
    "-Werror",
    "-fno-ipa-icf",
    "-fno-ipa-cp",
    "-fno-ipa-sra",
    "-fno-optimize-sibling-calls",
    "-pthread",
)


class StubLibraries(NamedTuple):
    """The stub libraries, next to each other as CUDA's are."""

    runtime: Path
    driver: Path

    @property
    def folder(self) -> Path:
        """For ``LD_LIBRARY_PATH``."""
        return self.runtime.parent


@cache
def stub_libraries() -> StubLibraries:
    """Return the stub libcudart and libcuda, built when needed."""
    sources = (STUBS / "stub.h", STUBS / "cudart.c", STUBS / "cuda.c")
    folder = CACHE / f"stubs-{_fingerprint(sources)}"
    libraries = StubLibraries(folder / "libcudart.so.12", folder / "libcuda.so.1")
    shared = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-rpath,$ORIGIN", "-Wl,--build-id")
    for source, library in ((sources[1], libraries.runtime), (sources[2], libraries.driver)):
        _compile(library, (*shared, f"-Wl,-soname,{library.name}", str(source)))
    return libraries


@cache
def stub_nvml() -> Path:
    """Return the stub libnvidia-ml, built when needed."""
    source = STUBS / "nvml.c"
    library = CACHE / f"nvml-{_fingerprint((source,))}" / "libnvidia-ml.so.1"
    _compile(library, ("-shared", "-fPIC", "-fvisibility=hidden", str(source)))
    return library


def copy_of_runtime(folder: Path) -> Path:
    """Return the same stub libcudart as another file (another inode) in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(stub_libraries().runtime, folder))


@cache
def workload(name: str) -> Path:
    """Return the program built from ``tests/workloads/<name>.c``."""
    sources = (WORKLOADS / "workload.h", WORKLOADS / f"{name}.c")
    program = CACHE / f"{name}-{_fingerprint(sources)}" / name
    _compile(program, (str(sources[1]), "-ldl"))
    return program


@cache
def workload_with_runtime(name: str) -> Path:
    """Return the workload with the stub libcudart linked into the program itself."""
    sources = (
        WORKLOADS / "workload.h",
        WORKLOADS / f"{name}.c",
        STUBS / "stub.h",
        STUBS / "cudart.c",
    )
    program = CACHE / f"{name}-static-{_fingerprint(sources)}" / name
    _compile(program, (str(sources[1]), str(sources[3]), "-rdynamic", "-ldl"))
    return program


@cache
def library(name: str) -> Path:
    """Return the shared library built from ``tests/workloads/<name>.c``, without frame pointers."""
    source = WORKLOADS / f"{name}.c"
    output = CACHE / f"{name}-{_fingerprint((source,))}" / f"lib{name}.so"
    _compile(output, ("-shared", "-fPIC", "-fomit-frame-pointer", str(source)))
    return output


def _fingerprint(sources: Sequence[Path]) -> str:
    content = b"\0".join(source.read_bytes() for source in sources)
    return hashlib.sha256(content + repr(FLAGS).encode()).hexdigest()[:16]


def _compile(output: Path, arguments: Sequence[str]) -> None:
    if output.exists():
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        built = Path(scratch) / output.name
        command = ("gcc", *FLAGS, "-o", str(built), *arguments)
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
        built.replace(output)
