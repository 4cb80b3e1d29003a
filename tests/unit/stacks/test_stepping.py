"""
Every single instruction of a program: the walk from it is right.

The program runs under ptrace(2), one instruction at a time. Its calls and returns are followed
by what the processor does (a call puts the address after itself on the stack), which gives
the true stack at each step: in the middle of prologues and epilogues, in stubs, in the dynamic
linker, in assembly code of the C library, in a signal handler, in the kernel's own library.
"""

import ctypes
import os
import platform
import shutil
import signal
import struct
from pathlib import Path

import pytest

from otel_gpu.stacks.mappings import ElfFiles, Mappings
from otel_gpu.stacks.unwind.unwinder import Registers, Unwinder
from tests.unit.stacks.stack_captures import gcc

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc builds the program"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 is followed"),
]

SOURCE = """
#include <alloca.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/ptrace.h>

#define NOINLINE __attribute__((noinline, noclone))

static int less(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

NOINLINE long aligned(int n, long a, long b, long c, long d, long e, long f, long g)
{
    __attribute__((aligned(64))) volatile char block[64];
    volatile char *more = alloca(n);
    block[0] = more[0] = 1;
    return block[0] + more[0] + strlen((char *)"abc") + a + b + c + d + e + f + g;
}

NOINLINE long work(int n)
{
    int values[] = {3, 1, 2, 5, 4};
    struct timespec now;
    char text[64], *copy;
    long length;
    qsort(values, 5, sizeof(*values), less);
    snprintf(text, sizeof(text), "%d %s %.3f", values[2], "abc", 1.5 * n);
    clock_gettime(CLOCK_MONOTONIC, &now);
    copy = strdup(text);
    length = strlen(copy);
    free(copy);
    return length + aligned(n, 1, 2, 3, 4, 5, 6, 7);
}

static void on_signal(int number) { work(number); }

int main(void)
{
    signal(SIGUSR1, on_signal);
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    work(2);
    raise(SIGUSR1);
    return 0;
}
"""

GET_REGISTERS, SINGLE_STEP = 12, 9
COPY_BYTES = 32 << 10
PREFIXES = {0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0xF2, 0xF3, *range(0x40, 0x50)}


class Stepped:
    """A process that is stepped; ``stack`` are the addresses where its callers go on."""

    def __init__(self, program):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long] * 4
        self.libc.ptrace.restype = ctypes.c_long
        self.pid = os.posix_spawn(program, [program], {})
        assert os.WIFSTOPPED(os.waitpid(self.pid, 0)[1])
        self.memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY)
        self.stack = []
        self.read_registers()

    def read_registers(self):
        values = (ctypes.c_ulong * 27)()
        assert not self.libc.ptrace(GET_REGISTERS, self.pid, 0, ctypes.addressof(values))
        self.registers = Registers(values[16], values[19], values[4])

    def read(self, address, size):
        return os.pread(self.memory, size, address)

    def step(self, number=0):
        """Go on by one instruction, or into the handler of a signal; False at the end."""
        assert not self.libc.ptrace(SINGLE_STEP, self.pid, 0, number)
        status = os.waitpid(self.pid, 0)[1]
        if not os.WIFSTOPPED(status):
            os.close(self.memory)
            assert os.waitstatus_to_exitcode(status) == 0
            return False
        before = self.registers.instruction_pointer
        code = self.read(before, 8)
        self.read_registers()
        if number:
            # Its handler returns to code that leaves the frame of the signal, and that to
            # where the program was.
            self.stack += [before + 1, self.top()]
        elif os.WSTOPSIG(status) != signal.SIGTRAP:
            return self.step(os.WSTOPSIG(status))
        else:
            self.follow(code)
        return True

    def top(self):
        return struct.unpack("<Q", self.read(self.registers.stack_pointer, 8))[0]

    def follow(self, code):
        while code[0] in PREFIXES:
            code = code[1:]
        if code[0] == 0xE8 or (code[0] == 0xFF and code[1] >> 3 & 7 == 2):
            self.stack.append(self.top())
        elif code[0] in (0xC2, 0xC3):
            assert self.stack.pop() == self.registers.instruction_pointer
        elif code[:2] == b"\x0f\x05" and self.registers.instruction_pointer + 1 == self.stack[-1]:
            self.stack.pop()


def test_the_walk_is_right_at_every_instruction(tmp_path):
    """
    Exact to the last address. Where a register would be needed that no sample holds, it has an
    end that is not called complete; in the few functions without tables that linkers add, it
    says that it went by frame pointer, which may hide one caller.
    """
    program = tmp_path / "program"
    gcc(SOURCE, program, "-O2", "-fomit-frame-pointer", "-Wl,-z,lazy")
    process = Stepped(program)
    images = ElfFiles()
    mappings = Mappings(process.pid, images)
    unwinder = Unwinder()
    paths, steps, incomplete, by_frame_pointer = set(), 0, 0, 0

    def walk():
        stack = process.read(process.registers.stack_pointer, COPY_BYTES)
        return unwinder.unwind(process.registers, stack, mappings.find, {})

    first = walk()
    assert first.complete
    process.stack = list(first.addresses[:0:-1])
    while process.step():
        found = walk()
        expected = tuple(process.stack[::-1])
        steps += 1
        incomplete += not found.complete
        paths.add(Path(mappings.find(found.addresses[0]).path).name)
        assert found.addresses[0] == process.registers.instruction_pointer
        # Incomplete: in the dynamic linker's first lines, and in those that realign a stack.
        callers = found.addresses[1:]
        if found.method == "frame_pointer":
            by_frame_pointer += 1
            assert callers in (expected, expected[1:])
        else:
            assert callers == (expected if found.complete else expected[: len(callers)])
    mappings.close()
    images.close()

    assert steps > 8_000
    assert incomplete < steps / 25
    assert by_frame_pointer < steps / 50
    assert {"program", "[vdso]"} < paths
    assert any(path.startswith("ld-linux") for path in paths)
    assert any(path.startswith("libc") for path in paths)
