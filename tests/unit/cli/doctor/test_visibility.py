"""What can be seen of processes: mapped libraries, and what hides from probes."""

import contextlib
import os
import platform
import shutil
import struct
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from otel_gpu.capture.probes.library_sites import LibrarySites
from otel_gpu.capture.processes.interpreters import Diagnosis
from otel_gpu.cli.doctor import visibility
from otel_gpu.cli.doctor.visibility import (
    check_library,
    check_mount_namespace,
    check_program,
    check_python_frames,
    check_static_runtime,
    examine_process,
    examine_processes,
)
from otel_gpu.errors import HostError
from otel_gpu.procfs.mapped_files import FileId, MappedFile
from tests.hosts import file_at
from tests.stubs.build import odd_starts

RUNTIME = MappedFile(7, FileId(1, 12), 0x1000, 0x2000, "/opt/a b/libcudart.so.12.4.127")
DRIVER = MappedFile(7, FileId(1, 14), 0x3000, 0x4000, "/opt/libcuda.so.1 (deleted)")
PROGRAM = MappedFile(7, FileId(1, 11), 0x5000, 0x6000, "/usr/bin/train")


@pytest.fixture
def no_files(monkeypatch):
    """No mapped file can be opened."""
    monkeypatch.setattr(MappedFile, "open", lambda self: os.open("/nonexistent", os.O_RDONLY))


@pytest.fixture
def processes(monkeypatch):
    """Say what processes map."""

    def set_processes(mapped):
        monkeypatch.setattr(visibility, "mapped_files", lambda pid: iter(mapped[pid]))
        monkeypatch.setattr(visibility, "_is_hidden", lambda pid: mapped[pid] == ())
        return list(mapped)

    return set_processes


def real_runtime():
    spec = find_spec("nvidia")
    found = [
        path
        for folder in (spec.submodule_search_locations if spec else [])
        for path in Path(folder).rglob("libcudart.so.*")
    ]
    if not found:
        pytest.skip("the nvidia-cuda-runtime wheel is not installed")
    return found[0]


@contextlib.contextmanager
def process_with(library):
    """A Python process that has loaded a library and waits."""
    code = f"import ctypes; ctypes.CDLL({str(library)!r}); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.communicate(b"\n", timeout=30)


def findings_of(pid):
    return {finding.name: finding for finding in examine_process(pid)}


def test_the_hosts_cuda_users_are_counted_by_file(processes):
    """One line per library, however many processes map it and however they are ordered."""
    pids = processes({8: (RUNTIME, PROGRAM), 7: (RUNTIME, DRIVER), 9: (PROGRAM,)})

    assert examine_processes(pids).detail == (
        "/opt/a b/libcudart.so.12.4.127 (2 processes: 7, 8); "
        "/opt/libcuda.so.1 (deleted) (1 process: 7)"
    )


def test_long_lists_of_processes_are_cut(processes):
    """A node with many workers still gives one readable line."""
    pids = processes(dict.fromkeys(range(1, 9), (RUNTIME,)))

    assert examine_processes(pids).detail.endswith("(8 processes: 1, 2, 3, 4, 5 and 3 more)")


def test_processes_that_are_hidden_are_counted(processes):
    """
    "Nobody uses CUDA" is not claimed of processes that could not be looked into.
    """
    finding = examine_processes(processes({7: (PROGRAM,), 8: ()}))

    assert finding.status == "ok"
    assert finding.detail == "no process uses CUDA now; 1 process may not be looked into"


def test_a_process_that_does_not_exist_is_an_error():
    """A wrong pid is the operator's slip, not a finding."""
    beyond = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1

    with pytest.raises(HostError, match=f"no process {beyond}"):
        list(examine_process(beyond))


@pytest.mark.parametrize(("magic", "status"), [(b"\x7fELF\x01", "missing"), (b"\x7fELF\x02", "ok")])
def test_32_bit_programs_cannot_be_seen(tmp_path, magic, status):
    """Arguments of 32-bit calls lie elsewhere, so their probes would read nonsense."""
    (tmp_path / "program").write_bytes(magic)
    (tmp_path / "exe").symlink_to(tmp_path / "program")

    assert check_program(7, tmp_path).status == status


def test_kernel_threads_run_no_program(tmp_path):
    """A kernel thread has no executable, and makes no CUDA call."""
    assert check_program(7, tmp_path).status == "missing"


def test_another_mount_namespace_is_no_obstacle(tmp_path):
    """A container's files are read through its own mappings."""
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns" / "mnt").symlink_to("mnt:[1]")

    finding = check_mount_namespace(tmp_path)

    assert finding.status == "ok"
    assert finding.detail.startswith("another one")


def test_libraries_that_cannot_be_read_are_warned_about(no_files):
    """A library whose file cannot be opened is not probed, so its calls would be silent."""
    finding = check_library(RUNTIME)

    assert finding.status == "warning"
    assert finding.detail == (
        "/opt/a b/libcudart.so.12.4.127 (runtime): cannot be read (No such file or directory), "
        "so none of its calls will be seen"
    )


def test_libraries_without_a_known_function_are_warned_about(monkeypatch):
    """A wrapper under CUDA's name gives nothing to probe."""
    monkeypatch.setattr(MappedFile, "open", lambda self: os.open(sys.executable, os.O_RDONLY))

    finding = check_library(RUNTIME)

    assert finding.status == "warning"
    assert "exports none of the" in finding.detail


def test_libraries_that_were_replaced_are_pointed_out(monkeypatch):
    """An upgrade under a running process is seen, and seen to be one."""
    library = real_runtime()
    monkeypatch.setattr(MappedFile, "open", lambda self: os.open(library, os.O_RDONLY))

    finding = check_library(RUNTIME._replace(path=f"{library} (deleted)"))

    assert finding.status == "warning"
    assert "replaced or deleted while in use" in finding.detail


def test_a_driver_without_a_runtime_is_pointed_out(no_files):
    """Either the program uses the driver API, or its runtime is where no probe sits."""
    finding = check_static_runtime([PROGRAM, DRIVER])

    assert finding.status == "warning"
    assert finding.detail.startswith("libcuda is mapped and libcudart is not")


def test_a_runtime_without_a_driver_is_complete(no_files):
    """The runtime loads the driver when it is first used."""
    assert check_static_runtime([PROGRAM, RUNTIME]).status == "ok"


def test_a_process_with_the_real_runtime_is_seen():
    """A live process's own mapping leads to NVIDIA's library and to every runtime row."""
    library = real_runtime()
    with process_with(library) as pid:
        found = findings_of(pid)

    assert found["process"].status == "ok"
    assert found["mount_namespace"].detail == "the agent's own"
    assert found["library"].status == "ok"
    assert found["library"].detail.startswith(f"{library} (runtime): 63 of 63 APIs, ")
    assert found["static_runtime"].status == "ok"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sites are chosen on x86-64")
def test_a_library_says_at_which_instructions_its_probes_are():
    """And of which functions the kernel has to single-step what is there."""
    library = odd_starts()
    with process_with(library) as pid:
        found = findings_of(pid)["probe_sites"]

    assert found.status == "ok"
    assert found.detail.split("; ") == [
        "libcuda.so.1: 5 emulated (je at +10)",
        "1 emulated (jmp at +0)",
        "1 emulated (jmp at +5)",
        "1 emulated (nop at +0)",
        "1 emulated (push at +0)",
        "1 emulated (push at +1)",
        "1 emulated (push at +4)",
        "1 emulated (push at +7)",
        "3 single-stepped (mov at +0: cuEventCreate, cuMemsetD32Async, cuStreamQuery)",
        "2 single-stepped (xor at +0: cuCtxSetCurrent, cuEventRecordWithFlags)",
        "1 single-stepped (endbr64 at +0: cuEventSynchronize)",
        "1 single-stepped (int at +0: cuModuleLoad)",
        "1 single-stepped (lea at +0: cuMemsetD16Async)",
        "1 single-stepped (sub at +0: cuStreamCreate)",
    ]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the library is of x86-64")
def test_functions_that_are_not_safe_to_probe_on_arm64_are_named(tmp_path, monkeypatch):
    """With what can be done, and why they carry none."""
    library = tmp_path / "libcuda.so.1"
    data = bytearray(odd_starts().read_bytes())
    struct.pack_into("<H", data, 18, 183)  # e_machine of ELF
    monkeypatch.setattr(visibility, "LibrarySites", partial(LibrarySites, machine="aarch64"))
    library.write_bytes(data)

    found = visibility.check_probe_sites(
        MappedFile(os.getpid(), file_at(library), 0, 0, str(library))
    )

    assert found.status == "warning"
    assert "21 carry no probe, as the kernel would single-step them" in found.detail
    assert "capture.foreign_probes: all" in found.hint


def test_a_runtime_under_another_name_is_found_by_its_text(tmp_path):
    """A statically linked runtime exports nothing, but carries its error names along."""
    hidden = tmp_path / "libengine.so"
    shutil.copy(real_runtime(), hidden)
    with process_with(hidden) as pid:
        found = findings_of(pid)

    assert found["static_runtime"].status == "warning"
    assert str(hidden) in found["static_runtime"].detail


def test_nccl_inside_another_library_is_found_by_its_text(tmp_path):
    """As in builds of frameworks that link it in; under its own name it is probed."""
    source = tmp_path / "engine.c"
    source.write_text('const char text[] = "\\0NCCL_P2P_LEVEL";\n')
    for name in ("libengine.so", "libnccl.so.2"):
        command = ["gcc", "-shared", "-fPIC", "-o", tmp_path / name, source]
        subprocess.run(command, check=True)

    with process_with(tmp_path / "libengine.so") as pid:
        found = findings_of(pid)
    assert found["static_nccl"].status == "warning"
    assert str(tmp_path / "libengine.so") in found["static_nccl"].detail

    with process_with(tmp_path / "libnccl.so.2") as pid:
        found = findings_of(pid)
    assert found["static_nccl"].status == "ok"
    assert "(nccl): exports none of the 35 APIs" in found["library"].detail


def test_our_own_process_can_be_examined():
    """Nothing about a real process raises."""
    found = findings_of(os.getpid())

    assert found["process"].detail.startswith(f"{os.getpid()} runs ")
    assert found["library"].detail == "no CUDA library is mapped now"


def test_a_python_process_says_whether_its_lines_can_be_read():
    """A process that runs this Python has a finding about its frames, and nothing to do."""
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        found = findings_of(process.pid)["python_frames"]
        process.communicate(b"\n")

    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert (found.status, found.hint) == ("ok", "")
    assert found.detail == f"Python {version}: its frames can be read"


def test_a_process_without_python_has_no_frames_of_it():
    """That is nothing to warn of."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        found = findings_of(process.pid)["python_frames"]
        process.communicate()

    assert (found.status, found.detail) == ("ok", "no Python interpreter is mapped")


@pytest.mark.parametrize(
    ("diagnosis", "detail", "advice"),
    [
        (
            Diagnosis("unknown", "", "this Python 3.14 is free-threaded"),
            "Python: stacks have no lines of Python: this Python 3.14 is free-threaded",
            "run the program with a final release of CPython 3.10 to 3.14 that has a GIL",
        ),
        (
            Diagnosis("bad", "3.12", "its frames cannot be followed: no file"),
            "Python 3.12: stacks have no lines of Python: its frames cannot be followed: no file",
            "use an ordinary build",
        ),
        (
            Diagnosis("early", "3.11", "no thread of it runs Python yet"),
            "Python 3.11: stacks have no lines of Python: no thread of it runs Python yet",
            "a capture looks again by itself",
        ),
    ],
)
def test_why_python_s_lines_are_missing_and_what_to_do(monkeypatch, diagnosis, detail, advice):
    """A warning, since everything else of the process is seen."""
    monkeypatch.setattr(visibility, "diagnose", lambda pid, files: diagnosis)

    found = check_python_frames(7, ())

    assert (found.status, found.detail) == ("warning", detail)
    assert advice in found.hint
