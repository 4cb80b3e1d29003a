"""
A child process that demangles C++ names: it reads a line and writes a line.

Names come from files of observed programs. The C++ library's demangler is exact, but its output is
unbounded: a substitution can stand for all text before it, so 260 characters give 200 kilobytes, and
every twenty more double that. It was not written for a privileged agent either. So it runs here,
without privileges, with little memory and time, where it is allowed to fail.

It imports nothing of the package, and is started by its path; its argument is the filter of system
calls that it installs, in hexadecimal.
"""

import contextlib
import ctypes
import os
import resource
import select
import struct
import sys

NO_DEMANGLER = 3  # the exit status when the host has no C++ library
_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.so.1")
_IDLE_S = 60.0
_MAX_LINE_BYTES = 4096
_MEMORY_BYTES = 256 << 20
_CPU_S = 60
_NOBODY = 65534
# From include/uapi/linux/prctl.h and capability.h.
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522


def main() -> int:
    """Answer until the pipe is closed, or a minute passes without a question."""
    demangle = _load()
    if demangle is None:
        return NO_DEMANGLER
    libc = ctypes.CDLL(None)
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.strnlen.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.strnlen.restype = ctypes.c_size_t
    _give_up_rights()
    while select.select([0], [], [], _IDLE_S)[0]:
        # The agent waits for each answer, so a read returns one line, or the end.
        line = os.read(0, _MAX_LINE_BYTES)
        if not line:
            break
        status = ctypes.c_int()
        text = demangle(line.rstrip(b"\n"), None, None, ctypes.byref(status))
        answer = b""
        if text:
            # Longer names are cut.
            length = libc.strnlen(text, _MAX_LINE_BYTES - 1)
            answer = ctypes.string_at(text, length).replace(b"\n", b" ")
            libc.free(text)
        os.write(1, answer + b"\n")
    return 0


def _load() -> "ctypes._NamedFuncPointer | None":
    for name in _LIBRARIES:
        with contextlib.suppress(OSError, AttributeError):
            return ctypes.CDLL(name)["__cxa_demangle"]
    return None


def _give_up_rights() -> None:
    for limit, value in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (value, value))
    if os.geteuid() == 0:
        # An agent without capabilities cannot change its user: then only the filter below prevents what
        # root can do without capabilities. A user namespace can have only one user.
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    # An agent that is not root has capabilities from the service's ambient set, or from its
    # interpreter's file, and its children inherit them.
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())
    if instructions := b"".join(map(bytes.fromhex, sys.argv[1:])):
        program = ctypes.create_string_buffer(instructions, len(instructions))
        header = struct.pack("HxxxxxxQ", len(instructions) // 8, ctypes.addressof(program))
        libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
