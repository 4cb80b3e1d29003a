"""What processes map, asked of real ones."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from otel_gpu.procfs.mapped_files import (
    FileId,
    MappedFile,
    cgroup_pids,
    child_pids,
    file_of,
    mapped_files,
    root_of,
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


SLEEP = "import sys; print(flush=True); sys.stdin.read()"


@pytest.fixture
def libraries(tmp_path):
    """A library that a child maps, and its child."""
    library = shutil.copy(
        next(one.path for one in mapped_files(os.getpid()) if one.is_c_library), tmp_path
    )
    script = f"import ctypes; ctypes.CDLL({str(library)!r}); {SLEEP}"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        yield Path(library), process


def end(process):
    process.kill()
    process.wait()


def library_of(path, process):
    (found,) = [one for one in mapped_files(process.pid) if one.path.startswith(str(path))]
    return found


def test_a_file_of_a_process_that_has_ended_is_opened_by_its_path(libraries):
    """What short processes map can be opened in time by nobody; the file is there still."""
    path, process = libraries
    found = library_of(path, process)
    end(process)

    fd = found.open()
    assert os.fstat(fd).st_ino == path.stat().st_ino
    assert file_of(fd) == found.file
    os.close(fd)


def test_a_file_that_took_the_place_of_another_is_not_taken_for_it(libraries):
    """An update replaces libraries while they are mapped; another inode is another library."""
    path, process = libraries
    found = library_of(path, process)
    end(process)
    path.with_suffix(".new").write_bytes(path.read_bytes())
    path.with_suffix(".new").rename(path)

    with pytest.raises(OSError, match="is not the file that process"):
        found.open()


def test_a_file_of_another_root_is_opened_through_the_root_that_was_kept(libraries, tmp_path):
    """A container is gone with its last process; in its root, paths are other ones than here."""
    path, process = libraries
    found = library_of(path, process)
    with root_of(process.pid) as root:
        end(process)
        folder = os.open(path.parent, os.O_PATH)
        for kept, seen in ((root, path), (folder, f"/{path.name}")):
            fd = found._replace(path=str(seen)).open(kept)
            assert os.fstat(fd).st_ino == path.stat().st_ino
            os.close(fd)
    os.close(folder)
    with root_of(process.pid) as root:
        assert root is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: chroot")
def test_a_file_in_a_chroot_is_found_where_the_links_of_maps_may_not_be_used(
    libraries, monkeypatch
):
    """
    A path in maps begins at the root of the mount namespace: below the root of the process it has
    the way to that root in it, twice.
    """
    path, process = libraries
    found = library_of(path, process)
    prefix = str(path.parent)
    end(process)
    script = f"import os; os.chroot({prefix!r}); {SLEEP}"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as confined:
        confined.stdout.readline()
        # Whatever it maps: the link in map_files is none of it.
        paths = [*found._replace(pid=confined.pid)._paths(None)]
        end(confined)

    assert paths[1] == (f"/proc/{confined.pid}/root", f"/{path.name}")


def test_what_is_in_memory_has_the_name_that_its_program_gave_it():
    found = mapped("x")._replace(path="/memfd:libcudart.so.12 (deleted)")

    assert found.is_in_memory
    assert found.is_cuda_library


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
