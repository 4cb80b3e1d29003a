"""A program keeps everybody waiting who looks up a name in its folder; the agent goes on."""

import platform
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, calls, losses, seconds_to_end, state_of, wait_until
from tests.kernel.fuse import FileSystem
from tests.kernel.test_forged_memory import AS_SOMEBODY
from tests.kernel.test_fuse import build_stripped
from tests.kernel.test_tenants import (
    AS_NOBODY,
    CALLS,
    ENDS_WITHIN_S,
    make_calls,
    open_folder,
    program,
    read_line,
)
from tests.receiver import WAIT_TIMEOUT_S, OtlpReceiver
from tests.stubs.build import StubLibraries

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.alone,
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="this kernel has no FUSE"),
]

API = "cudaStreamSynchronize"
NOBODY = 65534
# Until the test lets go, at most.
HELD_FOR_S = 60.0
LIST_FOLDER = {"x86_64": 217, "aarch64": 61}[platform.machine()]
# Has a /tmp of its own. One child lists it into a page that does not come, and so holds the folder's lock;
# another one waits for it to make a file there. Whoever looks for a name in the folder waits behind that.
LOCKS = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
served = os.open(sys.argv[1], os.O_RDONLY)
runtime, through = ctypes.CDLL(sys.argv[2]), ctypes.CDLL(sys.argv[3])
if libc.mount(b"own", b"/tmp", b"tmpfs", 0, None):
    sys.exit(os.strerror(ctypes.get_errno()))
os.close(os.open("/tmp/known", os.O_CREAT))

def list_folder():
    page = libc.mmap(None, 4096, 3, 2, served, 0)
    libc.syscall({LIST_FOLDER}, os.open("/tmp", os.O_RDONLY), ctypes.c_void_p(page), 4096)

def make_file():
    os.open("/tmp/new", os.O_CREAT)

print("ready", flush=True)
for line in sys.stdin:
    what = {{"list": list_folder, "make": make_file}}.get(line.strip())
    if what is None:
        for _ in range(int(line)):
            through.through(runtime.{API})
    elif not os.fork():
        what()
        os._exit(0)
    print("done", flush=True)
"""


@contextmanager
def locking_program(
    stubs: StubLibraries,
) -> Iterator[tuple[subprocess.Popen[str], threading.Event]]:
    """A program that can lock its folder for temporary files, and what is set while it waits."""
    is_read, is_over = threading.Event(), threading.Event()

    def hold(_pid: int) -> None:
        is_read.set()
        is_over.wait(HELD_FOR_S)
        is_read.clear()

    with open_folder() as folder:
        (folder / "served").mkdir()
        runtime = Path(shutil.copy(stubs.runtime, folder / "libcudart.so.12"))
        runtime.chmod(0o755)
        through = build_stripped(folder)
        inside = (*AS_NOBODY, "unshare", "--user", "--map-root-user", "--mount")
        content = b"x" * 8192
        with (
            FileSystem(folder / "served", "test", hold, user=NOBODY, content=content),
            program(
                LOCKS, folder / "served" / "remote", runtime, through, inside=inside
            ) as process,
        ):
            try:
                yield process, is_read
            finally:
                is_over.set()


def tell(process: subprocess.Popen[str], what: str) -> None:
    """Have a program do something, and wait until it has begun with it."""
    assert process.stdin is not None
    process.stdin.write(f"{what}\n")
    process.stdin.flush()
    assert read_line(process) == "done"


def wait_for_lock(process: subprocess.Popen[str]) -> None:
    """Wait until the last child of a program waits for the folder's lock."""
    *_, child = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    wait_until(lambda: state_of(int(child)) == "D", "a wait for the lock")


def test_a_program_that_locks_a_folder_keeps_no_agent_waiting(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The calls of another user are all counted, the program is named, and SIGTERM is answered."""
    with (
        locking_program(stubs) as (hostile, is_held),
        program(CALLS, stubs.runtime, inside=AS_SOMEBODY) as other,
    ):
        flags = [*(f"--pid={process.pid}" for process in (hostile, other)), "--spans=full"]
        with Agent(receiver, flags=flags) as agent:
            receiver.wait_for(receiver.metrics)
            tell(hostile, "list")
            assert is_held.wait(WAIT_TIMEOUT_S)
            tell(hostile, "make")
            wait_for_lock(hostile)
            make_calls(hostile, 101)
            make_calls(other, 1009)
            receiver.wait_for(lambda: calls(receiver, API, other.pid) == 1009)
            receiver.wait_for(lambda: losses(receiver).get("file_unread"))
            took_s = seconds_to_end(agent)
            finished = agent.wait()
            was_held = is_held.is_set()

    assert was_held
    assert took_s < ENDS_WITHIN_S
    assert finished.returncode == 0
    assert calls(receiver, API, other.pid) == 1009
    assert calls(receiver, API, hostile.pid) == 101
    assert f"process {hostile.pid} of user 65534 is not read" in finished.stderr
