"""What a filter of system calls refuses, and what it lets through."""

import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from otel_gpu.procfs.system_call_filter import (
    ALLOWED_TO_CALCULATE,
    REFUSED_TO_AGENT,
    make_filter,
)

TRIES = """
import ctypes, os, signal, socket, sys
from otel_gpu.procfs.system_call_filter import *
forbid_new_privileges()
libc = ctypes.CDLL(None, use_errno=True)
tries = {
    "file": lambda: os.close(os.open("/dev/null", os.O_RDONLY)),
    "socket": lambda: socket.socket().close(),
    "kill": lambda: os.kill(os.getppid(), 0),
    "fork": lambda: os.fork() or os._exit(0),
    "user": lambda: os.setuid(os.getuid()),
    "namespace": lambda: check(libc.unshare(0x10000000)),
    "trace": lambda: check(libc.ptrace(0, 0, 0, 0)),
    "memory": lambda: bytearray(1 << 24),
}
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
install_filter(make_filter(%s))
refused = []
for name, one in tries.items():
    try:
        one()
    except OSError as error:
        refused.append(f"{name}={error.errno}")
print(*refused)
"""


@pytest.mark.parametrize(
    ("chosen", "refused"),
    [
        ("REFUSED_TO_AGENT, allowed=False", "user=1 namespace=1 trace=1"),
        (
            "ALLOWED_TO_CALCULATE, allowed=True",
            "file=1 socket=1 kill=1 fork=1 user=1 namespace=1 trace=1",
        ),
    ],
)
def test_the_kernel_refuses_what_a_filter_says(chosen, refused):
    """With EPERM; the program goes on."""
    done = subprocess.run(
        [sys.executable, "-c", TRIES % chosen], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == refused.split()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("calls", [REFUSED_TO_AGENT, ALLOWED_TO_CALCULATE])
def test_each_number_is_one_call(calls, machine):
    """Twice the same would be a slip in the table."""
    numbers = [getattr(one, machine) for one in calls.values()]
    known = [number for number in numbers if number is not None]

    assert len(known) == len(set(known)) > 20
    program = make_filter(calls, allowed=True, machine=machine)
    constants = [value for _, _, _, value in struct.iter_unpack("=HBBI", program)]
    assert constants[4:-3] == known


def test_other_machines_have_no_filter():
    """Their numbers are not known."""
    assert make_filter(REFUSED_TO_AGENT, allowed=False, machine="riscv64") == b""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="about x86-64's own header")
def test_the_numbers_are_those_of_the_header():
    """Where the host has it."""
    path = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not path.exists():
        pytest.skip("there are no headers of the C library")
    with path.open() as file:
        found = {
            words[1].removeprefix("__NR_"): int(words[2])
            for words in map(str.split, file)
            if len(words) == 3 and words[1].startswith("__NR_")
        }

    for name, numbers in {**REFUSED_TO_AGENT, **ALLOWED_TO_CALCULATE}.items():
        assert found[name] == numbers.x86_64
