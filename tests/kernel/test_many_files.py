"""A program that maps many libraries whose symbols take long to read keeps nothing from others."""

import time
from pathlib import Path

import pytest

from tests.elf_files import write_elf
from tests.kernel.agent import Agent, calls, losses, otel_gpu, seconds_to_end
from tests.kernel.test_forged_memory import AS_SOMEBODY
from tests.kernel.test_tenants import (
    AS_NOBODY,
    CALLS,
    ENDS_WITHIN_S,
    make_calls,
    open_folder,
    program,
)
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel

# Each takes 0.1 s to read, and 16 KiB on the disk.
FILES = 499
TABLE_BYTES = 7 << 20
MAPS = """
import mmap, os, sys
kept = []
for entry in os.scandir(sys.argv[1]):
    file = os.open(entry.path, os.O_RDONLY)
    kept.append(mmap.mmap(file, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
    os.close(file)
print("ready", flush=True)
sys.stdin.read()
"""


def write_libraries(folder: Path) -> Path:
    """Write many libraries with tables that are holes, and one name that could be of CUDA."""
    libraries = folder / "libraries"
    libraries.mkdir()
    for number in range(FILES):
        path = libraries / f"libcudart.so.{number}"
        write_elf(path, texts=b"\0cu\0", symbols_bytes=TABLE_BYTES)
    return libraries


def test_a_program_that_maps_many_libraries_has_a_share_of_the_agent(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Others are counted meanwhile, and which files were not read is said with their process and user."""
    file = tmp_path / "many.rec"
    with (
        open_folder() as folder,
        program(MAPS, write_libraries(folder), inside=AS_NOBODY) as hostile,
        program(CALLS, stubs.runtime, inside=AS_SOMEBODY) as other,
    ):
        flags = [f"--pid={hostile.pid}", f"--pid={other.pid}", "--record", str(file)]
        with Agent(receiver, flags=flags) as agent:
            receiver.wait_for(lambda: losses(receiver).get("file_unread"))
            make_calls(other, 1009)
            receiver.wait_for(lambda: calls(receiver, "cudaStreamSynchronize", other.pid) == 1009)
            assert seconds_to_end(agent) < ENDS_WITHIN_S
            finished = agent.wait()

    assert finished.returncode == 0
    assert 0 < losses(receiver)["file_unread"] < FILES
    said = f"some of its files of process {hostile.pid} of user 65534 is not read"
    assert said in finished.stderr
    assert f"({hostile.pid}) of user 65534" in otel_gpu("explain", file).stdout


def test_the_agent_ends_at_once_while_it_reads_many_libraries(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """What it reads after it was told to end has a share of its own."""
    with (
        open_folder() as folder,
        program(MAPS, write_libraries(folder), inside=AS_NOBODY) as hostile,
        Agent(receiver, flags=[f"--pid={hostile.pid}"]) as agent,
    ):
        # It is there, and reads.
        receiver_is_idle_s = 3.0
        time.sleep(receiver_is_idle_s)
        assert seconds_to_end(agent) < ENDS_WITHIN_S


# Each takes half a second to be listed.
MAPPINGS, PROCESSES = 31_000, 31
MAPS_A_PAGE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
file, count = os.open(sys.argv[1], os.O_RDONLY), int(sys.argv[2])
# What lies between keeps them apart.
start = libc.mmap(None, 8192 * count, 0, 0x22, -1, 0)
for number in range(count):
    libc.mmap(start + 8192 * number, 4096, 5, 0x12, file, 0)
going_on, ends = os.pipe()
children = []
for _ in range(int(sys.argv[3])):
    child = os.fork()
    if not child:
        os.close(ends)
        os.read(going_on, 1)
        os._exit(0)
    children.append(child)
print("ready", flush=True)
print(*children, flush=True)
sys.stdin.read()
"""


def test_processes_with_as_many_mappings_as_there_can_be_have_a_share_of_the_agent(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """They are listed again and again, and the agent ends at once all the same."""
    arguments = (stubs.runtime, MAPPINGS, PROCESSES)
    with (
        program(MAPS_A_PAGE, *arguments, inside=AS_NOBODY) as hostile,
        program(CALLS, stubs.runtime, inside=AS_SOMEBODY) as other,
    ):
        assert hostile.stdout is not None
        pids = [*map(int, hostile.stdout.readline().split()), other.pid]
        with Agent(receiver, flags=[f"--pid={pid}" for pid in pids]) as agent:
            receiver.wait_for(lambda: losses(receiver).get("file_unread"))
            make_calls(other, 1009)
            receiver.wait_for(lambda: calls(receiver, "cudaStreamSynchronize", other.pid) == 1009)
            assert seconds_to_end(agent) < ENDS_WITHIN_S
            finished = agent.wait()

    assert finished.returncode == 0
    assert " of user 65534 is not read: its share of our time" in finished.stderr
