"""What processes map, asked of real ones."""

import os
import subprocess

import pytest

from otel_gpu.procfs.mapped_files import (
    FileId,
    MappedFile,
    cgroup_pids,
    child_pids,
    mapped_files,
    thread_ids,
)


def mapped(name: str) -> MappedFile:
    return MappedFile(1, FileId(0, 1), 0, 1, f"/opt/venv/lib/{name}")


@pytest.mark.parametrize(
    "name",
    [
        "libcudart.so",
        "libcudart.so.12",
        "libcudart-d0da41ae.so.11.0",
        "libcuda.so.1",
        "libcuda.so.550.54.15",
        "libcudart.so.13 (deleted)",
        "libnccl.so.2",
        "libnccl-f1e2d3c4.so.2.28.9",
    ],
)
def test_cuda_libraries_are_known_by_name(name):
    """Wheels put a hash in it, drivers a version, and an update deletes it."""
    assert mapped(name).is_cuda_library


@pytest.mark.parametrize(
    "name", ["libcudnn.so.9", "libcublas.so.12", "libcudadebugger.so.1", "libnccl-net.so"]
)
def test_other_nvidia_libraries_are_not(name):
    """They call the runtime, and are seen there."""
    assert not mapped(name).is_cuda_library


def test_our_own_maps_hold_linker_and_c_library():
    """Both are found, and are different files."""
    files = list(mapped_files(os.getpid()))

    linkers = [file for file in files if file.is_dynamic_linker]
    libraries = [file for file in files if file.is_c_library]
    assert len(linkers) == len(libraries) == 1
    assert linkers[0].file != libraries[0].file


def test_an_opened_mapping_is_the_mapped_inode():
    """The descriptor shows the inode that the maps file names."""
    for file in mapped_files(os.getpid()):
        fd = file.open()
        try:
            assert os.fstat(fd).st_ino == file.file.inode
        finally:
            os.close(fd)


def test_a_process_that_is_gone_maps_nothing():
    """It is no error: processes go all the time."""
    with subprocess.Popen(["true"]) as process:
        process.wait()

    assert list(mapped_files(process.pid)) == []
    assert thread_ids(process.pid) == []


def test_children_are_found():
    """A child that waits for its input is there to be seen."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert child.pid in set(child_pids(os.getpid()))


def test_a_cgroup_that_does_not_exist_is_an_error(tmp_path):
    """An empty one is not."""
    (tmp_path / "cgroup.procs").write_text("")

    assert list(cgroup_pids(tmp_path)) == []
    with pytest.raises(OSError, match="No such file"):
        list(cgroup_pids(tmp_path / "missing"))


def test_processes_of_a_cgroup_and_below_are_found(tmp_path):
    """A pod's containers are groups inside the pod's."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "cgroup.procs").write_text("11\n")
    (tmp_path / "inner" / "cgroup.procs").write_text("13\n17\n0\n")

    assert sorted(cgroup_pids(tmp_path)) == [11, 13, 17]
