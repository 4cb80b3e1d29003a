"""The preload library forwards calls and their results unchanged."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from otel_gpu import wire
from otel_gpu.wire.probe_table import API_BY_NUMBER
from tests.hosts import LIBCUDA
from tests.preloaded import LIBRARY, calls_of, reading_of, running, series_of
from tests.stubs.build import stub_libraries
from tools.generate_preload import wide_apis, wrapped_apis

SOURCE = """
#include <stddef.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { size_t width, height, depth; } extent;
#define EXPORT __attribute__((visibility("default")))
static unsigned long seen[16];
EXPORT const unsigned long *last(void) { return seen; }
EXPORT int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
    unsigned bz, unsigned shared, void *stream, void **p, void **e)
{
    unsigned long values[] = {(unsigned long)f, gx, gy, gz, bx, by, bz, shared,
        (unsigned long)stream, (unsigned long)p, (unsigned long)e};
    for (int i = 0; i < 11; i++) seen[i] = values[i];
    return 0;
}
EXPORT int cudaLaunchKernel(void *f, dim3 g, dim3 b, void **p, size_t shared, void *stream)
{
    unsigned long values[] = {(unsigned long)f, g.x, g.y, g.z, b.x, b.y, b.z, (unsigned long)p,
        shared, (unsigned long)stream};
    for (int i = 0; i < 10; i++) seen[i] = values[i];
    return 0;
}
EXPORT int cudaMalloc3D(void *where, extent e)
{
    unsigned long values[] = {(unsigned long)where, e.width, e.height, e.depth};
    for (int i = 0; i < 4; i++) seen[i] = values[i];
    return -7;
}
"""
CALLER = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
class Triple(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint) for n in "xyz"]
class Extent(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in "whd"]
library.last.restype = ctypes.POINTER(ctypes.c_ulong)
p, n, u = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
big = 1 << 62
def call(name, count, *arguments):
    result = getattr(library, name)(*arguments)
    return [result, *library.last()[:count]]
print(json.dumps([
    call("cuLaunchKernel", 11, p(big + 1), *map(u, range(2, 9)), p(big + 9), p(10), p(big + 11)),
    call("cudaLaunchKernel", 10, p(1), Triple(2, 3, 4), Triple(5, 6, 7), p(8), n(big + 9), p(10)),
    call("cudaMalloc3D", 4, p(1), Extent(big + 2, 3, 4)),
]), flush=True)
sys.stdin.read()
"""


def test_arguments_and_results_are_passed_on_whole(tmp_path):
    """In registers, on the stack, and structures by value."""
    source, library = tmp_path / "a.c", tmp_path / "libcudart.so.99"
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True)
    big = 1 << 62

    with running([sys.executable, "-c", CALLER, library]) as program:
        results = json.loads(program.stdout.readline())
        reading = reading_of(program.pid)

    assert results == [
        [0, big + 1, *range(2, 9), big + 9, 10, big + 11],
        [0, *range(1, 9), big + 9, 10],
        [-7, 1, big + 2, 3, 4],
    ]
    assert calls_of(reading) == {"cuLaunchKernel": 1, "cudaLaunchKernel": 1}


DEVICES = """
import ctypes, sys
library, driver = (ctypes.CDLL(path) for path in sys.argv[1:])
device = ctypes.c_int()
library.cudaEventQuery(None)
library.cudaSetDevice(1)
library.cudaEventQuery(None)
library.cudaSetDevice(77)
library.cudaEventQuery(None)
library.cudaGetDevice(ctypes.byref(device))
driver.cuCtxSetCurrent(None)
library.cudaEventQuery(None)
print(flush=True)
sys.stdin.read()
"""


def test_devices_are_what_the_thread_chose():
    """A choice that fails chooses nothing; of a context it is not known; to ask is no call that counts."""
    command = [sys.executable, "-c", DEVICES, *stub_libraries()]
    with running(command) as program:
        program.stdout.readline()
        reading = reading_of(program.pid)

    by_device = {
        (API_BY_NUMBER[key["api"]].name, key["status"], key["device"]): total["count"]
        for key, total in series_of(reading)
    }
    assert by_device == {
        ("cudaEventQuery", 0, 0): 1,
        ("cudaEventQuery", 0, 1): 2,
        ("cudaEventQuery", 0, -1): 1,
        ("cudaSetDevice", 0, 1): 1,
        ("cudaSetDevice", 101, 1): 1,
        ("cuCtxSetCurrent", 0, -1): 1,
    }


USER = """
extern int cudaDeviceSynchronize(void);
int work(void) { return cudaDeviceSynchronize(); }
"""
TWO = """
import ctypes, sys
works = [ctypes.CDLL(path).work for path in sys.argv[1:]]
print([work() for work in works * 3], flush=True)
sys.stdin.read()
"""


def test_each_library_calls_the_version_of_the_runtime_that_it_needs(tmp_path):
    """Two of them in one process, each with the same names."""
    users = []
    for version in (11, 12):
        folder = tmp_path / str(version)
        folder.mkdir()
        runtime, user = folder / f"libcudart.so.{version}", folder / f"libuser{version}.so"
        versions = folder / "map"
        versions.write_text(f"libcudart.so.{version} {{ global: cuda*; local: *; }};")
        shared = ["gcc", "-shared", "-fPIC"]
        (folder / "a.c").write_text(f"int cudaDeviceSynchronize(void) {{ return {version}; }}")
        script = f"-Wl,--version-script={versions}"
        subprocess.run(
            [*shared, folder / "a.c", f"-Wl,-soname,{runtime.name}", script, "-o", runtime],
            check=True,
        )
        (folder / "b.c").write_text(USER)
        subprocess.run(
            [*shared, folder / "b.c", runtime, f"-Wl,-rpath,{folder}", "-o", user], check=True
        )
        users.append(user)

    with running([sys.executable, "-c", TWO, *users]) as program:
        results = json.loads(program.stdout.readline())
        reading = reading_of(program.pid)

    assert results == [11, 12] * 3
    assert {key["status"]: total["count"] for key, total in series_of(reading)} == {11: 3, 12: 3}


def test_the_real_runtime_is_counted(tmp_path):
    """Where there is no driver each call fails, and says so."""
    (library,) = Path(sys.prefix).rglob("libcudart.so.1?")
    program_text = (
        "import ctypes, sys\n"
        f"library = ctypes.CDLL({str(library)!r})\n"
        "print([library.cudaDeviceSynchronize() for _ in range(29)][0], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with running([sys.executable, "-c", program_text]) as program:
        status = int(program.stdout.readline())
        reading = reading_of(program.pid)

    assert program.returncode == 0
    waits = {key["status"]: a["count"] for key, a in series_of(reading) if key["api"] == 6}
    assert waits == {status: 29}


REAL = """
#include <stdio.h>
int cudaDeviceSynchronize(void);
int cudaMalloc(void **, unsigned long);
int cudaStreamSynchronize(void *);
const char *cudaGetErrorName(int);
int main(void)
{
    void *address;
    for (int i = 0; i < 13; i++)
        printf("%s %s %s ", cudaGetErrorName(cudaDeviceSynchronize()),
            cudaGetErrorName(cudaMalloc(&address, 64)), cudaGetErrorName(cudaStreamSynchronize(0)));
    puts("");
    fflush(stdout);
    return getchar() != EOF;
}
"""


@pytest.mark.parametrize("driver", ["stub", "real"])
@pytest.mark.parametrize("name", ["libcudart.so.1?", "libcudart_static.a"])
def test_a_program_that_is_linked_with_the_real_runtime_runs_as_without(tmp_path, name, driver):
    """Its functions have versions, or are in the program; of the driver it asks for all by name."""
    if driver == "real" and not LIBCUDA.exists():
        pytest.skip("libcuda1 of Debian's non-free is not here")
    folder = LIBCUDA.parent if driver == "real" else stub_libraries().folder
    (library,) = Path(sys.prefix).rglob(name)
    source, program = tmp_path / "a.c", tmp_path / "a"
    source.write_text(REAL)
    place = f"-Wl,-rpath,{library.parent}"
    command = ["gcc", source, library, place, "-o", program, "-lpthread", "-ldl", "-lrt"]
    subprocess.run(command, check=True)
    environment = {"LD_LIBRARY_PATH": str(folder)}
    with running([program], preload=(), **environment) as bare:
        expected = bare.stdout.readline()
    with running([program], **environment) as counted:
        answers = counted.stdout.readline()
        is_linked = name.endswith("?")
        calls = calls_of(reading_of(counted.pid)) if is_linked else {}

    assert (answers, counted.returncode, bare.returncode) == (expected, 0, 0)
    assert len(answers.split()) == 3 * 13
    if is_linked:
        assert calls == {"cudaDeviceSynchronize": 13, "cudaStreamSynchronize": 13}


def declared(header):
    """The functions of a header: name to the types of its parameters."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    # Neither directives nor comments have the end of a declaration in the middle.
    text = "\n".join(line.partition("//")[0] for line in text.splitlines() if line[:1] != "#")
    found = {}
    for name, parameters in re.findall(r"\b(cu\w+)\(([^()]*)\);", text):
        types = [part.strip() for part in parameters.split(",") if part.strip() not in {"", "void"}]
        found.setdefault(name, types)
    return found


def slots_of(parameter):
    """How many words an argument takes, at most."""
    if "*" in parameter or "[" in parameter:
        return 1
    if re.search(r"\bdim3\b", parameter):
        return 2
    return 3 if re.search(r"\bcuda(Extent|Pos)\b", parameter) else 1


def test_wrappers_pass_on_as_many_arguments_as_there_are():
    """By CUDA's own headers; those with fewer would lose some."""
    (runtime,) = Path(sys.prefix).rglob("cuda_runtime_api.h")
    functions = {
        **declared(runtime),
        **declared(runtime.with_name("cuda.h")),
    }
    names = {api.name for api in wrapped_apis()}
    seen = 0
    for function, parameters in functions.items():
        base = re.sub(r"(_v[0-9]+)?(_pt[sd][sz])?$", "", function)
        if base not in names:
            continue
        seen += 1
        by_value = any(slots_of(parameter) == 3 for parameter in parameters)
        slots = sum(map(slots_of, parameters))
        assert slots <= 12, function
        assert (slots > 6 or by_value) <= (base in wide_apis()), (function, slots)
        assert not any(
            re.search(r"\b(float|double)\b", parameter)
            and slots_of(parameter)
            and "*" not in parameter
            for parameter in parameters
        ), function
    assert seen > len(names) * 0.8


def test_families_that_are_counted_are_those_of_the_table():
    """What the kernel side has to know more of is left to it."""
    counted = {api.family for api in wrapped_apis() if api.counted_by_preload}
    kept = {wire.FAMILY_ALLOCATE, wire.FAMILY_FREE, wire.FAMILY_KERNEL, wire.FAMILY_GRAPH}

    assert not counted & kept
    assert wire.FAMILY_LAUNCH in counted
    assert LIBRARY.exists()
    names = [api.name for api in wrapped_apis()]
    assert all(one < other for one, other in itertools.pairwise(names))
