"""
Programs that show their own stack, compiled for a test.

``capture()`` notes its registers, its stack up to the very top, and what glibc's own
``backtrace()`` says: an unwinder that has nothing in common with ours. In a program it then
writes all that out and waits until the test has looked at the process. ``NOTE()`` in a function
notes its return address as the compiler knows it, for code that ``backtrace()`` cannot cross.
"""

import contextlib
import ctypes
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from otel_gpu.stacks.mappings import ElfFiles, Mapping, Mappings
from otel_gpu.stacks.unwind.unwinder import Registers

MAX_ADDRESSES = 512
MAX_NOTES = 64
MAX_STACK_BYTES = 4 << 20

HEADER = """
#define _GNU_SOURCE
#include <alloca.h>
#include <execinfo.h>
#include <pthread.h>
#include <search.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

struct capture {
    unsigned long ip, sp, fp, stack_bytes, count, notes;
    void *addresses[512];
    void *noted[64];
    unsigned char stack[4 << 20];
};
extern struct capture captured;
extern int capture(int value);
#define NOTE() (captured.noted[captured.notes++ & 63] = __builtin_return_address(0))
#define NOINLINE __attribute__((noinline, noclone))
"""

CAPTURE = (
    HEADER
    + """
struct capture captured;
extern void show(void) __attribute__((weak));

NOINLINE int capture(int value)
{
    struct capture *to = &captured;
    unsigned long ip, sp, fp, end;
    pthread_attr_t attributes;
    void *low;
    size_t size;

    NOTE();
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &low, &size);
    pthread_attr_destroy(&attributes);
    to->count = backtrace(to->addresses, 512);
    __asm__ volatile("lea 0(%%rip), %0\\n mov %%rsp, %1\\n mov %%rbp, %2"
                     : "=&r"(ip), "=&r"(sp), "=&r"(fp));
    to->ip = ip;
    to->sp = sp;
    to->fp = fp;
    end = (unsigned long)low + size;
    /* On a signal's own stack: what is left of that is not known. */
    to->stack_bytes = sp >= (unsigned long)low && sp < end ? end - sp : 4096;
    if (to->stack_bytes > sizeof(to->stack))
        to->stack_bytes = sizeof(to->stack);
    memcpy(to->stack, (void *)sp, to->stack_bytes);
    if (show)
        show();
    return value + 1;
}
"""
)

SHOW = (
    HEADER
    + """
static void put(const void *data, size_t size)
{
    const char *at = data;

    while (size) {
        ssize_t written = write(1, at, size);

        if (written <= 0)
            _exit(1);
        at += written;
        size -= written;
    }
}

void show(void)
{
    char end;

    put(&captured, offsetof(struct capture, stack));
    put(captured.stack, captured.stack_bytes);
    if (read(0, &end, 1))
        _exit(1);
}
"""
)

_SHOWN = struct.Struct(f"<6Q{MAX_ADDRESSES}Q{MAX_NOTES}Q")


class Capture(NamedTuple):
    """
    A stack and what is known about it.

    ``backtrace`` are addresses as from glibc: the first lies in ``capture``. ``notes`` are
    return addresses in the order of NOTE(), so ``capture``'s own is the last.
    """

    registers: Registers
    stack: bytes
    backtrace: tuple[int, ...]
    notes: tuple[int, ...]
    find: Callable[[int], Mapping | None]


class _Captured(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_ulong) for name in ("ip", "sp", "fp", "stack_bytes", "count", "notes")),
        ("addresses", ctypes.c_ulong * MAX_ADDRESSES),
        ("noted", ctypes.c_ulong * MAX_NOTES),
        ("stack", ctypes.c_ubyte * MAX_STACK_BYTES),
    ]


class Library:
    """``capture()`` in this process."""

    def __init__(self, folder: Path) -> None:
        path = folder / "libcapture.so"
        gcc(CAPTURE, path, "-O2", "-fPIC", "-shared")
        library = ctypes.CDLL(str(path))
        self.function = library.capture
        self._captured = _Captured.in_dll(library, "captured")
        self._images = ElfFiles()

    def taken(self) -> Capture:
        """Return what ``capture()`` noted last."""
        it = self._captured
        return Capture(
            Registers(it.ip, it.sp, it.fp),
            bytes(it.stack[: it.stack_bytes]),
            tuple(it.addresses[: it.count]),
            tuple(it.noted[: it.notes]),
            Mappings(os.getpid(), self._images).find,
        )


def gcc(source: str, output: Path, *options: str | Path) -> None:
    """Compile one C source."""
    path = output.with_name(output.name + ".c")
    path.write_text(source)
    subprocess.run(["gcc", *options, "-w", "-o", output, path], check=True)


class Builder:
    """Compiles programs that show their stack."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, source in (("capture", CAPTURE), ("show", SHOW)):
            gcc(source, folder / f"{name}.o", "-O2", "-fPIC", "-c")

    def program(self, source: str, *options: str | Path, name: str = "program") -> Path:
        """Compile and link a program; `-c` and the like are for `gcc`."""
        path = self.folder / name
        code = path.with_name(name + ".o")
        gcc(HEADER + source, code, "-fPIE", *options, "-c")
        parts = [code, self.folder / "capture.o", self.folder / "show.o"]
        subprocess.run(["gcc", *parts, *options, "-rdynamic", "-o", path], check=True)
        return path

    def library(self, source: str, *options: str | Path, name: str = "libmiddle.so") -> Path:
        """Compile a library for such a program."""
        path = self.folder / name
        gcc(HEADER + source, path, "-fPIC", "-shared", *options)
        return path


@contextlib.contextmanager
def shown(program: Path, *arguments: str) -> Iterator[Capture]:
    """Run a program until it shows its stack; it waits meanwhile."""
    with subprocess.Popen(
        [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        ip, sp, fp, stack_bytes, count, notes, *rest = _SHOWN.unpack(
            process.stdout.read(_SHOWN.size)
        )
        images = ElfFiles()
        mappings = Mappings(process.pid, images)
        yield Capture(
            Registers(ip, sp, fp),
            process.stdout.read(stack_bytes),
            tuple(rest[:count]),
            tuple(rest[MAX_ADDRESSES : MAX_ADDRESSES + notes]),
            mappings.find,
        )
        mappings.close()
        images.close()
        process.stdin.close()
        assert process.wait(timeout=30) == 0
