"""
Builds the stub CUDA libraries and the C workloads with the host's compiler.

Results are kept under ``.output/tests`` by the hash of their sources, so a test run
compiles only what changed and two runs at once do not disturb each other.
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from otel_gpu.demo import build as demo
from otel_gpu.demo.memory_scenarios import ALLOCATOR
from otel_gpu.demo.scenarios import FOLDER

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

# Whether functions of the stubs begin as those of NVIDIA's driver do: see ``_AS_THE_DRIVER``.
BEGIN_AS_DRIVER = "OTEL_GPU_TEST_DRIVER_STARTS"
# A flag is compared, and a jump follows. It leads on, and there the function itself begins.
_AS_THE_DRIVER = """\
\tcmpl\t$0x321cba00, .Lflag(%rip)
\tje\t.Lbody_{name}
\tjmp\t*.Lelsewhere(%rip)
.Lbody_{name}:
"""
_FLAG = """
\t.data
\t.p2align 3
.Lelsewhere:\t.quad 0
.Lflag:\t.long 0x321cba00
"""


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
    """
    Return the stub libcudart and libcuda, built when needed.

    Where the environment has ``BEGIN_AS_DRIVER``, probes at sites are not at the entries.
    """
    sources = (STUBS / "stub.h", STUBS / "cudart.c", STUBS / "cuda.c")
    as_driver = bool(os.environ.get(BEGIN_AS_DRIVER)) and platform.machine() == "x86_64"
    starts = (_AS_THE_DRIVER,) if as_driver else ()
    folder = CACHE / f"stubs-{_fingerprint(sources, starts)}"
    libraries = StubLibraries(folder / "libcudart.so.12", folder / "libcuda.so.1")
    shared = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-rpath,$ORIGIN", "-Wl,--build-id")
    for source, library in ((sources[1], libraries.runtime), (sources[2], libraries.driver)):
        arguments = (*shared, f"-Wl,-soname,{library.name}", str(source))
        _compile(library, arguments, change=_begin_as_driver if as_driver else None)
    return libraries


def _begin_as_driver(assembly: str) -> str:
    """Have each exported function begin as the driver's."""
    exported = {match[1] for match in re.finditer(r"^\t\.globl\t(cu\w+)$", assembly, re.MULTILINE)}

    def begin(match: re.Match[str]) -> str:
        name = match[1]
        return match[0] + (_AS_THE_DRIVER.format(name=name) if name in exported else "")

    begun = re.sub(
        r"^(\w+):\n(?:[^\w].*\n)*?\t\.cfi_startproc\n", begin, assembly, flags=re.MULTILINE
    )
    return begun + _FLAG


@cache
def odd_starts() -> Path:
    """Return the stub libcuda whose functions begin in many ways, built when needed."""
    source = STUBS / "odd_starts.c"
    library = CACHE / f"odd_starts-{_fingerprint((source,))}" / "libcuda.so.1"
    _compile(library, ("-shared", "-fPIC", "-Wl,--build-id", str(source)))
    return library


@cache
def many_statuses(statuses: int) -> Path:
    """Return a libcudart whose calls return so many statuses in turn, built when needed."""
    source = STUBS / "statuses.c"
    library = CACHE / f"statuses-{statuses}-{_fingerprint((source,))}" / "libcudart.so.12"
    _compile(library, ("-shared", "-fPIC", f"-DSTATUSES={statuses}", str(source)))
    return library


@cache
def stub_nccl() -> Path:
    """Return the stub libnccl, built when needed; load it after the stub libcudart."""
    sources = (STUBS / "nccl.c", STUBS / "nccl_world.h", STUBS / "stub.h")
    library = CACHE / f"nccl-{_fingerprint(sources)}" / "libnccl.so.2"
    shared = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,--build-id")
    _compile(library, (*shared, "-Wl,-soname,libnccl.so.2", str(sources[0])))
    return library


@cache
def stub_nvml() -> Path:
    """Return the stub libnvidia-ml, built when needed."""
    source = STUBS / "nvml.c"
    library = CACHE / f"nvml-{_fingerprint((source,))}" / "libnvidia-ml.so.1"
    _compile(library, ("-shared", "-fPIC", "-fvisibility=hidden", str(source)))
    return library


@cache
def allocator(*, is_old: bool = False, has_frames: bool = True) -> Path:
    """Return the demo's allocator, beside the CUDA library that it needs, built when needed."""
    kind = f"{'old' if is_old else 'new'}-{'frames' if has_frames else 'no-frames'}"
    sources = (FOLDER / "c10.c", FOLDER / "cudart.c", Path(demo.__file__))
    folder = CACHE / f"c10-{kind}-{_fingerprint(sources)}"
    CACHE.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            demo.build_allocator(made, is_old=is_old, has_frames=has_frames)
            # Another test run may have been faster.
            with contextlib.suppress(OSError):
                made.rename(folder)
    return folder / ALLOCATOR


def stub_ibverbs() -> Path:
    """Return the stub libibverbs, built when needed; its functions have versions."""
    source, versions = STUBS / "ibverbs.c", STUBS / "ibverbs.map"
    library = CACHE / f"ibverbs-{_fingerprint((source, versions))}" / "libibverbs.so.1"
    script = f"-Wl,--version-script={versions}"
    name = f"-Wl,-soname,{library.name}"
    _compile(library, ("-shared", "-fPIC", "-Wl,--build-id", script, name, str(source)))
    return library


def copy_of_runtime(folder: Path) -> Path:
    """Return the same stub libcudart as another file (another inode) in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(stub_libraries().runtime, folder))


@cache
def workload(name: str, *flags: str) -> Path:
    """Return the program built from ``tests/workloads/<name>.c``, with more flags of the compiler."""
    sources = (WORKLOADS / "workload.h", WORKLOADS / f"{name}.c")
    program = CACHE / f"{name}-{_fingerprint(sources, flags)}" / name
    _compile(program, (str(sources[1]), *flags, "-ldl"))
    return program


@cache
def odd_library(*, is_musl: bool = False) -> tuple[Path, Path]:
    """Return the workload of this name, for glibc or musl, and a CUDA runtime that it can open."""
    program, runtime = WORKLOADS / "odd_library.c", STUBS / "bare_cudart.c"
    folder = (
        CACHE / f"odd_library-{'musl' if is_musl else 'glibc'}-{_fingerprint((program, runtime))}"
    )
    _compile(
        folder / "odd_library", (str(program), "-ldl"), compiler="musl-gcc" if is_musl else "gcc"
    )
    _compile(folder / "libcudart.so.12", ("-shared", "-fPIC", "-nostdlib", str(runtime)))
    return folder / "odd_library", folder / "libcudart.so.12"


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
def linked_workload(name: str, *flags: str) -> Path:
    """Return the workload linked with the stub libcudart, which it finds by itself."""
    runtime = stub_libraries().runtime
    sources = (WORKLOADS / "workload.h", WORKLOADS / f"{name}.c")
    kind = "-".join(("linked", *(flag.partition("=")[2] for flag in flags), runtime.parent.name))
    program = CACHE / f"{name}-{kind}-{_fingerprint(sources)}" / name
    _compile(
        program, (*flags, str(sources[1]), str(runtime), f"-Wl,-rpath,{runtime.parent}", "-ldl")
    )
    return program


@cache
def library(name: str) -> Path:
    """Return the shared library built from ``tests/workloads/<name>.c``, without frame pointers."""
    source = WORKLOADS / f"{name}.c"
    output = CACHE / f"{name}-{_fingerprint((source,))}" / f"lib{name}.so"
    _compile(output, ("-shared", "-fPIC", "-fomit-frame-pointer", str(source)))
    return output


def _fingerprint(sources: Sequence[Path], flags: Sequence[str] = ()) -> str:
    content = b"\0".join(source.read_bytes() for source in sources)
    return hashlib.sha256(content + repr((*FLAGS, *flags)).encode()).hexdigest()[:16]


def _compile(
    output: Path,
    arguments: Sequence[str],
    compiler: str = "gcc",
    change: Callable[[str], str] | None = None,
) -> None:
    """Build a file; ``change`` takes the assembly of the last argument and returns what is built."""
    if output.exists():
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        if change is not None:
            *arguments, source = arguments
            assembly = Path(scratch) / f"{Path(source).stem}.s"
            _run(compiler, *FLAGS, "-fPIC", "-fvisibility=hidden", "-S", source, "-o", assembly)
            assembly.write_text(change(assembly.read_text()))
            arguments = (*arguments, str(assembly))
        built = Path(scratch) / output.name
        _run(compiler, *FLAGS, "-o", built, *arguments)
        built.replace(output)


def _run(*command: str | Path) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{result.stderr}")
