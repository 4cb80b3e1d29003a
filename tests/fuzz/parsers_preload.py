"""
What programs hand to our libraries in C, which are compiled for this with checks of memory and of behaviour.

Each is a program that answers each input (``preload_main.h``), so that its end is a finding.
"""

import os
import select
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from otel_gpu.wire.probe_table import APIS
from tests.fuzz.target import ROOT, Target

_FLAGS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# The shadow of a program's memory takes as much room as there is.
_WITHOUT_LIMIT = ("prlimit", "--as=unlimited")
_ANSWER_S = 10.0
HEADERS = ROOT / "tests" / "fuzz"


class Program:
    """A program that answers inputs, as ``preload_main.h`` does; made anew after it has ended."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._errors = os.memfd_create("errors")

    def close(self) -> None:
        """End it."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None

    def parse(self, data: bytes, _folder: Path) -> None:
        """Hand over an input; what the program prints at its end is the error."""
        if self._process is None or self._owner != os.getpid():
            self._start()
        process = self._process
        try:
            process.stdin.write(struct.pack("<I", len(data)) + data)
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], _ANSWER_S)
            assert ready, "it does not answer"
            assert process.stdout.read(1) == b".", "it has ended"
        except (OSError, AssertionError) as error:
            self.close()
            errors = os.pread(self._errors, 1 << 16, 0).decode("utf-8", "replace")
            raise AssertionError(f"{error}\n{errors}") from None

    def _start(self) -> None:
        self._owner = os.getpid()
        os.ftruncate(self._errors, 0)
        os.lseek(self._errors, 0, os.SEEK_SET)
        with tempfile.TemporaryDirectory(prefix="fuzz-native-") as folder:
            program = Path(folder, self._source.stem)
            flags = (*_FLAGS, "-I", str(HEADERS))
            subprocess.run(
                [*_WITHOUT_LIMIT, "gcc", *flags, "-o", program, self._source], check=True
            )
            self._process = subprocess.Popen(
                [*_WITHOUT_LIMIT, program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"},
            )
            # Its file goes with the folder, once it runs.
            self.parse(b"", Path(folder))


def _nvtx_seeds() -> Iterator[bytes]:
    wide = "bätch ".encode("utf-32-le").replace(b"\0", b"\1")
    calls = [(6, 1, b"domain"), (7, 2, wide), (0, 1, b"step"), (8, 0, b"forward"), (9, 0, wide)]
    calls += [
        (2, 3, b"load"),
        (5, 9, b"mark"),
        (3, 3, b""),
        (1, 0, b""),
        (10, 0, b""),
        (4, 7, b"12345678"),
    ]
    yield b"".join(bytes(call[:2]) + call[2] + b"\0" for call in calls)
    yield bytes((8, 0)) + b"x" * 500 + b"\0" + bytes((9, 0)) + wide * 50


def _preload_seeds() -> Iterator[bytes]:
    for api in APIS[::7]:
        yield api.name.encode() + b"_v2_ptsz\0" + bytes(range(256)) * 3
    yield (
        b"/usr/lib/libcudart.so.12\0"
        + struct.pack("<32Q", *(1 << bit for bit in range(0, 64, 2))) * 3
    )
    yield b"cuGetProcAddress_v2\0" + b"\xff" * 1024


TARGETS = (
    Target(
        "nvtx", _nvtx_seeds, Program(HEADERS / "preload_nvtx.c").parse, (), (b"\0\0", b"\0\x06\x01")
    ),
    Target(
        "preload",
        _preload_seeds,
        Program(HEADERS / "preload_names.c").parse,
        (),
        (b"_ptsz", b"__cudaLaunchKernel", b"cuda"),
    ),
)
