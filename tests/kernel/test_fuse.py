"""File systems that other users serve by a program (FUSE), which stops answering."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, Finished, calls, losses, otel_gpu, seconds_to_end
from tests.kernel.fuse import FileSystem
from tests.kernel.test_forged_memory import AS_SOMEBODY
from tests.kernel.test_tenants import AS_NOBODY, CALLS, make_calls, open_folder, program
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="this kernel has no FUSE"),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed"),
]

NOBODY = 65534
LIBRARY = "libcudart.so.12"
# Where the kernel lists the connections of FUSE, as systemd mounts it.
WITH_FUSECTL = (
    *("unshare", "--mount", "sh", "-c"),
    'mount -t fusectl fusectl /sys/fs/fuse/connections && exec "$@"',
    "sh",
)
# On a machine whose processors are busy.
ENDS_WITHIN_S = 8.0
# Has all pages of the library before its server falls silent.
LOADS = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
open(sys.argv[1], "rb").read()
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def served_by_nobody(folder: Path, name: str = "", content: bytes = b"") -> Iterator[FileSystem]:
    """A file system that user 65534 serves, mounted in a folder."""
    folder.mkdir()
    served = FileSystem(folder, "test", user=NOBODY, name=name, content=content)
    with served:
        yield served


@contextmanager
def answering_after(served: FileSystem) -> Iterator[None]:
    """Programs inside can be ended, as their file system answers then."""
    try:
        yield
    finally:
        served.answer()


def end_in_time(agent: Agent) -> Finished:
    assert seconds_to_end(agent) < ENDS_WITHIN_S
    finished = agent.wait()
    assert finished.returncode == 0
    return finished


@pytest.mark.parametrize("is_mounted", [True, False], ids=["mounted", "unmounted"])
@pytest.mark.parametrize("inside", [WITH_FUSECTL, ()], ids=["fusectl", "mountinfo"])
def test_a_library_whose_file_system_does_not_answer_keeps_no_agent_waiting(
    receiver: OtlpReceiver,
    stubs: StubLibraries,
    tmp_path: Path,
    inside: tuple[str, ...],
    is_mounted: bool,
) -> None:
    """It is not opened, also where it is unmounted and still mapped; others are counted."""
    file = tmp_path / "served.rec"
    with (
        open_folder() as folder,
        served_by_nobody(folder / "served", LIBRARY, stubs.runtime.read_bytes()) as served,
        program(LOADS, folder / "served" / LIBRARY, inside=AS_NOBODY) as hostile,
        program(CALLS, stubs.runtime, inside=AS_SOMEBODY) as other,
        answering_after(served),
    ):
        if not is_mounted:
            served.detach()
        served.fall_silent()
        flags = [f"--pid={hostile.pid}", f"--pid={other.pid}", "--record", str(file)]
        with Agent(receiver, flags=flags, inside=inside) as agent:
            receiver.wait_for(lambda: losses(receiver).get("file_unread"))
            make_calls(other, 1009)
            receiver.wait_for(lambda: calls(receiver, "cudaStreamSynchronize", other.pid) == 1009)
            finished = end_in_time(agent)

    lost = losses(receiver)
    assert lost["file_unread"] == 1
    assert lost.keys() <= {"file_unread", "not_watched_from_start", "memory_read", "python_frames"}
    is_known = is_mounted or inside
    reason = (
        f"user {NOBODY} serves its file system (FUSE)"
        if is_known
        else "its file system is not known here"
    )
    whose = f"of process {hostile.pid}"
    assert f"some of its files {whose} of user {NOBODY} is not read: {reason}" in finished.stderr
    assert f"/{LIBRARY} {whose} is not read: {reason}" in finished.stderr
    assert reason in otel_gpu("explain", file).stdout


def over(served: Path, empty: Path, merged: Path) -> tuple[str, ...]:
    """Run a command in a user namespace, with an overlay over a file system."""
    for folder in (empty, merged):
        folder.mkdir()
    mount = f"mount -t overlay overlay -o lowerdir={empty}:{served} {merged}"
    return (*AS_NOBODY, "unshare", "-Urm", "sh", "-c", f'{mount} && exec "$@"', "sh")


OVERLAID = "it may be on an overlay of a user namespace, below which a user can serve files (FUSE)"


@pytest.mark.parametrize("inside", [WITH_FUSECTL, ()], ids=["fusectl", "mountinfo"])
def test_a_library_on_an_overlay_that_does_not_answer_keeps_no_agent_waiting(
    receiver: OtlpReceiver, stubs: StubLibraries, inside: tuple[str, ...]
) -> None:
    """Its user has mounted it in a user namespace; of its layers the kernel shows nothing."""
    with (
        open_folder() as folder,
        served_by_nobody(folder / "served", LIBRARY, stubs.runtime.read_bytes()) as served,
    ):
        overlaying = over(folder / "served", folder / "empty", folder / "merged")
        with (
            program(LOADS, folder / "merged" / LIBRARY, inside=overlaying) as hostile,
            program(CALLS, stubs.runtime, inside=AS_SOMEBODY) as other,
            answering_after(served),
        ):
            served.fall_silent()
            flags = [f"--pid={hostile.pid}", f"--pid={other.pid}"]
            with Agent(receiver, flags=flags, inside=inside) as agent:
                receiver.wait_for(lambda: losses(receiver).get("file_unread"))
                make_calls(other, 1009)
                receiver.wait_for(
                    lambda: calls(receiver, "cudaStreamSynchronize", other.pid) == 1009
                )
                finished = end_in_time(agent)

    assert losses(receiver)["file_unread"] == 1
    reason = OVERLAID if inside else "its file system is not known here"
    whose = f"of process {hostile.pid}"
    assert f"some of its files {whose} of user {NOBODY} is not read: {reason}" in finished.stderr
    assert f"/{LIBRARY} {whose} is not read: {reason}" in finished.stderr


@pytest.mark.parametrize("is_of_host", [True, False], ids=["host", "namespace"])
@pytest.mark.parametrize("inside", [WITH_FUSECTL, ()], ids=["fusectl", "mountinfo"])
def test_a_library_on_an_overlay_of_root_is_watched_beside_a_served_file_system(
    receiver: OtlpReceiver, stubs: StubLibraries, inside: tuple[str, ...], is_of_host: bool
) -> None:
    """
    As containers have it: mounted by the host, also where the container has a user namespace,
    or in a mount namespace of root's.
    """
    with open_folder() as folder, served_by_nobody(folder / "served"):
        for name in ("lower", "empty", "merged"):
            (folder / name).mkdir()
        shutil.copy(stubs.runtime, folder / "lower" / LIBRARY)
        mount = (
            f"mount -t overlay overlay -o lowerdir={folder}/lower:{folder}/empty {folder}/merged"
        )
        if is_of_host:
            subprocess.run(mount.split(), check=True)
            around = [*AS_NOBODY, "unshare", "-Urm"]
        else:
            around = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", *AS_NOBODY]
        try:
            with (
                program(CALLS, folder / "merged" / LIBRARY, inside=tuple(around)) as watched,
                Agent(receiver, flags=[f"--pid={watched.pid}"], inside=inside) as agent,
            ):
                receiver.wait_for(receiver.metrics)
                make_calls(watched, 1009)
                finished = end_in_time(agent)
        finally:
            if is_of_host:
                subprocess.run(["umount", "-l", folder / "merged"], check=True)

    assert calls(receiver, "cudaStreamSynchronize", watched.pid) == 1009
    assert losses(receiver).keys() <= {"not_watched_from_start"}, finished.stderr


# Calls what it is given from code that was made at run time, which a function of its own calls.
MAKES = r"""
#include <string.h>
#include <sys/mman.h>
typedef int call(void *);
static int made(call *called) { return called(0) + 1; }
int through(call *called)
{
    static int (*copy)(call *);
    if (!copy) {
        copy = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memcpy((void *)copy, (void *)made, 256);
        __builtin___clear_cache((char *)copy, (char *)copy + 256);
    }
    return copy(called) + 1;
}
"""
CALLS_THROUGH = """
import ctypes, sys
runtime, through = map(ctypes.CDLL, sys.argv[1:])
print("ready", flush=True)
for count in sys.stdin:
    for _ in range(int(count)):
        through.through(runtime.cudaStreamSynchronize)
    print("done", flush=True)
"""


def build_stripped(folder: Path) -> Path:
    """Build the library whose debug link leads below ``.debug``."""
    path = folder / "through.so"
    (folder / "through.c").write_text(MAKES)
    flags = ("-shared", "-fPIC", "-O1", "-fno-omit-frame-pointer", "-Wl,--build-id=none")
    subprocess.run(["gcc", *flags, "-o", path, folder / "through.c"], check=True)
    debug = folder / "through.debug"
    subprocess.run(["objcopy", "--only-keep-debug", path, debug], check=True)
    subprocess.run(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", path], check=True)
    debug.unlink()
    return path


@pytest.mark.parametrize("is_overlaid", [False, True], ids=["itself", "overlay"])
@pytest.mark.parametrize("inside", [WITH_FUSECTL, ()], ids=["fusectl", "mountinfo"])
def test_names_on_a_file_system_that_does_not_answer_keep_no_agent_waiting(
    receiver: OtlpReceiver, stubs: StubLibraries, inside: tuple[str, ...], is_overlaid: bool
) -> None:
    """
    The perf map is in a folder that a user mounted over /tmp, and the debug link leads through a
    symbolic link and ``..``.
    """
    with (
        open_folder() as folder,
        served_by_nobody(folder / "served") as served,
    ):
        library = build_stripped(folder)
        # The checkout may be below the folder that is mounted over.
        runtime = shutil.copy(stubs.runtime, folder)
        (folder / "inner").mkdir()
        shown = folder / ("merged" if is_overlaid else "served")
        (folder / ".debug").symlink_to(f"inner/../{shown.name}")
        over_tmp = ("sh", "-c", f'mount --bind {shown} /tmp && exec "$@"', "sh")
        if is_overlaid:
            mounting = (*over(folder / "served", folder / "empty", shown), *over_tmp)
        else:
            mounting = (*AS_NOBODY, "unshare", "-Urm", *over_tmp)
        with (
            program(CALLS_THROUGH, runtime, library, inside=mounting) as hostile,
            program(CALLS, stubs.runtime, inside=AS_SOMEBODY) as other,
            answering_after(served),
        ):
            served.fall_silent()
            flags = [f"--pid={hostile.pid}", f"--pid={other.pid}", "--spans=full"]
            with Agent(receiver, flags=flags, inside=inside) as agent:
                receiver.wait_for(receiver.metrics)
                make_calls(hostile, 101)
                receiver.wait_for(lambda: losses(receiver).get("file_unread") == 2)
                make_calls(other, 1009)
                receiver.wait_for(
                    lambda: calls(receiver, "cudaStreamSynchronize", other.pid) == 1009
                )
                finished = end_in_time(agent)

    assert calls(receiver, "cudaStreamSynchronize", hostile.pid) == 101
    assert losses(receiver)["file_unread"] == 2
    overlaid = OVERLAID if inside else "its file system is not known here"
    reason = overlaid if is_overlaid else f"user {NOBODY} serves"
    for what in ("its perf map", "some of its files"):
        said = f"{what} of process {hostile.pid} of user {NOBODY} is not read: {reason}"
        assert said in finished.stderr
