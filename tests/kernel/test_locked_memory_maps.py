"""A program keeps everybody who reads its command line or what it maps waiting; the agent goes on."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, calls, losses, seconds_to_end
from tests.kernel.test_attacher import API, Holding
from tests.kernel.test_forged_memory import AS_SOMEBODY
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
    # Whoever lists processes meanwhile waits too.
    pytest.mark.alone,
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="this kernel has no FUSE"),
]

# Becomes itself anew when it gets a line. Then one thread holds the lock of the memory map, as in
# test_attacher.py, and the other one asks for it. It maps no library, so that no probe waits.
LOCKS = r"""
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static void *ask(void *nothing)
{
    for (;;) {
        munmap(mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);
        usleep(1000);
    }
    return nothing;
}

int main(int count, char **arguments)
{
    pthread_t thread;
    char line[16];
    volatile char *page;
    alarm(60);
    if (count == 2) {
        puts("ready");
        fflush(stdout);
        if (!fgets(line, sizeof(line), stdin))
            return 1;
        execl(arguments[0], arguments[0], arguments[1], "hunter", (char *)0);
        return 1;
    }
    page = mmap(0, 4096, PROT_READ, MAP_PRIVATE, open(arguments[1], O_RDONLY), 0);
    madvise((void *)page, 4096, MADV_RANDOM);
    pthread_create(&thread, 0, ask, 0);
    return *page;
}
"""


@contextmanager
def locking_program() -> Iterator[tuple[subprocess.Popen[str], Holding]]:
    """A program that locks its memory map when it gets a line, and what it waits for then."""
    with open_folder() as folder, ExitStack() as stack:
        source = folder / "locks.c"
        source.write_text(LOCKS)
        built = folder / "locks"
        subprocess.run(["cc", "-static", "-pthread", "-o", built, source], check=True)
        (folder / "served").mkdir()
        served = stack.enter_context(Holding(folder / "served"))
        process = stack.enter_context(
            subprocess.Popen(
                [*AS_NOBODY, built, folder / "served" / "remote"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(process.kill)
        stack.callback(served.answer)
        assert read_line(process) == "ready"
        yield process, served


def lock(process: subprocess.Popen[str], served: Holding) -> None:
    """Have a program lock its memory map, so that readers of its command line wait."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert served.is_holding.wait(WAIT_TIMEOUT_S)
    reads = ("timeout", "--signal=KILL", "0.5", "cat", f"/proc/{process.pid}/cmdline")
    while subprocess.run(reads, capture_output=True, check=False).returncode == 0:
        time.sleep(0.01)


@pytest.mark.parametrize("is_locked_before", [True, False])
def test_a_program_that_locks_its_memory_map_keeps_no_agent_waiting(
    receiver: OtlpReceiver,
    stubs: StubLibraries,
    is_locked_before: bool,
) -> None:
    """The calls of another user are all counted, the program is named, and SIGTERM is answered."""
    with (
        locking_program() as (hostile, served),
        program(CALLS, stubs.runtime, inside=AS_SOMEBODY) as other,
    ):
        if is_locked_before:
            lock(hostile, served)
        flags = [f"--pid={process.pid}" for process in (hostile, other)]
        with Agent(receiver, flags=flags) as agent:
            receiver.wait_for(receiver.metrics)
            if not is_locked_before:
                agent.signal(signal.SIGSTOP)
                lock(hostile, served)
                agent.signal(signal.SIGCONT)
            make_calls(other, 1009)
            receiver.wait_for(lambda: calls(receiver, API, other.pid) == 1009)
            receiver.wait_for(lambda: losses(receiver).get("file_unread"))
            took_s = seconds_to_end(agent)
            finished = agent.wait()
            is_held = served.is_holding.is_set()

    assert is_held
    assert took_s < ENDS_WITHIN_S
    assert finished.returncode == 0
    assert calls(receiver, API, other.pid) == 1009
    named = f"under the lock of the memory map of process {hostile.pid} of user 65534 is not read"
    assert named in finished.stderr
